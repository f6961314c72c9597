"""Where a stream of a topic begins to read again: at the beginning of a micro-batch, as the rows tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.connectors.kafka_windows import after, ranges_of
from lakewright.model.arrivals import Window
from lakewright.model.columns import ARRIVAL_COLUMN, OFFSET_COLUMN, PARTITION_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["first_batch_since", "next_offsets"]


def first_batch_since(rows: DataFrame, position: Window) -> tuple[int, Window] | None:
    """The first arrival with a record at or after a position, and where it began in each partition.

    Whole arrivals are read again, so that none of them holds for a part only. Runs two jobs; the driver gets a row per
    partition.
    """
    from pyspark.sql import functions as F

    since = rows.where(after(position)).agg(F.min(ARRIVAL_COLUMN)).first()
    if since is None or since[0] is None:
        return None
    arrival, is_before = int(since[0]), F.col(ARRIVAL_COLUMN) < since[0]
    offset = F.col(OFFSET_COLUMN)
    by_partition = rows.groupBy(PARTITION_COLUMN).agg(
        F.max(F.when(is_before, offset + 1)), F.min(F.when(~is_before, offset))
    )
    begins = {partition: before if before is not None else first for partition, before, first in by_partition.collect()}
    starts = {p: begins.get(p, first) for p, (first, _) in ranges_of(position).items()}
    return arrival, {**position, "partitions": {str(p): [at, at] for p, at in sorted(starts.items())}}


def next_offsets(rows: DataFrame) -> dict[int, int]:
    """The offset after the last one of each partition. Runs a job."""
    from pyspark.sql import functions as F

    return {p: int(last) + 1 for p, last in rows.groupBy(PARTITION_COLUMN).agg(F.max(OFFSET_COLUMN)).collect()}
