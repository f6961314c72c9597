"""The fixed look-back of ``late=Revisit(...)``: which slices it makes again, and in which turn.

Guarantee:
    A slice of the look-back is made once for each new slice, whatever is repeated: one that a run made since the
    newest slice was due is not made again, so that a repeat of the run makes only what did not succeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakewright.model.policies import Revisit
from lakewright.model.slices import Slice, event_slice
from lakewright.model.times import cell_interval
from lakewright.patterns.error_management.static_late_data_integrator import slices_to_revisit
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.store import LiveSlice, Store

__all__ = ["in_turns", "is_before", "to_revisit"]


def to_revisit(
    store: Store, dataset: Dataset, policy: Revisit, current: str, live: Mapping[str, LiveSlice]
) -> dict[str, SliceState]:
    """The slices of the look-back that were made, and not yet again since the newest one was due."""
    if policy.only_late:
        return {}
    due = cell_interval(current).end + dataset.wait
    found = {}
    for cell in slices_to_revisit(current, lookback=policy.last):
        if cell not in live:
            continue
        receipt = store.receipts.live(dataset.name, cell)
        run = None if receipt is None or receipt.run_id is None else store.runs.get(receipt.run_id)
        if run is None or run.run_time < due:
            reason = f"within the look-back of {policy.last} from {current}"
            found[cell] = SliceState(event_slice(cell), "revisit", reason)
    return found


def is_before(policy: Revisit, found: Slice, current: str) -> bool:
    """Whether a slice lies before the look-back: one that reaches into it belongs to it as a whole."""
    return found.interval.end <= cell_interval(current).start - policy.reach


def in_turns(dataset: Dataset, states: dict[str, SliceState], current: str | None) -> dict[str, SliceState]:
    """The same states, the look-back before or after the newest slice as the policy says."""
    policy = dataset.late
    if current is None or not isinstance(policy, Revisit) or policy.placement == "parallel":
        return states
    past_first = policy.placement == "before"

    def turn(state: SliceState) -> int:
        if state.slice.kind != "event" or state.status == "held":
            return 0
        return int((state.slice.value < current) != past_first)

    return {slice_id: replace(state, turn=turn(state)) for slice_id, state in states.items()}
