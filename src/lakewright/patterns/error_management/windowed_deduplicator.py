"""Windowed Deduplicator: keep one row of each key within a slice.

Problem:
    A producer that retries sends some records twice.
Guarantee:
    Of the rows with equal keys one is kept, always the same one: the first (or last) by ``order_by``, then by
    content. Rows whose key is NULL are all kept, since nothing tells whether they are the same.
Consequences:
    - Only repeats within the slice are found; ``drop_repeats(known=...)`` also drops the keys of rows loaded
      earlier, at the price of a join with them.
    - It is not exactly-once delivery: the output still needs an idempotent writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import ARRIVAL_COLUMN, SYSTEM_PREFIX
from lakewright.model.protocols import GuardContext, Guarded

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["WindowedDeduplicator", "drop_repeats"]

_NAME = "Windowed Deduplicator"


@dataclass(frozen=True, slots=True)
class WindowedDeduplicator:
    """The guard of the pipeline layer: ``keep`` says which of the repeats stays, by ``order_by``."""

    keys: Sequence[str]
    order_by: Sequence[str] = ()
    keep: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError(f"{_NAME}: 'keys' is a list of at least one column.")
        if isinstance(self.order_by, str):
            raise ConfigurationError(f"{_NAME}: 'order_by' is a list of columns, such as ['{self.order_by}'].")
        if self.keep not in ("first", "last"):
            raise ConfigurationError(f"{_NAME}: keep is 'first' or 'last', not {self.keep!r}.")
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "order_by", tuple(self.order_by))

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        kept = drop_repeats(frame, keys=self.keys, order_by=self.order_by, keep=self.keep)
        return Guarded(kept=kept, drops_duplicates=True)


def drop_repeats(
    df: DataFrame,
    *,
    keys: Sequence[str],
    order_by: Sequence[str] = (),
    keep: Literal["first", "last"] = "first",
    known: DataFrame | None = None,
) -> DataFrame:
    """Keep one row per key, and none whose key ``known`` (rows loaded earlier, not those of this batch) has.

    >>> visits = spark.createDataFrame([("v1", 2), ("v1", 1), (None, 1), (None, 1)], "visit string, page int")
    >>> sorted(drop_repeats(visits, keys=["visit"], order_by=["page"]).collect(), key=str)
    [Row(visit='v1', page=1), Row(visit=None, page=1), Row(visit=None, page=1)]
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rule = WindowedDeduplicator(keys=keys, order_by=order_by, keep=keep)
    columns = df.columns
    if missing := [name for name in (*rule.keys, *rule.order_by) if name not in columns]:
        raise MissingColumnsError(pattern=_NAME, missing=missing, present=columns)
    if known is not None:
        present = known.columns
        if missing := [name for name in rule.keys if name not in present]:
            raise MissingColumnsError(pattern=f"{_NAME} (known)", missing=missing, present=present)
        # An anti join never matches NULL, so that rows without a key stay here too.
        df = df.join(known.select(*rule.keys).distinct(), on=list(rule.keys), how="left_anti").select(
            *[f"`{name}`" for name in columns]
        )
    unknown = F.expr(" OR ".join(f"`{key}` IS NULL" for key in rule.keys))
    content = _content(df)
    order = [F.col(f"`{name}`") for name in rule.order_by]
    if rule.keep == "last":
        order = [column.desc_nulls_last() for column in order]
    if ARRIVAL_COLUMN in columns:
        # In a pipeline the delivery that came first is the original, and a later one the repeat.
        order.append(F.col(ARRIVAL_COLUMN).desc() if rule.keep == "last" else F.col(ARRIVAL_COLUMN))
    # Rows without a key are spread by their content: together they would be one huge partition.
    same = Window.partitionBy(*[f"`{key}`" for key in rule.keys], F.when(unknown, content))
    ranked = df.withColumn("_lw_rank", F.row_number().over(same.orderBy(*order, content)))
    return ranked.where((F.col("_lw_rank") == 1) | unknown).drop("_lw_rank")


def _content(df: DataFrame) -> Column:
    from pyspark.sql import functions as F

    # System columns tell where a row came from, which differs between two lakes with the same rows.
    fields = [field for field in df.schema if not field.name.startswith(SYSTEM_PREFIX)]
    # A map has no hash, and its text does.
    columns = [(F.col(f"`{field.name}`"), field.dataType.simpleString()) for field in fields]
    return F.xxhash64(*[column.cast("string") if "map<" in kind else column for column, kind in columns])
