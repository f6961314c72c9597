"""Static Joiner: add the columns of a reference that is at rest to each row, as they are or as they were.

Problem:
    Visits carry a user's number and nothing else. Where the user lived is in another table, and it changes: a backfill
    of January that joins today's table gives January's visits December's countries.
Guarantee:
    With ``how="left"`` the result has exactly the rows of the left side, in any order. A row whose key is unknown or
    NULL gets NULLs. `join_reference` refuses a reference that has a key twice, when the result is written and at each
    micro-batch of a stream; `join_as_of` takes the version that was valid at the row's own time (or at one moment, such
    as the run's), by half-open bounds, so that a row on a boundary matches once. A row from before the first known
    version gets NULLs, or that first version with ``before_first="extend"``.
Consequences:
    - Versions that overlap would multiply rows. ``Scd2`` and ``RowVersions`` keep none; for tables of others say
      ``overlaps="refuse"``, or run `refuse_overlaps` before.
    - A stream does not wait for its reference: a row that comes first has NULLs and keeps them. Both sides of it are
      streams for Dynamic Joiner.
    - A reference in plain files is empty while it is written anew: keep it in a Delta table.
    - `join_reference` reads the reference as it is now: a backfill sees today's values. Keep versions, and join as of.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.data_value.join_checks import (
    carried_columns,
    check_keys,
    comparable,
    hashable,
    kinds_of,
    refuse_missing,
)
from lakewright.patterns.data_value.moments import moment_sql
from lakewright.patterns.data_value.reference_checks import refuse_duplicate_keys, refuse_overlaps
from lakewright.patterns.data_value.scd4 import versions_of_scd4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "join_as_of",
    "join_reference",
    "refuse_duplicate_keys",
    "refuse_overlaps",
    "versions_of_scd4",
]


def join_reference(
    df: DataFrame,
    reference: DataFrame,
    *,
    keys: Sequence[str],
    how: Literal["left", "inner"] = "left",
    columns: Sequence[str] | None = None,
    duplicates: Literal["refuse", "allow"] = "refuse",
) -> DataFrame:
    """Add the reference's columns (``columns``, or all) to the rows with the same key; lazy, in batch and on a stream.

    >>> visits = spark.sql("SELECT * FROM VALUES ('v1', 'phone'), ('v2', NULL) AS t(visit, device)")
    >>> devices = spark.sql("SELECT 'phone' AS device, 'small' AS screen")
    >>> join_reference(visits, devices, keys=["device"]).orderBy("visit").collect()
    [Row(visit='v1', device='phone', screen='small'), Row(visit='v2', device=None, screen=None)]
    """
    from pyspark.sql import functions as F

    what = "join_reference"
    keys = check_keys(keys, what)
    if how not in ("left", "inner"):
        raise ConfigurationError(f"{what}: how is 'left' or 'inner', not {how!r}.")
    if duplicates not in ("refuse", "allow"):
        raise ConfigurationError(f"{what}: duplicates is 'refuse' or 'allow', not {duplicates!r}.")
    _refuse_stream(reference, what)
    left, right = kinds_of(df), kinds_of(reference)
    refuse_missing(keys, left, f"{what} (left side)")
    refuse_missing(keys, right, f"{what} (reference)")
    for key in keys:
        comparable((key, left[key]), (key, right[key]), what)
    carried = carried_columns(left, right, keys, columns, what)
    names = {key: f"_lw_key_{place}" for place, key in enumerate(keys)}
    known = reference.selectExpr(
        *[f"{quoted(key)} AS {name}" for key, name in names.items()], *[quoted(name) for name in carried]
    )
    if duplicates == "refuse":
        known = _one_each(known, names)
    same = F.expr(" AND ".join(f"{quoted(key)} = {name}" for key, name in names.items()))
    return df.join(known, on=same, how=how).selectExpr(*[quoted(name) for name in (*left, *carried)])


def join_as_of(
    df: DataFrame,
    reference: DataFrame,
    *,
    keys: Sequence[str],
    at: str | datetime,
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    before_first: Literal["null", "extend"] = "null",
    how: Literal["left", "inner"] = "left",
    columns: Sequence[str] | None = None,
    method: Literal["join", "sort"] = "join",
    overlaps: Literal["trust", "refuse"] = "trust",
) -> DataFrame:
    """Add the reference's columns in the version that was valid at ``at``: a column of the row, or one moment for all.

    ``method="join"`` compares a row with each version of its key: right for up to some dozens of them.
    ``method="sort"`` sorts rows and versions of a key together, and looks at each once: right for hundreds.

    >>> visits = spark.createDataFrame([(1, 5)], "user int, time int")
    >>> users = spark.createDataFrame([(1, "FR", 1, 4), (1, "PL", 4, None)],
    ...     "user int, country string, valid_from int, valid_to int")
    >>> join_as_of(visits, users, keys=["user"], at="time").collect()
    [Row(user=1, time=5, country='PL')]
    """
    what = "join_as_of"
    keys = check_keys(keys, what)
    for option, given, known in (
        ("before_first", before_first, ("null", "extend")),
        ("how", how, ("left", "inner")),
        ("method", method, ("join", "sort")),
        ("overlaps", overlaps, ("trust", "refuse")),
    ):
        if given not in known:
            raise ConfigurationError(f"{what}: {option} is {known[0]!r} or {known[1]!r}, not {given!r}.")
    _refuse_stream(reference, what)
    if method == "sort" and df.isStreaming:
        raise ConfigurationError(f'{what}: a stream cannot be sorted; leave method="sort" out.')
    left, right = kinds_of(df), kinds_of(reference)
    refuse_missing([*keys, *([at] if isinstance(at, str) else [])], left, f"{what} (left side)")
    refuse_missing([*keys, valid_from, valid_to], right, f"{what} (reference)")
    for key in keys:
        comparable((key, left[key]), (key, right[key]), what)
    time = (at, left[at]) if isinstance(at, str) else ("the moment", "timestamp")
    for name in (valid_from, valid_to):
        comparable(time, (name, right[name]), what)
    carried = carried_columns(left, right, [*keys, valid_from, valid_to], columns, what)
    names = {key: f"_lw_key_{place}" for place, key in enumerate(keys)}
    versions = reference.selectExpr(
        *[f"{quoted(key)} AS {name}" for key, name in names.items()],
        f"{quoted(valid_from)} AS _lw_from",
        f"{quoted(valid_to)} AS _lw_to",
        *[quoted(name) for name in carried],
    )
    if overlaps == "refuse":
        versions = _apart(versions, names)
    if before_first == "extend":
        by = f"OVER (PARTITION BY {', '.join(names.values())} ORDER BY _lw_from)"
        versions = versions.selectExpr(
            *names.values(),
            f"CASE WHEN row_number() {by} > 1 THEN _lw_from END AS _lw_from",
            "_lw_to",
            *[quoted(name) for name in carried],
        )
    begun = "_lw_from IS NULL OR _lw_from <= {at}" if before_first == "extend" else "_lw_from <= {at}"
    valid = f"({begun}) AND (_lw_to IS NULL OR {{at}} < _lw_to)"
    if method == "sort":
        return _sorted(df, versions, names, _moment(at), valid, how, left, carried)
    return _joined(df, versions, names, _moment(at), valid, how, [*left, *carried])


def _joined(
    df: DataFrame, versions: DataFrame, names: dict[str, str], at: str, valid: str, how: str, columns: list[str]
) -> DataFrame:
    from pyspark.sql import functions as F

    conditions = [f"{quoted(key)} = {name}" for key, name in names.items()] + [valid.format(at=at)]
    joined = df.join(versions, on=F.expr(" AND ".join(conditions)), how=how)
    return joined.selectExpr(*[quoted(name) for name in columns])


def _sorted(
    df: DataFrame,
    versions: DataFrame,
    names: dict[str, str],
    at: str,
    valid: str,
    how: str,
    left: dict[str, str],
    carried: list[str],
) -> DataFrame:
    """Rows and versions of a key in one order; each row takes the last version before it, if that is still valid."""
    missing = " OR ".join(f"{quoted(key)} IS NULL" for key in names)
    told_apart = ", ".join(map(quoted, hashable(left))) or "0"
    rows = df.selectExpr(
        *[f"{quoted(key)} AS {name}" for key, name in names.items()],
        f"{at} AS _lw_at",
        "1 AS _lw_kind",
        # All rows without a key would be sorted in one place.
        f"CASE WHEN {missing} THEN 1 + pmod(xxhash64({told_apart}), 200) ELSE 0 END AS _lw_salt",
        f"struct({', '.join(map(quoted, left))}) AS _lw_row",
    )
    begins = versions.where(" AND ".join(f"{name} IS NOT NULL" for name in names.values())).selectExpr(
        *names.values(),
        "_lw_from AS _lw_at",
        "0 AS _lw_kind",
        "0L AS _lw_salt",
        f"struct({', '.join(('_lw_from', '_lw_to', *map(quoted, carried)))}) AS _lw_version",
    )
    by = f"PARTITION BY {', '.join(names.values())}, _lw_salt ORDER BY _lw_at, _lw_kind"
    last = f"last(_lw_version, true) OVER ({by} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    both = rows.unionByName(begins, allowMissingColumns=True)
    found = both.selectExpr("_lw_at", "_lw_kind", "_lw_row", f"{last} AS _lw_version").where("_lw_kind = 1")
    told = valid.format(at="_lw_at").replace("_lw_from", "_lw_version._lw_from").replace("_lw_to", "_lw_version._lw_to")
    matched = f"_lw_version IS NOT NULL AND _lw_at IS NOT NULL AND {told}"
    if how == "inner":
        found = found.where(matched)
    return found.selectExpr(
        *[f"_lw_row.{quoted(name)} AS {quoted(name)}" for name in left],
        *[f"CASE WHEN {matched} THEN _lw_version.{quoted(name)} END AS {quoted(name)}" for name in carried],
    )


def _one_each(known: DataFrame, names: dict[str, str]) -> DataFrame:
    """The same rows; a key that is there twice fails the job that reads them. NULL never matches, so it may be."""
    keys = ", ".join(names.values())
    counted = known.selectExpr("*", f"count(1) OVER (PARTITION BY {keys}) AS _lw_times")
    twice = "_lw_times > 1" + "".join(f" AND {name} IS NOT NULL" for name in names.values())
    return _refusing(counted, twice, "has more than one row of the key", names).drop("_lw_times")


def _apart(versions: DataFrame, names: dict[str, str]) -> DataFrame:
    """The same versions; one that ends after the next begins, or without a beginning, fails the job that reads them."""
    by = f"OVER (PARTITION BY {', '.join(names.values())} ORDER BY _lw_from)"
    chained = versions.selectExpr("*", f"lead(_lw_from) {by} AS _lw_next")
    wrong = "(_lw_from IS NULL OR coalesce(_lw_next < _lw_to, _lw_next IS NOT NULL))"
    wrong += "".join(f" AND {name} IS NOT NULL" for name in names.values())
    return _refusing(chained, wrong, "has versions that overlap, of the key", names).drop("_lw_next")


def _refusing(known: DataFrame, wrong: str, words: str, names: dict[str, str]) -> DataFrame:
    told = ", ', ', ".join(
        f"{text_literal(key + ' = ')}, coalesce(CAST({name} AS STRING), 'NULL')" for key, name in names.items()
    )
    message = f"concat({text_literal(f'Static Joiner: the reference {words} ')}, {told}, '.')"
    return known.where(f"CASE WHEN {wrong} THEN CAST(raise_error({message}) AS BOOLEAN) ELSE true END")


def _moment(at: str | datetime) -> str:
    return quoted(at) if isinstance(at, str) else moment_sql(at)


def _refuse_stream(reference: DataFrame, what: str) -> None:
    if reference.isStreaming:
        raise ConfigurationError(
            f"{what}: the reference is a stream, of which nobody knows when all of it is there.",
            hint="Join two streams with join_streams, or keep the reference in a Delta table and read that.",
        )
