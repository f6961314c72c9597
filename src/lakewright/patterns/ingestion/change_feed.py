"""The change feed of a Delta table, read from a version or a time on.

The feed holds what was committed since it was turned on (``delta.enableChangeDataFeed``), and not a version earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.times import parse_time
from lakewright.patterns.idempotency.delta_paths import table_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_changes"]

_SETTING = "delta.enableChangeDataFeed"


class _Version(NamedTuple):
    number: int
    at: int
    """Microseconds since 1970."""


def read_changes(
    spark: SparkSession,
    path: str,
    *,
    from_version: int | None = None,
    from_time: str | datetime | None = None,
    upto: int | str | datetime | None = None,
) -> DataFrame:
    """Runs small jobs over the table's log; the frame itself is lazy: every change of a Delta table in a range.

    The range begins at a version, or with the first one at or after a time (UTC), and ends before ``upto`` (a version
    or a time; without it, with the newest). Beside the columns of the table a row has ``_change_type`` (``insert``,
    ``update_preimage``, ``update_postimage``, ``delete``), ``_commit_version`` and ``_commit_timestamp``.
    """
    if (from_version is None) == (from_time is None):
        raise ConfigurationError("read_changes: say where it begins, by from_version or by from_time.")
    if not table_exists(spark, path):
        raise InputError(f"There is no Delta table at {path}. Nothing was read.", hint="Correct the path.")
    versions = _versions(spark, path)
    first = from_version if from_version is not None else _at(versions, parse_time(from_time or ""))
    end = versions[-1].number + 1
    if upto is not None:
        end = min(end, upto if isinstance(upto, int) else _at(versions, parse_time(upto)))
    _refuse_start(spark, path, versions, first)
    if first >= end:  # nothing has been committed in the range: the columns, and no row
        return _feed(spark, path, versions[-1].number, versions[-1].number).where("false")
    return _feed(spark, path, first, end - 1)


def _feed(spark: SparkSession, path: str, first: int, last: int) -> DataFrame:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    return reader.option("startingVersion", first).option("endingVersion", last).load(path)


def _versions(spark: SparkSession, path: str) -> list[_Version]:
    """The versions that the log still holds, in order."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").selectExpr("version", "unix_micros(timestamp)")
    return sorted(_Version(int(version), int(at)) for version, at in history.collect())


def _at(versions: Sequence[_Version], moment: datetime) -> int:
    """The first version at or after a moment; the one that comes next where there is none yet."""
    micros = int(moment.timestamp() * 1_000_000)
    return next((one.number for one in versions if one.at >= micros), versions[-1].number + 1)


def _refuse_start(spark: SparkSession, path: str, versions: Sequence[_Version], first: int) -> None:
    since = _on_since(spark, path, versions)
    if since is None:
        raise InputError(
            f"The table at {path} has no change feed: {_SETTING} is not set. Nothing was read.",
            hint=f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({_SETTING} = true) turns it on for what comes; "
            f"changes can then be read from version {versions[-1].number + 1} on.",
        )
    if first < since:
        raise InputError(
            f"The changes of {path} cannot be read from version {first} on: {_SETTING} is set, and the log held, since "
            f"version {since}. Nothing was read.",
            hint=f"Begin at from_version={since}, and take what was there before by reading the table at version "
            f"{max(since - 1, 0)}.",
        )


def _on_since(spark: SparkSession, path: str, versions: Sequence[_Version]) -> int | None:
    """Runs a job over the log: the version from which on the feed is on without a break; None where it is off."""
    properties = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").selectExpr(f"properties['{_SETTING}']").first()
    if properties is None or str(properties[0]).lower() != "true":
        return None
    log = spark.read.schema("metaData STRUCT<configuration: MAP<STRING, STRING>>").json(f"{path}/_delta_log/*.json")
    declared = log.where("metaData IS NOT NULL").selectExpr(
        "CAST(regexp_extract(_metadata.file_name, '^([0-9]{20})', 1) AS BIGINT)",
        f"coalesce(lower(metaData.configuration['{_SETTING}']) = 'true', false)",
    )
    since = versions[0].number  # what the log no longer tells was decided before it
    was_on = True
    for version, is_on in sorted((row[0], row[1]) for row in declared.collect() if row[0] is not None):
        if is_on and not was_on:
            since = max(version, since)
        was_on = is_on
    return since
