"""A grid that was declared anew: refused for a dataset that has slices of another one, and for who reads them.

The rows of a slice are kept in one cell, so those of the other grid would lie beside them and count twice; and one day
that is there would pass for its month. So it is with an event time that a source names anew: what it took before lies
in no cell, and no slice would read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from lakewright.model.slices import ANY_CELL, Slice, event_slice
from lakewright.model.times import WIDTH, cell_of
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import SliceState, Wish
from lakewright.store import Store

__all__ = ["OtherGrids"]


class OtherGrids:
    """Answers for one graph against one store."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self._graph = graph
        self._store = store
        self._found: dict[str, Slice | None] = {}
        self._all_placed: set[str] = set()

    def refused(self, dataset: Dataset, live: Iterable[str], wish: Wish) -> SliceState | None:
        """Why nothing is made of a dataset; None where its slices, and those that it reads, are cut as declared."""
        self._found[dataset.name] = self._other(dataset.name, live)
        for name in (dataset.name, *self._graph.driving(dataset)):
            if name not in self._found:  # of another dataset it stays so for as long as the code does
                self._found[name] = self._other(name, self._store.receipts.live_slices(name))
            if (other := self._found[name]) is not None:
                then, now = other.grid, self._graph.slicing[name].grid
                what = "it" if name == dataset.name else f"its input {name}"
                return SliceState(
                    other,
                    "refused",
                    f"{what} was cut by {then}s until now, and declares {now}s: the one would lie beside the other",
                    cure=f'Let {name} have grid="{then}" again (where it is left out, the schedule decides). Or give '
                    f"what is cut by {now}s a new name: that is made from its start on.",
                )
        return self._without_cells(dataset, wish)

    def _without_cells(self, dataset: Dataset, wish: Wish) -> SliceState | None:
        """Why no slice is made of a source that took rows before it named an event time; none are left where all that
        it took is read again.
        """
        for name in self._graph.driving(dataset) if self._graph.slicing[dataset.name].kind == "event" else ():
            above = self._graph[name]
            if name in self._all_placed or not (above.is_source or above.is_stream):
                continue
            head = self._store.receipts.cells(name).get(ANY_CELL)
            if head is None or head.rows == 0:
                self._all_placed.add(name)  # and it stays so for as long as the code does
                continue
            if self._store.receipts.live_slices(name).keys() <= wish.again.get(name, frozenset()):
                continue
            rows = "" if head.rows is None else f" {head.rows:,}"
            return SliceState(
                event_slice(cell_of(dataset.start, dataset.grid)),
                "refused",
                f"its input {name} took{rows} rows before it named its event_time '{above.event_time}': they lie in no "
                f"{dataset.grid}",
                cure=f"{_read_again(above)} reads them again, each into its {dataset.grid}. Where {name} cannot have "
                "them again, declare it under a new name, or without event_time as before.",
            )
        return None

    def _other(self, name: str, live: Iterable[str]) -> Slice | None:
        """The newest slice of event time that was not cut as it is declared now."""
        cut = self._graph.slicing.get(name)
        if cut is None or cut.kind != "event":
            return None
        # What was made while it followed arrivals, or was one slice, is another matter.
        others = (one for one in live if one[0].isdigit() and len(one) != WIDTH[cut.grid])
        newest = max(others, default=None)
        return None if newest is None else Slice.parse(newest)


def _read_again(source: Dataset) -> str:
    """The command by which a source takes what it took before."""
    if source.is_stream:
        return f"`lakewright stream rewind {source.name} --all`, and then a run,"
    first = source.start  # whatever lies in no cell belongs to any stretch of time
    until = first + timedelta(days=1)
    return f"`lakewright backfill --from {first:%Y-%m-%d} --to {until:%Y-%m-%d} --sources --select {source.name}`"
