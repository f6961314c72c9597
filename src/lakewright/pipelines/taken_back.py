"""Arrivals that a source has taken back since slices were made of them: by a rewind of its stream, or a rollback.

What is read again comes under other numbers: a dataset that follows arrivals would hold each such record twice.

Guarantee:
    A dataset whose slices are kept apart by arrival loses those slices in one commit, before it takes what came in
    their place; so it ends as if it had been made from scratch, whenever it is killed.
Consequences:
    - Slices after the first one that was taken back go with it. Those whose arrivals are there are made again.
    - A Stateful Merger, and a dataset outside the lake, make each such slice again, of no rows. Rows that were merged
      by key stay, and what is read again is merged into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lakewright.model.receipts import Receipt
from lakewright.model.slices import Slice
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.store import LiveSlice, Store

__all__ = ["TakenBack", "keeps_apart", "taken_back"]

_NEWEST = 2**62


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The slices of a dataset that have to go: the first of them, and all that come after it."""

    first: Slice
    source: str
    gone: frozenset[str]

    @classmethod
    def of(cls, first: Slice, source: str, live: Iterable[str]) -> TakenBack:
        found = (Slice.parse(slice_id) for slice_id in live)
        return cls(first, source, frozenset(one.id for one in found if one.kind == "arrival" and one >= first))

    def before(self, live: Mapping[str, LiveSlice]) -> dict[str, LiveSlice]:
        """What of the dataset stays."""
        return {slice_id: made for slice_id, made in live.items() if slice_id not in self.gone}

    def first_of_all(self, states: Mapping[str, SliceState], arrived: Mapping[str, LiveSlice]) -> dict[str, SliceState]:
        """The same states behind the commit that takes the slices away; none for a slice that has no arrival."""
        more = f" and {len(self.gone) - 1:,} after it" if len(self.gone) > 1 else ""
        reason = f"{self.source} took {self.first.id}{more} back; they go before what came since is taken"
        rest = {
            slice_id: replace(state, turn=state.turn + 1)
            for slice_id, state in states.items()
            if slice_id in arrived or slice_id not in self.gone
        }
        return {**rest, self.first.id: SliceState(self.first, "stale", reason, takes_back=True)}


def keeps_apart(dataset: Dataset) -> bool:
    """Whether slices can be taken away without being made again: tables of the lake whose slices are replaced."""
    return dataset.into is None and (dataset.writer is None or dataset.writer.replaces_slice)


def taken_back(
    store: Store,
    source: str,
    live: Mapping[str, LiveSlice],
    arrived: Mapping[str, LiveSlice],
    *,
    settled: int,
    restored_at: int,
) -> list[Slice]:
    """The slices whose arrivals their source has taken back since they were made, in order.

    What was there of a dataset before its own rollback (``restored_at``) was judged by what its source had then
    (``settled``).
    """
    unmatched = {slice_id: made for slice_id, made in live.items() if slice_id not in arrived}
    if not unmatched:
        return []
    undone = store.receipts.since(source, -1, _NEWEST, kinds=("rewind", "restore"))
    found = []
    for slice_id, made in unmatched.items():
        slice_, then = Slice.parse(slice_id), made.inputs.get(source, -1)
        then = max(then, settled) if made.version < restored_at else then
        if slice_.kind == "arrival" and any(one.version > then and _takes_back(one, slice_) for one in undone):
            found.append(slice_)
    return sorted(found)


def _takes_back(undone: Receipt, slice_: Slice) -> bool:
    return undone.kind == "restore" or Slice.parse(undone.slice_id).number <= slice_.number
