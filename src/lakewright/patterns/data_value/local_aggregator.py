"""Local Aggregator: sum up rows that already lie together, without moving them.

Problem:
    A job groups the visits of a topic by visitor, and Spark moves every row to do so, although all visits of a visitor
    are in one partition of the topic already.
Guarantee:
    The result is that of Distributed Aggregator, and no row moves to another task: a plan that would move rows is
    refused, and so is a layout that does not promise that the rows of a group lie together. The last group of a
    partition comes out as the others do, an empty partition gives nothing, and NULL is a group of its own. A repeat on
    the same rows gives the same rows, with the same ``key_column``.
Consequences:
    - The layout is fixed: another number of partitions splits every key. It is recorded (``KeyLayout``) and compared
      before anything is read; ``reorganize_topic`` writes all records anew, while the producers stand still.
    - It serves one key. For any other use ``aggregate_by_key``, or write the records twice.
    - Nothing makes producers keep to one partitioner: ``refuse_misplaced_keys`` tells, by a job of its own.
    - On a stream each micro-batch is summed up by itself (in ``foreachBatch``): what spans two of them comes as two
      parts, which ``combine_parts`` puts together. State across micro-batches needs Spark's own exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.columns import taken_names
from lakewright.model.key_layouts import KeyLayout
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.distributed_aggregator import DistributedAggregator
from lakewright.patterns.data_value.local_parts import in_place_parts
from lakewright.patterns.data_value.measures import Measure, parse_measures
from lakewright.patterns.data_value.plan_check import check_plan, refuse_exchanges
from lakewright.patterns.idempotency.stable_hash import hash_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KeyLayout", "Layout", "LocalAggregator", "aggregate_in_place", "join_in_place", "refuse_misplaced_keys"]

Layout = KeyLayout | Literal["buckets", "one task"]
_WHAT = "Local Aggregator"
_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class LocalAggregator:
    """What is aggregated by what, and what promises that the rows of a group lie together; checked on loading."""

    measures: Mapping[str, str]
    by: Sequence[str]
    layout: Layout
    """``KeyLayout(...)``: partitions of a keyed topic. ``"buckets"``: a bucketed table, or whatever Spark itself knows
    to lie together. ``"one task"``: a small dataset, brought to one task as it is read."""
    keep_parts: bool = False
    key_column: str | None = None
    """A column with a key of each row that a repeat gives too, by which consumers drop repeats."""

    def __post_init__(self) -> None:
        if isinstance(self.by, str) or not self.by:
            raise ConfigurationError(f"{_WHAT}: 'by' is a list of at least one column, not {self.by!r}.")
        if not isinstance(self.layout, KeyLayout) and self.layout not in ("buckets", "one task"):
            raise ConfigurationError(
                f"{_WHAT}: layout is KeyLayout(...), 'buckets' or 'one task', not {self.layout!r}.",
                hint="Without a layout nothing says that rows lie together: use aggregate_by_key.",
            )
        plain = DistributedAggregator(self.measures, by=self.by, keep_parts=self.keep_parts)
        object.__setattr__(self, "by", plain.by)
        if isinstance(self.layout, KeyLayout):
            self._check_keys(self.layout)
        names = [*self.by, *self.measures]
        if self.key_column is not None and taken_names([self.key_column], names):
            raise ConfigurationError(f"{_WHAT}: the key_column {self.key_column} is one of {', '.join(names)}.")

    def rows(self, df: DataFrame, *, batch: str | int | None = None) -> DataFrame:
        """The groups of some rows; lazy. ``batch`` tells micro-batches apart in the key of a row."""
        if df.isStreaming:
            raise ConfigurationError(
                f"{_WHAT}: a streaming frame cannot be sorted within its partitions. Nothing was started.",
                hint="Call it for each micro-batch: writeStream.foreachBatch(lambda rows, n: ...), with batch=n.",
            )
        present = df.columns
        if missing := [name for name in self.by if name not in present]:
            raise MissingColumnsError(pattern=_WHAT, missing=missing, present=present)
        if isinstance(self.layout, KeyLayout):
            refuse_exchanges(df, pattern=_WHAT)  # rows that were moved no longer lie as the topic's did
            made = in_place_parts(df, by=self.by, measures=self._parsed(), keep_parts=self.keep_parts)
        else:
            near = df.coalesce(1) if self.layout == "one task" else df
            made = DistributedAggregator(self.measures, by=self.by, keep_parts=self.keep_parts).cells(near)
            _refuse_more_exchanges(near, made)
        return made if self.key_column is None else self._with_key(made, self.key_column, batch)

    def _check_keys(self, layout: KeyLayout) -> None:
        if missing := [key for key in layout.keys if key not in self.by]:
            raise ConfigurationError(
                f"{_WHAT}: rows lie together by {', '.join(layout.keys)}, but they are grouped by "
                f"{', '.join(self.by)}: without {missing[0]} a group may lie in several partitions.",
                hint="Group by the layout's keys too, or use aggregate_by_key.",
            )
        for one in self._parsed():
            if one.kind in ("other", "sketch"):
                raise ConfigurationError(
                    f"{_WHAT}: the measure {one.name}, {one.text}, cannot be made partition by partition.",
                    hint="Here can be made: count, count_if, sum, min, max, avg and count(DISTINCT one column), each "
                    "on its own. For any other measure use aggregate_by_key.",
                )

    def _parsed(self) -> tuple[Measure, ...]:
        return parse_measures(self.measures, pattern=_WHAT)

    def _with_key(self, made: DataFrame, name: str, batch: str | int | None) -> DataFrame:
        from pyspark.sql import functions as F

        # As JSON of its own each part is never NULL, so that the group of NULL has a key too.
        parts = [F.to_json(F.struct(F.col(quoted(key)).alias("v"))) for key in self.by]
        return made.withColumn(name, hash_columns([*parts, F.lit("" if batch is None else str(batch))]))


def aggregate_in_place(
    df: DataFrame,
    *,
    by: Sequence[str],
    measures: Mapping[str, str],
    layout: Layout,
    keep_parts: bool = False,
    key_column: str | None = None,
    batch: str | int | None = None,
) -> DataFrame:
    """Group rows that lie together and reduce each group to its measures, without moving a row; lazy.

    >>> visits = spark.createDataFrame([("ann", 10), ("bob", 60), ("ann", 20)], "person string, seconds int")
    >>> found = aggregate_in_place(visits, by=["person"], measures={"seconds": "avg(seconds)"}, layout="one task")
    >>> sorted(tuple(row) for row in found.collect())
    [('ann', 15.0), ('bob', 60.0)]
    """
    return LocalAggregator(measures, by, layout, keep_parts, key_column).rows(df, batch=batch)


def join_in_place(left: DataFrame, right: DataFrame, *, keys: Sequence[str], how: str = "inner") -> DataFrame:
    """Join two frames that lie alike, such as tables with the same buckets; lazy, and refused where rows would move.

    A small side may be copied to every task instead (``F.broadcast(right)``).
    """
    joined = left.join(right, on=list(keys), how=how)
    _refuse_more_exchanges(left, joined, right)
    return joined


def refuse_misplaced_keys(
    df: DataFrame, *, keys: Sequence[str], partition: str | None = None, samples: int = _SAMPLES
) -> None:
    """Runs a job that looks for keys in more than one partition, and refuses them with a few samples.

    ``partition`` is the column that tells a row's partition, such as Kafka's; without it the frame's own tasks count.
    """
    from pyspark.sql import functions as F

    present = df.columns
    if missing := [name for name in (*keys, *([partition] if partition else [])) if name not in present]:
        raise MissingColumnsError(pattern=_WHAT, missing=missing, present=present)
    place = F.spark_partition_id() if partition is None else F.col(quoted(partition))
    placed = df.select(*[F.col(quoted(key)) for key in keys], place.alias("_lw_place"))
    found = placed.groupBy(*[F.col(quoted(key)) for key in keys]).agg(
        F.sort_array(F.collect_set("_lw_place")).alias("_lw_places")
    )
    wrong = found.where("size(_lw_places) > 1").orderBy(*[F.col(quoted(key)) for key in keys]).limit(samples).collect()
    if wrong:
        told = "; ".join(
            f"{', '.join(str(value)[:40] for value in row[: len(keys)])} in {', '.join(map(str, row['_lw_places']))}"
            for row in wrong
        )
        raise InputError(
            f"{_WHAT}: the layout does not hold: keys ({', '.join(keys)}) lie in more than one partition: {told}.",
            hint="Are there producers with another partitioner, or were partitions added? reorganize_topic writes all "
            "records anew; aggregate_by_key needs no layout.",
        )


def _refuse_more_exchanges(before: DataFrame, after: DataFrame, *others: DataFrame) -> None:
    """What the inputs themselves cost is theirs; nothing may come on top."""
    known = sum(len(check_plan(frame).shuffles) for frame in (before, *others))
    found = check_plan(after).shuffles
    if len(found) > known:
        told = "; ".join(str(one) for one in found)
        raise ConfigurationError(
            f"{_WHAT}: the plan moves rows between tasks: {told}. Nothing was started.",
            hint="Tables need the same bucket columns and the same number of buckets, as the keys say; or use "
            "aggregate_by_key or a plain join, which move rows on purpose.",
        )
