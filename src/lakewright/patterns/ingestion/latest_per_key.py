"""Folding a log by key: the state that messages add up to, whatever of the older ones is still there.

A compacted topic keeps the latest message of each key, and drops older ones when its broker finds the time: how many
are left cannot be told. A reader that folds gets the same state from all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["keep_latest_per_key"]

_PLACE = "_lw_place"


def keep_latest_per_key(
    messages: DataFrame,
    *,
    keys: Sequence[str] = ("key",),
    order: Sequence[str] = ("offset", "partition"),
    value: str | None = "value",
) -> DataFrame:
    """Keep the last message of each key, by ``order``; a key whose last ``value`` is NULL (a tombstone) is gone.

    With ``value=None`` such rows stay. A key lies in one partition, so that its offsets tell the order; where the
    number of partitions was changed, put the timestamp first.

    >>> log = spark.createDataFrame([("a", "1", 0), ("b", "1", 1), ("a", "2", 2), ("b", None, 3)],
    ...                             "key string, value string, offset int")
    >>> keep_latest_per_key(log, order=["offset"]).collect()
    [Row(key='a', value='2', offset=2)]
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    for name, given in (("keys", keys), ("order", order)):
        if isinstance(given, str) or not given:
            raise ConfigurationError(f"Compactor: '{name}' is a list of at least one column.")
    columns = messages.columns
    wanted = [*keys, *order, *([] if value is None else [value])]
    if missing := [name for name in wanted if name not in columns]:
        raise MissingColumnsError(pattern="Compactor (keep_latest_per_key)", missing=missing, present=columns)
    latest = Window.partitionBy(*[F.col(f"`{name}`") for name in keys])
    latest = latest.orderBy(*[F.col(f"`{name}`").desc_nulls_last() for name in order])
    kept = messages.withColumn(_PLACE, F.row_number().over(latest)).where(F.col(_PLACE) == 1).drop(_PLACE)
    return kept if value is None else kept.where(F.col(f"`{value}`").isNotNull())
