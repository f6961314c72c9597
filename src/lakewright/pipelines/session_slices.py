"""Slices that are made though nothing has arrived for them: those in which pending sessions run out.

Where a session is completed follows from its visits alone: in the slice in which its gap ends, whenever that is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from lakewright.model.slices import Slice, event_slice
from lakewright.model.times import WIDTH, cells_between, parse_duration
from lakewright.pipelines.closing import Closing
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.session_options import pending_of, visits_input
from lakewright.pipelines.states import SliceState
from lakewright.store import CellHead, Head, LiveSlice, Store

__all__ = ["running_out"]


def running_out(
    dataset: Dataset,
    states: Mapping[str, SliceState],
    live: Mapping[str, LiveSlice],
    run_time: datetime,
    heads: Mapping[str, Head],
    *,
    store: Store,
    closing: Closing,
) -> dict[str, SliceState]:
    """The slices within a gap after one that has, or will have, pending sessions; they are not there yet."""
    if dataset.sessions is None:
        return {}
    gap, horizon = parse_duration(dataset.sessions.gap), closing.horizon(dataset, run_time)
    making = {slice_id for slice_id, state in states.items() if state.make and state.status != "held"}
    restored = dataset.name in heads and heads[dataset.name].restored
    found: dict[str, SliceState] = {}
    before, reach = "", dataset.start
    pending: Mapping[str | None, CellHead] | None = None
    for cell in sorted({*live, *making, *_within_gap(dataset, {*live, *making}, gap, closing)}):
        open_before, before = before, cell
        if cell in making:
            reach = Slice.parse(cell).interval.end + gap
        if cell in live or cell in states:
            continue
        # What a slice that is made again leaves pending is not known yet.
        if open_before in live and open_before not in making and Slice.parse(cell).interval.start >= reach:
            pending = store.receipts.cells(pending_of(dataset)) if pending is None else pending
            # None is unknown: a slice too many does no harm.
            if open_before not in pending or pending[open_before].rows == 0:
                before = open_before
                continue
        if restored and store.receipts.first(dataset.name, cell) is not None:
            continue  # one that was rolled back on purpose is left alone
        still_open = horizon.still_open(cell)
        reason = still_open or f"sessions of {open_before} may run out in it"
        found[cell] = SliceState(event_slice(cell), "waiting" if still_open else "due", reason, not still_open)
    return found


def _within_gap(dataset: Dataset, slices: Iterable[str], gap: timedelta, closing: Closing) -> set[str]:
    """The cells that begin within a gap after the end of a slice with visits."""
    given = visits_input(dataset.inputs)
    cells = set() if given is None else set(closing.cells_with_rows(given.dataset))
    width, found = WIDTH[dataset.grid], set[str]()
    finer = {cell[:width] for cell in cells if len(cell) >= width}
    reached = dataset.start
    for slice_id in sorted(slices):
        # Its own cell, cells within it, or the coarser one that it lies in.
        if slice_id in finer or any(slice_id[:length] in cells for length in WIDTH.values()):
            end = Slice.parse(slice_id).interval.end
            found.update(cells_between(max(end, reached), end + gap, dataset.grid))
            reached = end + gap
    return found
