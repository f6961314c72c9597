"""Slices that are made on top of earlier ones of the same dataset: one at a time, in order, and on to the newest.

Either a slice reads what the one before it left, or all of them are merged by key into one table, where the last one
that is merged counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.model.slices import Slice, SliceKind
from lakewright.patterns.idempotency.merger import Merger
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.store import LiveSlice

__all__ = ["behind_earlier", "chained", "merges_older", "of_kind"]


def merges_older(dataset: Dataset) -> bool:
    """Whether a slice that is merged again puts what it knew of a key over what later slices have brought."""
    writer = dataset.writer
    if not isinstance(writer, Merger) or dataset.is_stream:
        return False
    # Where the event time tells rows apart, no row is in two slices. To compare `sequence`, as a table outside of the
    # lake does, is not enough: what comes again with the same value counts as a correction, and wins.
    told_apart = writer.keys if writer.history is None else (*writer.keys, writer.history.valid_from)
    return dataset.event_time not in told_apart


def of_kind(live: Mapping[str, LiveSlice], kind: SliceKind) -> dict[str, LiveSlice]:
    """What was made while the dataset was cut in another way cannot be made again, and tells no order."""
    return {slice_id: made for slice_id, made in live.items() if Slice.parse(slice_id).kind == kind}


def chained(
    states: dict[str, SliceState], live: Mapping[str, LiveSlice], *, if_changed: bool = False
) -> dict[str, SliceState]:
    """A slice that builds on its predecessor is made again with it, on to the newest.

    With ``if_changed`` it stays as it is where the predecessor has left the same as before.
    """
    making = [s.slice for s in states.values() if s.make and s.status not in ("refused", "overdue", "held", "unmet")]
    if not making:
        return states
    first = min(making)
    for slice_id in live:
        found, state = Slice.parse(slice_id), states.get(slice_id)
        if state is not None and state.status == "refused":  # also where a backfill leaves it to the next run
            continue
        # What is held is bounded by the age of its rows, not by the chain.
        if found > first and (state is None or not state.make or state.status == "held"):
            unless = "; stays as it is where the same is left pending before it" if if_changed else ""
            reason = f"{first.id} before it is made again{unless}"
            states[slice_id] = SliceState(found, "stale", reason, if_changed=if_changed)
    return states


def behind_earlier(
    dataset: Dataset, states: dict[str, SliceState], live: Mapping[str, LiveSlice], restored_at: int
) -> dict[str, SliceState]:
    """A slice on top of earlier ones that were made again since is stale: so a chain that was cut short goes on."""
    newest, last = -1, ""
    for found in sorted(Slice.parse(slice_id) for slice_id in live):
        made = live[found.id]
        # One that is merged read nothing of those before it: it builds on what was there when it was written.
        if newest > (made.inputs.get(dataset.name, -1) if dataset.chained else made.version):
            states.setdefault(found.id, SliceState(found, "stale", f"{last} before it was made again since"))
        if made.version > max(newest, restored_at):
            newest, last = made.version, found.id
    return states
