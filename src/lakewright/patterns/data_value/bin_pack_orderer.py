"""Bin Pack Orderer: send records in bulk so that each entity's own keep their order.

Problem:
    A store takes requests of many records and may take only a part of one. Of 10:00, 10:10 and 10:20 it took the last;
    the retry puts the others behind it. One request per record keeps the order, and is far too slow.
Guarantee:
    The n-th record of each entity is in bin n, so a bin holds one record of an entity at most. Bins are sent one after
    another; what fails is tried again within its bin, and the next one begins when all of this one is acknowledged. So
    an entity's records are taken in the order of their time, whatever fails in between. Where a record is not taken in
    ``tries``, the task fails, says which and in which bin, and later bins are not sent. Rows without an entity or a
    time are refused before any record is sent.
Consequences:
    - The order holds within one run. A repeat of the job sends everything again: each record carries the same id and
      sequence number, by which consumers leave out what they have (``id``), or take only what is newer (``sequence``).
    - All records of an entity must be in one task: rows are moved for that, unless Spark knows, or ``together``
      promises, that they are.
    - An entity with very many records makes as many bins: if most of it is one entity, requests are small.
    - A bin above the limit of a request is sent in several; all of them are acknowledged before the next bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.ordered_delivery import Patience, Turns, deliver_bins, pack
from lakewright.patterns.data_value.ordered_rows import (
    as_names,
    check_names,
    number_rows,
    records_of,
    refuse_unordered,
    send_rows,
)
from lakewright.patterns.data_value.ordered_sinks import Delivered, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BinPackOrderer", "deliver_bins", "pack", "pack_in_order", "send_in_bins"]

_WHAT = "Bin Pack Orderer"


@dataclass(frozen=True, slots=True)
class BinPackOrderer:
    """How records are packed and sent; in a pipeline ``order=BinPackOrderer(...)`` of a destination."""

    per: str | Sequence[str] = field()
    """The entity whose records keep their order: one column or several."""
    by: str = field()
    """The column that tells their order."""
    then: Sequence[str] = ()
    """Further columns, where times are equal; after them the content decides."""
    together: bool = False
    """Whether all rows of an entity are already in one partition, so that none has to be moved."""
    workers: int = 1
    """How many connections a task sends through at once, each with entities of its own."""
    tries: int = 5
    """How often a record is sent before its task fails."""
    pause_seconds: float = 0.2
    """The wait before the second try; it doubles with each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", as_names(self.per))
        object.__setattr__(self, "then", as_names(self.then))
        if not self.per or not self.by:
            raise ConfigurationError(f"{_WHAT}: 'per' names the entity and 'by' the time; both are needed.")
        if self.tries < 1 or self.workers < 1 or self.pause_seconds < 0:
            raise ConfigurationError(f"{_WHAT}: tries and workers are 1 or more, pause_seconds 0 or more.")

    @property
    def entity(self) -> tuple[str, ...]:
        return as_names(self.per)

    def check_sink(self, sink: Sink) -> None:
        """Any sink that takes more than one record at a time will do; the others want a FIFO Orderer."""
        if sink.commits == "each":
            raise ConfigurationError(
                f"{_WHAT}: {sink.shown} takes one record at a time, so bins gain nothing.",
                hint='Use FifoOrderer(..., variant="individual", workers=...).',
            )

    def arrange(self, df: DataFrame, *, into: str) -> DataFrame:
        """All rows in the order of their bins, for one sender: lazy, and sorted as a whole."""
        check_names(_WHAT, df, (*self.entity, self.by, *self.then))
        numbered = number_rows(df, per=self.entity, by=self.by, then=self.then, into=into, together=self.together)
        return numbered.orderBy(into, *[quoted(name) for name in self.entity])


def pack_in_order(df: DataFrame, *, orderer: BinPackOrderer, output: str | None = None, into: str = "bin") -> DataFrame:
    """Number each row by its place among those of its entity, and sort each partition by bin; lazy.

    >>> visits = spark.createDataFrame([("A", 2), ("A", 1), ("B", 5)], "key string, at int").coalesce(1)
    >>> packed = pack_in_order(visits, orderer=BinPackOrderer(per="key", by="at", together=True))
    >>> [tuple(row) for row in packed.collect()]
    [('A', 1, 1), ('B', 5, 1), ('A', 2, 2)]
    """
    per = tuple(dict.fromkeys([*as_names(output), *orderer.entity]))
    check_names(_WHAT, df, (*per, orderer.by, *orderer.then))
    numbered = number_rows(df, per=per, by=orderer.by, then=orderer.then, into=into, together=orderer.together)
    first = [quoted(name) for name in as_names(output)]
    return numbered.sortWithinPartitions(*first, into, *[quoted(name) for name in per])


def send_in_bins(
    df: DataFrame,
    sink: Sink,
    *,
    orderer: BinPackOrderer,
    value: str | None = None,
    record: Sequence[str] = (),
    output: str | None = None,
) -> Delivered:
    """Runs a job that refuses rows without a place in the order, and one whose tasks send the rows bin by bin.

    ``value`` is a column that is sent as it is (else all columns, as JSON), ``record`` the columns that tell a record
    (else its content), ``output`` the column that names which output of the sink gets it.
    """
    orderer.check_sink(sink)
    names = dict.fromkeys((*as_names(output), *orderer.entity, orderer.by, *orderer.then, *record, *as_names(value)))
    check_names(_WHAT, df, list(names))
    refuse_unordered(df, per=[*as_names(output), *orderer.entity], by=orderer.by, what=_WHAT)
    packed = pack_in_order(df, orderer=orderer, output=output, into="_lw_bin")
    records = records_of(
        packed, per=orderer.entity, sequence="_lw_bin", value=value, record=record, output=output
    )  # fmt: skip
    patience = Patience(orderer.tries, orderer.pause_seconds)
    return send_rows(records, sink, Turns(deliver_bins, orderer.workers), patience, what=_WHAT)
