"""Slices that are made of earlier ones of the same dataset: one at a time, in order, and on to the newest."""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.model.slices import Slice
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.store import LiveSlice

__all__ = ["behind_earlier", "chained"]


def chained(
    states: dict[str, SliceState], live: Mapping[str, LiveSlice], *, if_changed: bool = False
) -> dict[str, SliceState]:
    """A slice that reads its predecessor is made again with it, on to the newest.

    With ``if_changed`` it stays as it is where the predecessor has left the same as before.
    """
    making = [s.slice for s in states.values() if s.make and s.status not in ("refused", "overdue", "held", "unmet")]
    if not making:
        return states
    first = min(making)
    for slice_id in live:
        found, state = Slice.parse(slice_id), states.get(slice_id)
        # What is held is bounded by the age of its rows, not by the chain.
        if found > first and (state is None or not state.make or state.status == "held"):
            unless = "; stays as it is where the same is left pending before it" if if_changed else ""
            reason = f"{first.id} before it is made again{unless}"
            states[slice_id] = SliceState(found, "stale", reason, if_changed=if_changed)
    return states


def behind_earlier(
    dataset: Dataset, states: dict[str, SliceState], live: Mapping[str, LiveSlice], restored_at: int
) -> dict[str, SliceState]:
    """A slice made of earlier ones that were made again since is stale: so a chain that was cut short goes on."""
    newest, last = -1, ""
    for found in sorted(Slice.parse(slice_id) for slice_id in live):
        made = live[found.id]
        if newest > made.inputs.get(dataset.name, -1):
            states.setdefault(found.id, SliceState(found, "stale", f"{last} before it was made again since"))
        if made.version > max(newest, restored_at):
            newest, last = made.version, found.id
    return states
