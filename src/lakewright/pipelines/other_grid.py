"""A grid that was declared anew: refused for a dataset that has slices of another one, and for who reads them.

The rows of a slice are kept in one cell, so those of the other grid would lie beside them and count twice; and one day
that is there would pass for its month.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.model.slices import Slice
from lakewright.model.times import WIDTH
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import SliceState
from lakewright.store import Store

__all__ = ["OtherGrids"]


class OtherGrids:
    """Answers for one graph against one store."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self._graph = graph
        self._store = store
        self._found: dict[str, Slice | None] = {}

    def refused(self, dataset: Dataset, live: Iterable[str]) -> SliceState | None:
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
