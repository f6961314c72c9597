"""Own times: which slices belong to the run of which time, where several runs of a schedule are at work at once.

Guarantee:
    A scheduled run leaves the slices to other times of the schedule that those have still to make: a slice belongs to
    the first time at which it has ended, until that time has a good run. What is stale, late or missing after that, any
    later run makes, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

from lakewright.model.runs import Run
from lakewright.model.schedules import newest_time, next_time, times_between
from lakewright.model.times import cell_interval, cells_between
from lakewright.pipelines.decide import Decider
from lakewright.pipelines.definitions import Dataset, Settings
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import DatasetPlan, SliceState, Wish
from lakewright.pipelines.timetables import timetable_of

__all__ = ["OwnTimes", "decider_for"]

_A_MOMENT = timedelta(microseconds=1)
_ASKED_FOR = ("again", "backfill")


def decider_for(graph: Graph, run: Run, names: Sequence[str]) -> Callable[..., Decider]:
    """Who decides for a run: one of a schedule whose runs go on side by side leaves the others what is theirs."""
    pipelines = {graph[name].settings.pipeline: graph[name].settings for name in names}
    if run.reason == "scheduled" and len(pipelines) == 1:
        (settings,) = pipelines.values()
        if settings.runs.concurrency > 1 and settings.schedule is not None and settings.catch_up == "all":
            return partial(OwnTimes, run=run, settings=settings)
    return Decider


class OwnTimes(Decider):
    """Decides as ever, but leaves slices alone that another time of the schedule has still to make."""

    def __init__(self, *known: Any, run: Run, settings: Settings) -> None:
        super().__init__(*known)
        self._run, self._settings = run, settings

    def decide(self, name: str, wish: Wish) -> DatasetPlan:
        plan = self.whole(name, wish)
        others = self.others(plan)
        states = tuple(
            replace(one, make=False, reason=f"{one.reason}; left to the run of {others[one.slice.id]:%Y-%m-%d %H:%M}")
            if one.slice.id in others
            else one
            for one in plan.states
        )
        return replace(plan, states=states)

    def whole(self, name: str, wish: Wish) -> DatasetPlan:
        """What all runs together have still to make."""
        return super().decide(name, wish)

    def others(self, plan: DatasetPlan) -> dict[str, datetime]:
        """Slice -> the earlier time of the schedule whose run has still to make it."""
        if plan.slicing.kind != "event":
            return {}
        found = {}
        for state in plan.states:
            if state.make and state.status not in _ASKED_FOR:
                time = self._time_of(plan.dataset, state)
                if time is not None and self._floor < time < self._run.time and time not in self._good:
                    found[state.slice.id] = time
        return found

    def still_open(self) -> Iterator[datetime]:
        """The earlier times of the schedule that had no good run when they were last asked about, in order."""
        settings = self._settings
        assert settings.schedule is not None
        span = times_between(
            settings.schedule, after=self._floor, until=self._run.time - _A_MOMENT, timezone=settings.timezone
        )
        return (time for time in span if time not in self._good)

    def settle(self, time: datetime) -> None:
        """Its run has succeeded since."""
        self._good.add(time)

    def slices_of(self, dataset: Dataset, time: datetime) -> list[str]:
        """The slices of a dataset that the run of a time makes: those that have ended since the time before it."""
        settings = self._settings
        assert settings.schedule is not None
        before = newest_time(settings.schedule, until=time - _A_MOMENT, timezone=settings.timezone)
        first, last = max(before or dataset.start, dataset.start) - dataset.wait, time - dataset.wait
        return [cell for cell in cells_between(first, last, dataset.grid) if cell_interval(cell).end <= last]

    def _time_of(self, dataset: Dataset, state: SliceState) -> datetime | None:
        """The first time of the schedule at which a slice has ended."""
        assert self._settings.schedule is not None
        ended = state.slice.interval.end + dataset.wait - _A_MOMENT
        return next_time(self._settings.schedule, after=ended, timezone=self._settings.timezone)

    @cached_property
    def _good(self) -> set[datetime]:
        return self._store.schedules.good_times(self._settings.pipeline, after=None)

    @cached_property
    def _floor(self) -> datetime:
        """No time before it has a run of its own."""
        start = timetable_of(self._settings).start
        return start or min(self._good, default=self._run.time) - _A_MOMENT
