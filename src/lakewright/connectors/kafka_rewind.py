"""Where a stream of a topic begins to read again, as its rows tell it, and which of them the topic could not give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakewright.connectors.kafka_client import TopicState
from lakewright.connectors.kafka_windows import after, listed
from lakewright.model.arrivals import Window
from lakewright.model.columns import ARRIVAL_COLUMN, DAY_COLUMN, OFFSET_COLUMN, PARTITION_COLUMN
from lakewright.model.streams import LostRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["batch_after", "batch_since", "first_offsets", "lost_rows", "next_offsets", "starts_of"]


def batch_since(rows: DataFrame, position: Window) -> int | None:
    """The first arrival with a record at or after a position; None: there is none. Runs a job."""
    return _first_arrival(rows, after(position))


def batch_after(rows: DataFrame, arrival: int) -> int | None:
    """The arrival that follows another one; None: it is the last. Runs a job."""
    return _first_arrival(rows, f"{ARRIVAL_COLUMN} > {arrival}")


def _first_arrival(rows: DataFrame, where: str) -> int | None:
    from pyspark.sql import functions as F

    found = rows.where(where).agg(F.min(ARRIVAL_COLUMN)).first()
    return None if found is None or found[0] is None else int(found[0])


def starts_of(
    rows: DataFrame, arrival: int, *, low: Mapping[int, int], began: Mapping[int, int], read: Mapping[int, int]
) -> dict[int, int]:
    """Where an arrival began in each partition. Runs a job; the driver gets a row per partition.

    Whole arrivals are read again, so that none of them holds for a part only. A partition without rows is read from
    where the stream began. One that the stream did not know then is left out. ``read`` is up to where the stream has
    read, or was told what is lost.
    """
    from pyspark.sql import functions as F

    is_before, offset = F.col(ARRIVAL_COLUMN) < arrival, F.col(OFFSET_COLUMN)
    by_partition = rows.groupBy(PARTITION_COLUMN).agg(
        F.max(F.when(is_before, offset + 1)), F.min(F.when(~is_before, offset))
    )
    places = {p: (at, read.get(p, at)) for p, at in began.items() if p in low}
    for partition, before, first in by_partition.collect():
        at = first if before is None else before
        places[partition] = at, read.get(partition, at) if first is None else first
    # Between what came before and the first of it, or all that was read, nothing is left to be read: it may be gone.
    return {p: max(at, min(low.get(p, upto), upto)) for p, (at, upto) in places.items()}


def first_offsets(rows: DataFrame) -> dict[int, int]:
    """The first offset of each partition. Runs a job."""
    from pyspark.sql import functions as F

    return {p: int(first) for p, first in rows.groupBy(PARTITION_COLUMN).agg(F.min(OFFSET_COLUMN)).collect()}


def next_offsets(rows: DataFrame) -> dict[int, int]:
    """The offset after the last one of each partition. Runs a job."""
    from pyspark.sql import functions as F

    return {p: int(last) + 1 for p, last in rows.groupBy(PARTITION_COLUMN).agg(F.max(OFFSET_COLUMN)).collect()}


def lost_rows(rows: DataFrame, state: TopicState, ends: Mapping[int, int]) -> LostRows | None:
    """Which of some rows the topic no longer holds. Runs a job that reads places only.

    ``ends`` are the true ends of the partitions, open transactions included.
    """
    from pyspark.sql import functions as F

    held = " OR ".join(
        f"({PARTITION_COLUMN} = {p} AND {OFFSET_COLUMN} >= {first} AND {OFFSET_COLUMN} < {ends[p]})"
        for p, first in sorted(state.low.items())
    )
    day = F.col(DAY_COLUMN) if DAY_COLUMN in rows.columns else F.lit(None)
    found = (
        rows.where(f"NOT ({held})")
        .groupBy(PARTITION_COLUMN)
        .agg(
            F.count(F.lit(1)),
            F.min(OFFSET_COLUMN),
            F.max(OFFSET_COLUMN),
            F.max(ARRIVAL_COLUMN),
            F.min(day).cast("string"),
            F.max(day).cast("string"),
        )
        .collect()
    )
    if not found:
        return None
    places = listed({p: (int(first), int(last) + 1) for p, _, first, last, *_ in found})
    days = sorted({str(one) for *_, first, last in found for one in (first, last) if one is not None})
    came = f", read between {days[0]} and {days[-1]}" if days else ""
    count = sum(int(row[1]) for row in found)
    why = f"the topic '{state.topic}' no longer holds {count:,} of these records ({places}{came})"
    return LostRows(count, why, max(int(row[4]) for row in found))
