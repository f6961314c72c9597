"""What a plan can tell of datasets further down before those above them are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lakewright.model.references import SameSlice
from lakewright.model.slices import WHOLE, event_slice
from lakewright.model.times import cells_between
from lakewright.pipelines.chains import chained, merges_older, of_kind
from lakewright.pipelines.decide import DatasetPlan, SliceState
from lakewright.pipelines.graph import Graph
from lakewright.store import LiveSlice

__all__ = ["cascade"]


def cascade(
    graph: Graph, plans: Sequence[DatasetPlan], live: Callable[[str], Mapping[str, LiveSlice]]
) -> list[DatasetPlan]:
    """The same plans, in which a slice follows when the slice that it reads is made.

    Where slices are made on top of earlier ones of their own dataset, all later ones that ``live`` tells follow too.
    What an arrival holds is known only once it is read: files that were not taken yet do not cascade.
    """
    found: dict[str, DatasetPlan] = {}
    for plan in plans:
        states = {state.slice.id: state for state in plan.states}
        known = len(states)
        for given in plan.dataset.inputs:
            above = found.get(graph.owners.get(given.dataset, given.dataset))
            stops = above is not None and _stops(above) and plan.dataset.fan_in is None
            stops |= any(state.status == "refused" and state.cure is not None for state in plan.states)
            if above is None or stops or not isinstance(graph.reference(plan.dataset, given), SameSlice):
                continue
            for upper in (state for state in above.to_make if state.status not in ("refused", "overdue", "unmet")):
                for follower in _followers(plan, upper):
                    states.setdefault(follower.slice.id, follower)
        if len(states) > known and (plan.dataset.chained or getattr(plan.dataset.writer, "restores", False)):
            unless = plan.dataset.sessions is not None
            states = chained(states, live(plan.dataset.name), if_changed=unless)
        elif len(states) > known and merges_older(plan.dataset):
            states = chained(states, of_kind(live(plan.dataset.name), plan.slicing.kind))
        ordered = tuple(sorted(states.values(), key=lambda state: state.slice))
        found[plan.dataset.name] = replace(plan, states=ordered)
    return list(found.values())


def _stops(plan: DatasetPlan) -> bool:
    """Whether a dataset cannot succeed as it stands, so that nothing below it is made."""
    return any(state.status in ("refused", "overdue") for state in plan.to_make)


def _followers(plan: DatasetPlan, upper: SliceState) -> list[SliceState]:
    reason = "follows: the slice that it reads is made"
    if plan.slicing.kind == "whole":
        return [SliceState(WHOLE, "stale", reason)]
    if plan.slicing.kind != upper.slice.kind:
        return []
    if plan.slicing.kind == "arrival":
        return [SliceState(upper.slice, "stale", reason)]
    span = upper.slice.interval
    cells = cells_between(span.start, span.end, plan.slicing.grid)
    return [SliceState(event_slice(cell), "stale", reason) for cell in cells]
