"""Which rows of a side table count: those that the attempt set aside whose receipt counts for their slice.

A slice that is made again keeps what was set aside of it before beside what is set aside now, until the new attempt has
a receipt: then that one's rows count, and the others are superseded. Nothing is moved for it, so no kill and no failure
can leave letters of what was never published in the place of those that belong to the published rows; and a rollback to
the attempt before has its letters again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakewright.lake.lake import Lake
from lakewright.model.sql import text_literal
from lakewright.pipelines.graph import Graph
from lakewright.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["COUNTS", "rows_that_count", "side_rows"]

COUNTS = "_lw_counts"
_LIVE = "of string, cell string, live bigint"


def rows_that_count(lake: Lake, store: Store, graph: Graph, table: str) -> DataFrame:
    """The rows of the attempts that are published; of a slice that never was, those of its newest attempt. Lazy."""
    return side_rows(lake, store, graph, table).where(COUNTS).drop(COUNTS)


def side_rows(lake: Lake, store: Store, graph: Graph, table: str) -> DataFrame:
    """The same, and as evidence what a newer attempt set aside that has published nothing; ``COUNTS`` tells them apart.

    Lazy. Attempts that were rolled back, and earlier ones of a slice that was made again, are left out.
    """
    from pyspark.sql import functions as F

    rows = lake.read(table, system_columns=True)
    if withdrawn := list(_rolled_back(store)):
        rows = rows.where(f"NOT ({' OR '.join(withdrawn)})")
    numbers = list(_live_numbers(store, graph))
    if not numbers:
        return rows.withColumn(COUNTS, F.lit(True))
    live = F.broadcast(lake.session().createDataFrame(numbers, _LIVE))
    same = (rows["dataset"] == live["of"]) & (rows["slice"] == live["cell"])
    known = rows.join(live, same, "left").where("live IS NULL OR number >= live")
    return known.withColumn(COUNTS, F.expr("live IS NULL OR number = live")).drop("of", "cell", "live")


def _live_numbers(store: Store, graph: Graph) -> Iterator[tuple[str, str, int]]:
    """Dataset, slice and number of what counts, of all steps, also those that are declared no longer.

    Not of sources and streams: what is set aside of an arrival is told of its commit, and a micro-batch that was
    published is not judged again. They have many receipts.
    """
    for name in store.receipts.heads():
        dataset = graph.datasets.get(name)
        if graph.owners.get(name, name) != name or (dataset is not None and (dataset.is_source or dataset.is_stream)):
            continue
        for slice_id, number in store.receipts.live_numbers(name).items():
            yield name, slice_id, number


def _rolled_back(store: Store) -> Iterator[str]:
    """SQL for the rows of each attempt that was rolled back."""
    for name, head in store.receipts.heads().items():
        for one in store.receipts.since(name, -1, 2**62, kinds=("data",)) if head.restored else ():
            if one.state == "rolled back":
                mine = f"dataset = {text_literal(name)} AND slice = {text_literal(one.slice_id)}"
                yield f"({mine} AND number = {one.number})"
