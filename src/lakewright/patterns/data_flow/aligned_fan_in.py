"""Aligned Fan-In: combine branches, and only when every one of them has succeeded.

Problem:
    A day is built from hourly parts: consumers want the whole day, and one big daily job is slow to fail and
    slow to repeat.
Guarantee:
    Branches are put together by column name, never by position, and a missing column or another type is
    refused by name; every row of every branch is kept (SQL's UNION would drop repeats). A join that would
    multiply rows is refused. In a pipeline, a dataset is made when everything that it reads has succeeded: a
    day over an hourly dataset when the day is over and none of its hours has failed.
Consequences:
    - Many branches at once are a load spike: ``parallel`` caps them, and with an hourly schedule each hour is
      made when it is due.
    - The child waits for the slowest branch: the run's outcomes tell how long each took.
    - Cut branches by what you will have to repeat alone. Very many small ones cost more to look after than to make: a
      schedule of every six hours with slices of an hour makes six of them in one run.
    - Streams are put together as well; that keys occur once cannot be counted of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.model.columns import taken_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["join_aligned", "union_aligned"]

_NAME = "Aligned Fan-In"


def union_aligned(frames: Mapping[str, DataFrame], *, allow_missing: bool = False) -> DataFrame:
    """All rows of all branches, matched by column name; ``allow_missing`` fills a lacking column with NULL.

    >>> paris = spark.createDataFrame([("v1", 3)], "visit string, pages int")
    >>> warsaw = spark.createDataFrame([(5, "v2")], "pages int, visit string")
    >>> union_aligned({"paris": paris, "warsaw": warsaw}).collect()
    [Row(visit='v1', pages=3), Row(visit='v2', pages=5)]
    """
    if not frames:
        raise ConfigurationError(f"{_NAME}: there is no branch to combine.")
    types: dict[str, tuple[str, str]] = {}
    for branch, frame in frames.items():
        for field in frame.schema:
            kind = field.dataType.simpleString()
            first, known = types.setdefault(field.name, (branch, kind))
            if known != kind:
                raise SchemaChangeError(
                    f"{_NAME}: the column {field.name} is {known} in branch '{first}' and {kind} in '{branch}'.",
                    hint=f'Cast it in one of them: F.col("{field.name}").cast("{known}").',
                )
    if not allow_missing:
        for branch, frame in frames.items():
            columns = frame.columns
            if missing := [name for name in types if name not in columns]:
                raise MissingColumnsError(pattern=f"{_NAME} (branch '{branch}')", missing=missing, present=columns)
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=allow_missing), frames.values())


def join_aligned(
    left: DataFrame,
    right: DataFrame,
    *,
    keys: Sequence[str],
    how: Literal["inner", "left", "full"] = "inner",
    multiplying: Literal["refuse", "allow"] = "refuse",
) -> DataFrame:
    """Rows side by side by key. Runs a job over the keys of both sides, unless ``multiplying="allow"``.

    >>> visits = spark.createDataFrame([("FR", 7)], "country string, visits int")
    >>> users = spark.createDataFrame([("FR", 2)], "country string, users int")
    >>> join_aligned(visits, users, keys=["country"]).collect()
    [Row(country='FR', visits=7, users=2)]
    """
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{_NAME}: 'keys' is a list of at least one column.")
    if multiplying not in ("refuse", "allow") or how not in ("inner", "left", "full"):
        raise ConfigurationError(f"{_NAME}: how is inner, left or full; multiplying is 'refuse' or 'allow'.")
    names = {"left": left.columns, "right": right.columns}
    for side, columns in names.items():
        if missing := [name for name in keys if name not in columns]:
            raise MissingColumnsError(pattern=f"{_NAME} ({side} side)", missing=missing, present=columns)
    if both := [name for name in taken_names(names["left"], names["right"]) if name not in keys]:
        raise ConfigurationError(f"{_NAME}: both sides have a column {both[0]}. Rename or drop it on one side.")
    if multiplying == "refuse":
        if left.isStreaming or right.isStreaming:
            raise ConfigurationError(
                f"{_NAME}: how often keys occur cannot be counted of a stream. Nothing was started.",
                hint='Say multiplying="allow" if each key matches at most once, or aggregate by the keys first.',
            )
        for side, frame in (("left", left), ("right", right)):
            _refuse_repeated_keys(frame, keys, side)
    return left.join(right, on=list(keys), how=how)


def _refuse_repeated_keys(frame: DataFrame, keys: Sequence[str], side: str) -> None:
    from pyspark.sql import functions as F

    # A NULL key matches nothing, so it multiplies nothing.
    known = frame.where(" AND ".join(f"`{key}` IS NOT NULL" for key in keys))
    counted = known.groupBy(*[f"`{key}`" for key in keys]).agg(F.count(F.lit(1)).alias("_lw_times"))
    rows = counted.where("_lw_times > 1").orderBy(F.desc("_lw_times"), *keys).limit(5).collect()
    if rows:
        samples = ", ".join(
            "(" + ", ".join(f"{key}={row[key]!r}" for key in keys) + f") {row['_lw_times']} times" for row in rows
        )
        raise InputError(
            f"{_NAME}: keys occur more than once on the {side} side and would multiply rows: {samples}.",
            hint='Aggregate that side by the keys first, or say multiplying="allow" if it is meant.',
        )
