"""Skew buffer of Horizontal Partitioner: let no partition take more than its quota of one micro-batch.

Problem:
    One partition of a stream holds most of a micro-batch. It decides how long the batch takes, and the rows of all
    other partitions wait for it.
Guarantee:
    Of each partition at most ``quota`` rows are within, the first in order; the others are surplus. Each row is in
    exactly one of the two, and the same rows give the same split: equal places in the order are told apart by the
    other columns. NULL is a partition of its own.
Consequences:
    - Rows of the skewed partition come later, those of all others as soon as before.
    - Whoever keeps the surplus and adds it to the next micro-batch writes a row once more per micro-batch while it
      waits. With ``limit`` no more than so many rows of a partition wait: above it the oldest go beyond the quota.
    - The rows are ranked, so that those of one partition are sorted by one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lakewright.errors import ConfigurationError, MissingColumnsError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["QuotaSplit", "SkewBuffer", "split_by_quota"]

_WHAT = "Skew buffer"
_RANK, _ALL = "_lw_rank", "_lw_all"


@dataclass(frozen=True, slots=True)
class SkewBuffer:
    """The option of a stream: ``skew_buffer=SkewBuffer(quota=50_000)``.

    Of a Kafka topic the partition and the offset are meant by themselves. A stream that follows another dataset names
    the columns that tell its partitions (``by``) and their order within one (``order``).
    """

    quota: int
    by: Sequence[str] | str | None = None
    order: Sequence[str] | str | None = None
    limit: int | None = None
    """At most so many rows of one partition wait; above it the oldest are delivered beyond the quota."""

    def __post_init__(self) -> None:
        _check_number("quota", self.quota)
        if self.limit is not None:
            _check_number("limit", self.limit)
        for name in ("by", "order"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else _columns(name, given))

    def to_json(self) -> dict[str, Any]:
        """What a commit tells of it, so that a repeat splits alike, whatever has been declared since."""
        return {"quota": self.quota, "by": list(self.by or ()), "order": list(self.order or ()), "limit": self.limit}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SkewBuffer:
        return cls(**value)


class QuotaSplit(NamedTuple):
    """The two parts of a frame; both are lazy."""

    within: DataFrame
    surplus: DataFrame


def split_by_quota(
    frame: DataFrame, *, by: Sequence[str] | str, order: Sequence[str] | str, quota: int, limit: int | None = None
) -> QuotaSplit:
    """Part the first ``quota`` rows of each partition, in order, from the surplus; lazy.

    With ``limit`` the surplus of a partition is at most so large: what is above it is within as well.

    >>> visits = spark.createDataFrame([("p0", 1), ("p0", 2), ("p0", 3), ("p1", 1)], "part string, place int")
    >>> split = split_by_quota(visits, by="part", order="place", quota=2)
    >>> split.surplus.collect()
    [Row(part='p0', place=3)]
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    _check_number("quota", quota)
    parts, places = _columns("by", by), _columns("order", order)
    schema = frame.schema
    if missing := [name for name in (*parts, *places) if name not in schema.names]:
        raise MissingColumnsError(pattern=_WHAT, missing=missing, present=schema.names)
    same = Window.partitionBy(*[F.col(f"`{name}`") for name in parts])
    rest = [name for name in schema.names if name not in parts and name not in places]
    # A repeat must draw the line at the same rows, also between those at the same place.
    order_of = [_sortable(name, schema[name].dataType) for name in (*places, *rest)]
    ranked = frame.withColumn(_RANK, F.row_number().over(same.orderBy(*order_of)))
    line = F.lit(quota)
    if limit is not None:
        _check_number("limit", limit)
        ranked = ranked.withColumn(_ALL, F.count(F.lit(1)).over(same))
        line = F.greatest(F.lit(quota).cast("bigint"), F.col(_ALL) - limit)
    is_within = F.col(_RANK) <= line
    return QuotaSplit(ranked.where(is_within).drop(_RANK, _ALL), ranked.where(~is_within).drop(_RANK, _ALL))


def _sortable(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    column = F.col(f"`{name}`")
    return column if _has_order(kind) else F.to_json(F.struct(column))


def _has_order(kind: DataType) -> bool:
    """Whether Spark can sort by a type: not by maps and variants, nor by what holds one."""
    from pyspark.sql.types import ArrayType, AtomicType, CalendarIntervalType, StructType, VariantType

    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    return isinstance(kind, AtomicType) and not isinstance(kind, CalendarIntervalType | VariantType)


def _columns(option: str, given: Sequence[str] | str) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given)
    if not found or not all(isinstance(name, str) and name for name in found):
        raise ConfigurationError(f"{_WHAT}: '{option}' is the name of a column, or a list of them, not {given!r}.")
    return found


def _check_number(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{_WHAT}: {option} is a number of rows from 1 on, not {value!r}.")
