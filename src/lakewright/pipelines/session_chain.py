"""The chain of sessions: which slices were made of other pending sessions than there are before them now.

A slice of sessions is made of its visits and of what the nearest earlier slice left pending; of nothing else of its own
dataset. So a repair goes on for as long as that changes, and no further.

Guarantee:
    A slice that is left as it is would come out the same if it were made again. One of which an attempt replaced the
    pending sessions, and not the completed ones, is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, pairwise

from lakewright.model.slices import Slice
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.session_options import pending_of
from lakewright.pipelines.states import SliceState
from lakewright.store import LiveSlice, Store

__all__ = ["behind_pending", "drop_unchanged"]

_NEWEST = 2**62


def behind_pending(
    store: Store, dataset: Dataset, states: dict[str, SliceState], live: Mapping[str, LiveSlice]
) -> dict[str, SliceState]:
    """The same states, and those of slices that a chain which was cut short has still to reach."""
    behind = _behind(store, dataset, live)
    reasons = {after: f"what {before} leaves pending has changed since" for after, before in behind}
    for half in _half_made(store, dataset, live):
        reasons[half] = "an attempt at it ended between its pending and its completed sessions"
    for slice_id, reason in reasons.items():
        known = states.get(slice_id)
        # What is held is bounded by the age of its rows, not by the chain.
        if known is None or known.status == "held" or (known.status == "outdated" and not known.make):
            states[slice_id] = SliceState(Slice.parse(slice_id), "stale", reason)
    return states


def drop_unchanged(store: Store, dataset: Dataset, queue: Sequence[SliceState]) -> list[SliceState]:
    """What is left to make once a slice was made: where its pending sessions are what they were, nothing follows it."""
    if queue and queue[0].if_changed:
        live = store.receipts.live_slices(dataset.name)
        if queue[0].slice.id not in dict(_behind(store, dataset, live)):
            return list(dropwhile(lambda state: state.if_changed, queue))
    return list(queue)


def _behind(store: Store, dataset: Dataset, live: Mapping[str, LiveSlice]) -> Iterator[tuple[str, str]]:
    """Slices whose predecessor's pending sessions are newer than those that they were made of, each with that one."""
    private = pending_of(dataset)
    left = store.receipts.live_slices(private)
    restored: int | None = None
    for before, after in pairwise(sorted(Slice.parse(slice_id) for slice_id in live)):
        pending = left.get(before.id)
        if pending is None or pending.version <= live[after.id].inputs.get(private, -1):
            continue
        restored = _last_restore(store, dataset.name) if restored is None else restored
        made = store.receipts.live(private, before.id)
        # What was there before a rollback was left as it was on purpose.
        if made is not None and made.number > restored:
            yield after.id, before.id


def _half_made(store: Store, dataset: Dataset, live: Mapping[str, LiveSlice]) -> Iterator[str]:
    """Slices whose pending sessions are those of a later attempt than the completed ones; such have no marker."""
    private = pending_of(dataset)
    for marker in store.markers.withdrawn(private):
        if marker.slice_id not in live:
            continue
        pending, completed = (store.receipts.live(name, marker.slice_id) for name in (private, dataset.name))
        if pending is not None and completed is not None and pending.number > completed.number:
            yield marker.slice_id


def _last_restore(store: Store, name: str) -> int:
    """The number of the newest rollback of a dataset; -1 where there was none."""
    restores = store.receipts.since(name, -1, _NEWEST, kinds=("restore",))
    return restores[-1].number if restores else -1
