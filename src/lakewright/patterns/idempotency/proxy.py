"""Proxy: keep every version of a dataset unchanged, and let one name point at the current one.

Problem:
    A job rebuilds a whole dataset at each run and overwrites the one before. Now every past version has to be kept, and
    nobody may change it; readers still want one name that shows the newest.
Guarantee:
    Each load is written once, into a place of its own, and appears there whole or not at all; a repeat makes one more.
    The name is pointed at it afterwards, in one step that can be repeated alone: no data is loaded again, and readers
    see the former dataset until it is done. In PostgreSQL, with a keeper, the database denies the loader to change or
    drop what it has loaded.
Consequences:
    - Every version takes its room. Nothing here ever deletes one: an administrator (PostgreSQL, files) or VACUUM after
      the retention (Delta) does.
    - Without views the name is a manifest (``write_load``, ``publish_load``), and readers go through
      ``read_latest_load``.
    - On Delta the log itself is the proxy: ``keep_versions`` sets how long versions stay, ``read_version`` reads one,
      and ``remove_unused_files`` refuses to take them away sooner. Files deleted past the log are not protected: use
      the object store's own locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import TableName, connecting, connection_arguments
from lakewright.connectors.postgres_filling import CsvFilling, FrameFilling
from lakewright.connectors.postgres_version_load import Filling
from lakewright.connectors.postgres_write_once import load_once, point_at
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection
from lakewright.model.loads import LoadLimits
from lakewright.model.times import parse_duration
from lakewright.patterns.idempotency.proxy_manifest import (
    Manifest,
    publish_load,
    read_latest_load,
    read_manifest,
    write_load,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Manifest",
    "copy_hidden_table",
    "keep_versions",
    "load_hidden_table",
    "point_view_at",
    "publish_load",
    "read_latest_load",
    "read_manifest",
    "write_load",
]


def load_hidden_table(
    df: DataFrame,
    connection: Connection,
    *,
    view: str,
    keeper: str | None = None,
    min_rows: int = 1,
    max_loss: float | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Runs a job that loads the frame into a new table beside the view (``devices_3``); returns its number.

    Readers see nothing of it before `point_view_at`. With ``keeper`` (see `set_up_keeper`) the table belongs to that
    role when the call returns.
    """
    what = f"{connection.name}: {view}"
    return _load(FrameFilling(df, "proxy", 0, what), connection, view, keeper, LoadLimits(min_rows, max_loss, rules))


def copy_hidden_table(
    files: Sequence[Path],
    connection: Connection,
    *,
    view: str,
    schema: StructType,
    keeper: str | None = None,
    delimiter: str = ",",
    header: bool = True,
    encoding: str = "UTF-8",
    min_rows: int = 1,
    max_loss: float | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """The same from CSV files by PostgreSQL's own COPY, without Spark."""
    what = f"{connection.name}: {view}"
    filling = CsvFilling(files, schema, what, delimiter=delimiter, header=header, encoding=encoding)
    return _load(filling, connection, view, keeper, LoadLimits(min_rows, max_loss, rules))


def point_view_at(connection: Connection, *, view: str, version: int) -> None:
    """Let the view show a version that was loaded, in one transaction; repeating it changes nothing."""
    told = connecting(connection, what=f"{connection.name}: {view}", effect="The view shows what it showed.")
    with told as session, session.transaction():
        point_at(session, TableName.parse(view), version)


def keep_versions(spark: SparkSession, path: str, *, keep: str) -> None:
    """Let a Delta table keep every version for as long as ``keep``: a VACUUM below it is refused from now on.

    >>> spark.range(1).write.format("delta").save(folder)
    >>> keep_versions(spark, folder, keep="3650 days")
    >>> from lakewright.patterns.idempotency.versions import remove_unused_files
    >>> remove_unused_files(spark, folder, keep="30 days")
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: Data Overwrite: ... keeps replaced files for longer than 30 days...
    """
    seconds = parse_duration(keep).total_seconds()
    if seconds < 7 * 86400:
        raise ConfigurationError(f"Proxy: versions are kept for at least 7 days, not {keep}. Nothing was changed.")
    interval = f"interval {int(seconds)} seconds"
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.logRetentionDuration' = '{interval}', "
        f"'delta.deletedFileRetentionDuration' = '{interval}')"
    )


def _load(filling: Filling, connection: Connection, view: str, keeper: str | None, limits: LoadLimits) -> int:
    what = f"{connection.name}: {view}"
    with connecting(connection, what=what, effect="The view shows what it showed.") as session:
        arguments = connection_arguments(connection)
        name = TableName.parse(view)
        loaded = load_once(session, name, filling, arguments=arguments, limits=limits, what=what, keeper=keeper)
    return loaded.number
