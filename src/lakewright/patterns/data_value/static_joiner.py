"""Joining a reference as of a moment: each row gets the version that was valid at its own time.

Guarantee:
    The result has exactly the rows of the left side, in any order, if the versions of a key do not overlap
    (``Scd2`` sees to that). A row whose key is unknown or NULL gets NULLs; one from before the first known
    version gets NULLs, or that first version with ``before_first="extend"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["join_as_of"]


def join_as_of(
    df: DataFrame,
    reference: DataFrame,
    *,
    keys: Sequence[str],
    at: str,
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    before_first: Literal["null", "extend"] = "null",
) -> DataFrame:
    """Add the reference's columns in the version that was valid at ``at``.

    >>> visits = spark.createDataFrame([(1, 5)], "user int, time int")
    >>> users = spark.createDataFrame([(1, "FR", 1, 4), (1, "PL", 4, None)],
    ...     "user int, country string, valid_from int, valid_to int")
    >>> join_as_of(visits, users, keys=["user"], at="time").collect()
    [Row(user=1, time=5, country='PL')]
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if before_first not in ("null", "extend"):
        raise ConfigurationError(f"join_as_of: before_first is 'null' or 'extend', not {before_first!r}.")
    left, right = df.columns, reference.columns
    if missing := [name for name in (*keys, at) if name not in left]:
        raise MissingColumnsError(pattern="join_as_of (left side)", missing=missing, present=left)
    if missing := [name for name in (*keys, valid_from, valid_to) if name not in right]:
        raise MissingColumnsError(pattern="join_as_of (reference)", missing=missing, present=right)
    carried = [name for name in right if name not in (*keys, valid_from, valid_to)]
    if clash := [name for name in carried if name in left]:
        raise ConfigurationError(
            f"join_as_of: both sides have a column {clash[0]}. Rename or drop it on one side first."
        )
    begin = F.col(f"`{valid_from}`")
    if before_first == "extend":
        first = F.row_number().over(Window.partitionBy(*keys).orderBy(valid_from)) == 1
        begin = F.when(first, F.lit(None)).otherwise(begin)
    versions = reference.select(
        *[F.col(f"`{key}`").alias(f"_lw_key_{i}") for i, key in enumerate(keys)],
        begin.alias("_lw_from"),
        F.col(f"`{valid_to}`").alias("_lw_to"),
        *[f"`{name}`" for name in carried],
    )
    same_key = [F.col(f"`{key}`") == F.col(f"_lw_key_{i}") for i, key in enumerate(keys)]
    moment = F.col(f"`{at}`")
    begun = F.col("_lw_from") <= moment
    if before_first == "extend":
        begun = F.col("_lw_from").isNull() | begun
    valid = begun & (F.col("_lw_to").isNull() | (moment < F.col("_lw_to")))
    condition = valid
    for one in same_key:
        condition = condition & one
    return df.join(versions, on=condition, how="left").select(*[f"`{name}`" for name in (*left, *carried)])
