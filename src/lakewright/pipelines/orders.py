"""Orders: a run that somebody else schedules, such as Airflow, under a name of theirs, and its repeats on purpose.

Guarantee:
    An order that is given again under the same name and repeat goes on: nothing that it has made is made once more.
    With the next repeat, what the run has made is made again; where the one before did not succeed, its rest is made.
    An order for the backfill of a time makes the slices again that a scheduled run at that time makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.runs import Reason
from lakewright.model.schedules import newest_time
from lakewright.model.times import Grid, Interval, cell_interval, cell_of
from lakewright.pipelines.definitions import Settings
from lakewright.pipelines.states import Wish
from lakewright.store import RunRecord, Store

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["Order", "OrderReason", "clock_of", "due_span", "fulfil", "owed", "pipeline_of"]

OrderReason = Literal["manual", "scheduled", "part", "backfill"]
"""By hand; the run for a time of a schedule; a part of one; or its slices again."""
Slices = Mapping[str, frozenset[str]]

_NAME = re.compile(r"[A-Za-z0-9_.~:+@/-]{1,250}")
_A_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Order:
    """One run that was asked for by name; ``repeat`` rises each time that somebody wants it made again."""

    name: str
    repeat: int = 0
    reason: OrderReason = "manual"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"'{self.name}' is no name for a run. Nothing was started.",
                hint="Use up to 250 letters, digits and _ . ~ : + @ / -.",
            )
        if self.repeat < 0:
            raise ConfigurationError(f"A run is repeated 0 times or more often, not {self.repeat} times.")
        if self.reason not in get_args(OrderReason):
            raise ConfigurationError(f"A run is ordered as {', '.join(get_args(OrderReason))}, not '{self.reason}'.")

    @property
    def run_id(self) -> str:
        """The run's id: that of each repeat is its own."""
        return self.name if not self.repeat else f"{self.name}~{self.repeat}"

    @property
    def recorded(self) -> Reason:
        """How it stands in the store: a part does not count as the run for its time."""
        return "manual" if self.reason == "part" else self.reason

    @property
    def has_a_time(self) -> bool:
        """Whether it is for a time of a schedule."""
        return self.reason != "manual"

    def made(self, store: Store) -> dict[str, list[str]]:
        """Dataset -> the slices that were made since the last repeat that succeeded, by killed attempts too."""
        run_ids = [self.run_id]
        for run_id in reversed(self.earlier()):
            known = store.runs.get(run_id)
            if known is not None and known.state == "ok":
                break
            run_ids.insert(0, run_id)
        found: dict[str, dict[str, None]] = {}
        for step in (one for run_id in run_ids for one in store.steps.of_run(run_id)):
            if step.state in ("ok", "recovered"):
                found.setdefault(step.dataset, {})[step.slice_id] = None
        return {name: list(slices) for name, slices in found.items()}

    def earlier(self) -> list[str]:
        """The ids that earlier repeats may have, the first one first."""
        return [replace(self, repeat=number).run_id for number in range(self.repeat)]


def fulfil(order: Order, graph: Graph, store: Store, names: Sequence[str], wish: Wish) -> Wish:
    """What the run is asked for, beyond what is due."""
    made = _made(store, graph, [order.run_id], names)
    if order.reason == "backfill":
        settings = pipeline_of(order, graph, names)
        return replace(wish, backfill=due_span(clock_of(settings, graph), wish.run_time, settings.grid), made=made)
    return replace(wish, again=_without(owed(order, graph, store, names), made), made=made)


def owed(order: Order, graph: Graph, store: Store, names: Sequence[str]) -> Slices:
    """The slices that are to be made once more, whether or not an attempt at this repeat has made some of them."""
    known = store.runs.get(order.run_id)
    if known is not None:
        return _recorded(known)
    before = next((run for run_id in reversed(order.earlier()) if (run := store.runs.get(run_id)) is not None), None)
    if before is None:
        return {}
    if before.state == "ok":
        return _made(store, graph, order.earlier(), names)
    return _without(_recorded(before), _made(store, graph, [before.run_id], names))


def clock_of(settings: Settings, graph: Graph) -> Settings:
    """The pipeline whose times it has: itself, or the first of those that it follows that follows none."""
    known = {one.pipeline: one.settings for one in graph.datasets.values()}
    while settings.after is not None and settings.after.pipeline in known:
        settings = known[settings.after.pipeline]
    return settings


def due_span(settings: Settings, at: datetime, grid: Grid) -> Interval | None:
    """The event time whose slices are due at a time of a schedule, and were not at the one before it.

    For a run each day at 6:00 it is the day before; for one each hour, with slices of a day, nothing but at midnight.
    """
    if settings.schedule is None:
        raise ConfigurationError(
            f"The pipeline '{settings.pipeline}' has no schedule of times, so no slices belong to {at:%Y-%m-%d %H:%M}.",
            hint="Name the event time: lakewright backfill --from 2026-01-05 --to 2026-01-06.",
        )
    before = newest_time(settings.schedule, until=at - _A_MOMENT, timezone=settings.timezone)
    if before is None:
        return None
    start, end = (cell_interval(cell_of(moment, grid)).start for moment in (before, at))
    return Interval(start, end) if start < end else None


def pipeline_of(order: Order, graph: Graph, names: Sequence[str]) -> Settings:
    """The one pipeline of the datasets, unless the order is by hand; a scheduled run is one of all of them."""
    pipelines = sorted({graph[name].pipeline for name in names})
    if len(pipelines) != 1 and order.has_a_time:
        raise ConfigurationError(
            f"A {order.reason} run is one of a single pipeline, not of {', '.join(pipelines)}. Nothing was started.",
            hint=f"Select one: --select pipeline:{pipelines[0]}.",
        )
    left_out = [one.name for one in graph.datasets.values() if one.pipeline == pipelines[0] and one.name not in names]
    if order.reason == "scheduled" and left_out:
        raise ConfigurationError(
            f"A scheduled run is one of the whole pipeline; {left_out[0]} is left out. Nothing was started.",
            hint=f"Write --select pipeline:{pipelines[0]}, or leave --reason out.",
        )
    return graph[names[0]].settings


def _recorded(run: RunRecord) -> Slices:
    again = run.options.get("again")
    listed = again.items() if isinstance(again, dict) else ()
    return {name: frozenset(map(str, ids)) for name, ids in listed if isinstance(ids, list)}


def _made(store: Store, graph: Graph, run_ids: Sequence[str], names: Sequence[str]) -> Slices:
    """What runs have made of some datasets; sources and streams are not read again."""
    found: dict[str, set[str]] = {}
    for step in (one for run_id in run_ids for one in store.steps.of_run(run_id)):
        known = step.dataset in names and not (graph[step.dataset].is_source or graph[step.dataset].is_stream)
        if known and step.state in ("ok", "recovered"):
            found.setdefault(step.dataset, set()).add(step.slice_id)
    return {name: frozenset(slices) for name, slices in found.items()}


def _without(slices: Slices, made: Slices) -> Slices:
    left = {name: ids - made.get(name, frozenset()) for name, ids in slices.items()}
    return {name: ids for name, ids in left.items() if ids}
