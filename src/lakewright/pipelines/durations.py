"""Durations: how long a plan would take, by what its datasets took before.

Guarantee:
    A figure comes from steps that succeeded, or there is none: what never ran is named, and counts as nothing.
    Medians, so that one straggler does not move them; it is told beside them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from lakewright.model.times import finest
from lakewright.pipelines.critical_path import Work, ends_after, longest_chain, run_seconds
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.standing import FAILING, blocked_by, reached_by_news
from lakewright.store import Store

__all__ = ["LAST", "Expected", "Forecast", "Past", "SlowBranch", "forecast"]

LAST = 10
"""Of so many good steps of a dataset the median is taken."""

_NO_WORK = (*FAILING, "unmet", "skipped", "held")
"""States whose slices are not made, though a run deals with them: that takes no time worth telling."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the slices of a dataset took lately."""

    steps: int
    seconds: float
    """The median of one slice."""
    slowest_slice: str
    slowest_seconds: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run does for one dataset, and how long that takes."""

    slices: int
    seconds: float | None
    """None where there is no past run to tell; 0 where there is nothing to do."""
    certain: bool
    """False where what is new was not read yet, so that it may be more slices, or none."""
    past: Past | None


@dataclass(frozen=True, slots=True)
class SlowBranch:
    """Which of the branches that a dataset waits for ends last, and when the next one does.

    ``next`` is None where the branches are the slices of one dataset: then ``next_seconds`` is their median.
    """

    dataset: str
    slowest: str
    seconds: float
    next: str | None
    next_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long a plan would take."""

    datasets: dict[str, Expected]
    seconds: float | None
    """The whole run, as far as it is known; None where nothing is."""
    chain: tuple[str, ...]
    """The critical path: no run is faster than these datasets, one after the other."""
    chain_seconds: float
    slow_branches: tuple[SlowBranch, ...]
    parallel: int

    @property
    def unknown(self) -> tuple[str, ...]:
        """Datasets with work and without a past run."""
        return tuple(name for name, one in self.datasets.items() if one.seconds is None)

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Datasets of which nobody knows yet how many slices are touched."""
        return tuple(name for name, one in self.datasets.items() if not one.certain)


def forecast(plan: Plan, graph: Graph, store: Store, *, parallel: int) -> Forecast:
    """What the plan would take; a small query for each dataset that has something to do."""
    turns = _turns(plan, graph)
    shown = {name: counted for name, (counted, _) in turns.items() if counted}
    past = {name: _past(steps) for name, steps in store.steps.durations(shown, most=LAST).items()}
    works = [_work(one.dataset, graph, shown, past) for one in plan.datasets]
    expected = {
        work.name: Expected(
            work.slices,
            None if work.slices and work.name not in past else work.alone(parallel),
            turns.get(work.name, ((), True))[1],
            past.get(work.name),
        )
        for work in works
    }
    chain = longest_chain(works, parallel)
    ends = ends_after(works, parallel)
    return Forecast(
        expected,
        run_seconds(works, parallel) if past or not shown else None,
        tuple(chain),
        ends[chain[-1]] if chain else 0.0,
        tuple(_slow_branches(plan, graph, expected, ends)),
        parallel,
    )


def _past(steps: list[tuple[str, float]]) -> Past:
    slice_id, seconds = max(steps, key=lambda step: step[1])
    return Past(len(steps), median(seconds for _, seconds in steps), slice_id, seconds)


def _work(dataset: Dataset, graph: Graph, turns: dict[str, tuple[int, ...]], past: dict[str, Past]) -> Work:
    known = past.get(dataset.name)
    return Work(
        dataset.name,
        frozenset(graph.upstream(dataset.name)),
        turns.get(dataset.name, ()),
        0.0 if known is None else known.seconds,
        dataset.in_order or dataset.is_stream,
    )


def _turns(plan: Plan, graph: Graph) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Dataset -> how many slices each of its turns has, and whether that is certain.

    What an arrival touches is known once it is read: until then each dataset below counts as one slice.
    """
    blocked, reached = blocked_by(plan, graph), reached_by_news(plan, graph)
    found: dict[str, tuple[tuple[int, ...], bool]] = {}
    for one in plan.datasets:
        name = one.dataset.name
        if name in plan.read_from or name in blocked:
            continue
        turns = Counter(state.turn for state in one.to_make if state.status not in _NO_WORK)
        if one.new:
            turns[0] += 1 if one.dataset.is_stream else max(one.arrivals, 1)
        elif name in reached and one.slicing.kind == "arrival" and not one.dataset.is_stream:
            turns[0] += reached[name].arrivals
        elif name in reached and not turns:
            turns[0] = 1
        found[name] = (tuple(turns[turn] for turn in sorted(turns)), name not in reached)
    return found


def _slow_branches(plan: Plan, graph: Graph, expected: dict[str, Expected], ends: dict[str, float]) -> list[SlowBranch]:
    found = []
    for one in plan.datasets:
        name = one.dataset.name
        if not expected[name].slices:
            continue
        above = {upper for upper in graph.upstream(name) & ends.keys() if ends[upper] > 0}
        branches = sorted(above, key=lambda upper: (-ends[upper], upper))
        if len(branches) > 1:
            first, second = branches[:2]
            found.append(SlowBranch(name, first, ends[first], second, ends[second]))
        elif branches and (part := _slowest_part(one.dataset, graph, branches[0], expected[branches[0]])) is not None:
            found.append(part)
    return found


def _slowest_part(dataset: Dataset, graph: Graph, upper: str, one: Expected) -> SlowBranch | None:
    """For a dataset that is made of finer slices, such as a day of hours: the one that took longest lately."""
    finer = graph.cell_grid(upper)
    coarser = graph.slicing[dataset.name].grid
    cut_finer = graph.slicing[upper].kind == "event" and graph.slicing[dataset.name].kind == "event"
    if not cut_finer or finer is None or finer == coarser or finest(finer, coarser) != finer:
        return None
    if one.past is None or one.past.steps < 2:
        return None
    slowest = f"{upper} {one.past.slowest_slice}"
    return SlowBranch(dataset.name, slowest, one.past.slowest_seconds, None, one.past.seconds)
