"""Deciding about corrections: the slices that were made before records of their input were corrected.

They are stale whatever the policy for late rows says: nothing came late, somebody asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from lakewright.lake.corrections import corrections_of
from lakewright.model.references import Lookback, SameSlice
from lakewright.model.slices import ANY_CELL, WHOLE, Slice, event_slice
from lakewright.model.times import cell_interval, cells_between, parse_duration
from lakewright.pipelines.closing import Closing
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import SliceState
from lakewright.store import OWN, CellHead, Head, LiveSlice, Store

__all__ = ["Corrected"]


class Corrected:
    """Answers for one graph against one store."""

    def __init__(self, graph: Graph, store: Store, closing: Closing) -> None:
        self._graph = graph
        self._store = store
        self._closing = closing

    def names(self, dataset: Dataset) -> list[str]:
        """The corrections of the sources that a dataset reads, whether there are any or not."""
        read = (self._graph.datasets.get(given.dataset) for given in dataset.inputs)
        return [corrections_of(one.name) for one in read if one is not None and one.is_source]

    def stale(
        self,
        dataset: Dataset,
        live: Mapping[str, LiveSlice],
        run_time: datetime,
        heads: Mapping[str, Head],
        settled: Callable[[str], int],
    ) -> Iterator[SliceState]:
        """The slices of a dataset that corrections have touched since they were made, or for the first time."""
        kind, follows = self._graph.slicing[dataset.name].kind, self._graph.slicing[dataset.name].follows
        for given in dataset.inputs:
            name = corrections_of(given.dataset)
            reference = self._graph.reference(dataset, given)
            if name not in heads or not isinstance(reference, SameSlice | Lookback):
                continue
            if self._store.origins.all().get(given.dataset, OWN) != OWN:
                continue  # it is read from another lake, without corrections that were made here when it was ours
            found = self._store.receipts.cells(name)
            since, reason = settled(name), f"records of {given.dataset} were corrected"
            if kind == "whole" and WHOLE.id in live:
                if heads[name].version > max(live[WHOLE.id].inputs.get(name, -1), since):
                    yield SliceState(WHOLE, "stale", reason)
            elif kind == "arrival" and follows == given.dataset:
                yield from self._arrivals(dataset, live, found, name, since, reason)
            elif kind == "event":
                reach = parse_duration(reference.reach) if isinstance(reference, Lookback) else timedelta(0)
                for cell, slice_id in self._slices(dataset, found, reach):
                    made = live.get(slice_id)
                    version = found[cell].version
                    if version <= max(-1 if made is None else made.inputs.get(name, -1), since):
                        continue
                    if made is not None:
                        yield SliceState(event_slice(slice_id), "stale", f"{reason} in {cell}")
                    elif not reach and (found[cell].rows or 0) > 0:
                        yield self._first_time(dataset, slice_id, run_time, reason)

    def _slices(
        self, dataset: Dataset, found: Mapping[str | None, CellHead], reach: timedelta
    ) -> Iterator[tuple[str, str]]:
        for cell in found:
            if cell is None or cell == ANY_CELL or cell[0] in "+@":
                continue
            span = cell_interval(cell)
            for slice_id in cells_between(span.start, span.end + reach, dataset.grid):
                yield cell, slice_id

    def _first_time(self, dataset: Dataset, slice_id: str, run_time: datetime, reason: str) -> SliceState:
        if (why := self._closing.horizon(dataset, run_time).still_open(slice_id)) is not None:
            return SliceState(event_slice(slice_id), "waiting", why, make=False)
        return SliceState(event_slice(slice_id), "missing", f"{reason} into it and it was never made")

    def _arrivals(
        self,
        dataset: Dataset,
        live: Mapping[str, LiveSlice],
        found: Mapping[str | None, CellHead],
        name: str,
        since: int,
        reason: str,
    ) -> Iterator[SliceState]:
        touched = {f"arrival-{key[1:]}": head.version for key, head in found.items() if key and key[0] == "@"}
        stale = [
            Slice.parse(one)
            for one, version in touched.items()
            if one in live and version > max(live[one].inputs.get(name, -1), since)
        ]
        yield from (SliceState(one, "stale", reason) for one in stale)
        if stale and dataset.writer is not None and not dataset.writer.replaces_slice:
            first = min(stale)
            later = (Slice.parse(one) for one in live if Slice.parse(one) > first)
            yield from (SliceState(one, "stale", f"{first.id} before it is taken again") for one in later)
