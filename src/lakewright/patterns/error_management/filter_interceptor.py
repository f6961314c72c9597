"""Filter Interceptor: remove rows by named conditions, and know how many each of them removed.

Problem:
    A job kept 85 % of its rows and keeps 10 % since the last release. Spark folds all filters into one and tells one
    number: nobody knows whether the data changed, or which condition is wrong.
Guarantee:
    The rows kept are those of a plain filter by all conditions. Each row removed counts for exactly one of them, so
    that ``read = kept + removed``; the figures come from an aggregate, so that a task that is tried again, or a frame
    that is used twice, changes nothing. In a pipeline they are known before the write and travel in its commit: a
    repeat of the slice replaces them, a recovered commit still has them, and a share above ``stop_above`` publishes
    nothing.
Consequences:
    - Conditions must be deterministic: they are asked once to count, and once more by the write.
    - Counting is a narrow pass over the columns that the conditions read; ``sample`` makes it cheaper, 0 leaves it out.
    - Rows that are removed are counted, not kept: where they may be wanted again, use Dead-Letter.
    - Behind a Windowed Deduplicator the narrow pass has to find the repeats as well: put filters before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.protocols import EACH, FIRST, READ, FilterTally, GuardContext, Guarded
from lakewright.patterns.error_management.filter_blame import find_failing_row
from lakewright.patterns.error_management.filter_conditions import (
    Condition,
    check_conditions,
    conditions_of,
    first_broken,
    removed_by,
)
from lakewright.patterns.error_management.filter_sql import filter_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FilterInterceptor", "Intercepted", "filter_sql", "find_failing_row", "intercept_filters"]

_NAME = "Filter Interceptor"
_BROKEN = "_lw_broken"
_SEED = 7


@dataclass(frozen=True, slots=True)
class Intercepted:
    """``kept``: the rows that fulfil every condition. ``counts``: a row per condition, and one for the rows kept."""

    kept: DataFrame
    counts: DataFrame


@dataclass(frozen=True, slots=True)
class FilterInterceptor:
    """The guard of the pipeline layer.

    ``filters`` are conditions that a row has to fulfil, by name. ``overlaps`` also counts, for each condition, every
    row that breaks it, whatever else the row breaks: then each condition is asked of each row. ``warn_above`` and
    ``stop_above`` are shares (0 to 1) of the rows judged, for every condition or by its name. ``sample`` is the share
    of rows that are counted: 1 all of them, 0 none.
    """

    filters: Mapping[str, Condition]
    overlaps: bool = False
    warn_above: float | Mapping[str, float] | None = None
    stop_above: float | Mapping[str, float] | None = None
    sample: float = 1.0

    def __post_init__(self) -> None:
        check_conditions(self.filters)
        if not 0 <= self.sample <= 1:
            raise ConfigurationError(f"{_NAME}: sample is a share from 0 to 1, not {self.sample}.")
        for option in ("warn_above", "stop_above"):
            limits = self.limits(option)
            if unknown := sorted(set(limits) - set(self.filters)):
                raise ConfigurationError(
                    f"{_NAME}: {option} names '{unknown[0]}', which is none of the filters: {', '.join(self.filters)}."
                )
            if wrong := [share for share in limits.values() if not 0 <= share <= 1]:
                raise ConfigurationError(f"{_NAME}: {option} is a share from 0 to 1, not {wrong[0]}.")
            if limits and not self.sample:
                raise ConfigurationError(f"{_NAME}: {option} needs the rows to be counted, and sample is 0.")

    def limits(self, option: str) -> dict[str, float]:
        """The limit of each filter that has one."""
        given = getattr(self, option)
        if given is None:
            return {}
        return dict(given) if isinstance(given, Mapping) else dict.fromkeys(self.filters, given)

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        conditions = conditions_of(frame, self.filters)
        counted = frame.sample(fraction=self.sample, seed=_SEED) if 0 < self.sample < 1 else frame
        tally = FilterTally(
            judged=frame,
            conditions=conditions,
            totals=_totals(counted, conditions, overlaps=self.overlaps) if self.sample else None,
            stop_above=self.limits("stop_above"),
            sample=self.sample,
        )
        return Guarded(kept=frame.where(_fulfils_all(conditions)), tally=tally)


def intercept_filters(df: DataFrame, *, filters: Mapping[str, Condition], overlaps: bool = False) -> Intercepted:
    """Keep the rows that fulfil every condition; tell how many each of them removed.

    A row that breaks several counts for the first of them; with ``overlaps`` a second column counts it for each.

    >>> devices = spark.createDataFrame([("pc", 3), (None, 1), ("x", None)], "type string, version int")
    >>> found = intercept_filters(devices, filters={"has_type": "type IS NOT NULL", "long_type": "length(type) > 1"})
    >>> found.kept.collect()
    [Row(type='pc', version=3)]
    >>> [tuple(row) for row in found.counts.collect()]
    [('has_type', 1), ('long_type', 1), (None, 1)]
    """
    from pyspark.sql import functions as F

    check_conditions(filters)
    conditions = conditions_of(df, filters)
    rows = []
    for name in filters:
        told = [F.lit(name).alias("filter"), F.col(f"`{FIRST}{name}`").alias("removed")]
        rows.append(F.struct(*told, *([F.col(f"`{EACH}{name}`").alias("breaks")] if overlaps else [])))
    removed = reduce(lambda one, other: one + other, [F.col(f"`{FIRST}{name}`") for name in filters])
    kept = [F.lit(None).cast("string").alias("filter"), (F.col(READ) - removed).alias("removed")]
    rows.append(F.struct(*kept, *([F.lit(None).cast("long").alias("breaks")] if overlaps else [])))
    counts = _totals(df, conditions, overlaps=overlaps).select(F.inline(F.array(*rows)))
    return Intercepted(kept=df.where(_fulfils_all(conditions)), counts=counts)


def _totals(df: DataFrame, conditions: Mapping[str, Column], *, overlaps: bool) -> DataFrame:
    """One row: the rows read, the rows by the first condition that they break, the rows that break each."""
    from pyspark.sql import functions as F

    each = {f"{EACH}{name}": removed_by(name, conditions) for name in conditions} if overlaps else {}
    # Told once per row, and only then counted: an aggregate of the conditions would ask them once per name.
    told = df.select(first_broken(conditions).alias(_BROKEN), *[broken.alias(name) for name, broken in each.items()])
    first = [F.count_if(F.col(_BROKEN) == place).alias(f"{FIRST}{name}") for place, name in enumerate(conditions)]
    return told.agg(F.count(F.lit(1)).alias(READ), *first, *[F.count_if(f"`{name}`").alias(name) for name in each])


def _fulfils_all(conditions: Mapping[str, Column]) -> Column:
    """In the order given, as AND asks them: a later condition may rely on an earlier one."""
    return reduce(lambda one, other: one & other, conditions.values())
