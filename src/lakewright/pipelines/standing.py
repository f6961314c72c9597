"""Standing: how a dataset stands in a plan, in one word that a picture can colour."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lakewright.model.references import Lookback, SameSlice
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.states import DatasetPlan

__all__ = ["FAILING", "Kind", "News", "Standing", "blocked_by", "reached_by_news", "standing_of"]

Kind = Literal["due", "stale", "following", "fresh", "held", "failing", "empty", "elsewhere"]
"""To be made for the first time or on demand; to be made again; perhaps to be made, when what is new was read; nothing
to do; known and not made now; cannot succeed as it stands; nothing there yet; read from another target."""

FAILING = ("refused", "overdue")
_AGAIN = ("late", "stale", "outdated", "revisit", "held")


@dataclass(frozen=True, slots=True)
class Standing:
    """One dataset: the word, and the same in a few words for people."""

    kind: Kind
    words: str


class News(NamedTuple):
    """What is new above a dataset, and not read yet."""

    source: str
    arrivals: int


def standing_of(one: DatasetPlan, plan: Plan, *, blocked: str | None = None, follows: bool = False) -> Standing:
    """How a dataset stands; ``blocked`` is what keeps it from being made, and it ``follows`` where news reach it."""
    if (target := plan.read_from.get(one.dataset.name)) is not None:
        return Standing("elsewhere", f"read from {target}")
    making = one.to_make
    if failing := [state for state in making if state.status in (*FAILING, "unmet")]:
        return Standing("failing", _counted(Counter(state.status for state in failing)))
    if blocked is not None:
        return Standing("failing", f"behind {blocked}")
    if making or one.new:
        again = bool(making) and not one.new and all(state.status in _AGAIN for state in making)
        news = ["new"] if one.new else []
        told = [_counted(Counter(state.status for state in making))] if making else []
        return Standing("stale" if again else "due", ", ".join((*news, *told)))
    if follows:
        return Standing("following", "may follow")
    if one.states or one.waits:
        told_of = Counter(str(state.status) for state in one.states)
        return Standing("held", _counted(told_of or Counter({"waiting": len(one.waits)})))
    return Standing("fresh", "fresh") if one.live else Standing("empty", "nothing yet")


def _counted(statuses: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))


def blocked_by(plan: Plan, graph: Graph) -> dict[str, str]:
    """Dataset -> the dataset above it that cannot succeed as it stands, so that a run skips the lower one."""
    stops = {one.dataset.name for one in plan.datasets if any(state.status in FAILING for state in one.to_make)}
    found: dict[str, str] = {}
    for one in plan.datasets:
        name = one.dataset.name
        above = graph.upstream(name)
        if one.dataset.fan_in is not None:  # its parts may fail: the rule decides
            above = above - {graph.owners.get(part, part) for part in graph.driving(one.dataset)}
        cause = next((upper for upper in sorted(above) if upper in stops or upper in found), None)
        if cause is not None and name not in plan.read_from:
            found[name] = found.get(cause, cause)
    return found


def reached_by_news(plan: Plan, graph: Graph) -> dict[str, News]:
    """Dataset -> what is new above it: which slices of it that touches is known when it was read."""
    blocked, found = blocked_by(plan, graph), dict[str, News]()
    news: dict[str, News] = {}
    for one in plan.datasets:
        name = one.dataset.name
        if name in plan.read_from or name in blocked:
            continue
        above = [
            news[owner]
            for given in one.dataset.inputs
            if one.dataset.is_stream or isinstance(graph.reference(one.dataset, given), SameSlice | Lookback)
            for owner in (graph.owners.get(read, read) for read in given.datasets)
            if owner in news
        ]
        if above:
            found[name] = news[name] = max(above, key=lambda new: new.arrivals)
        if one.new:
            news[name] = News(name, max(one.arrivals, 1))
    return found
