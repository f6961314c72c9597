"""Timetables: what a scheduler has to know of each pipeline, as plain values that pass between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.model.schedules import CatchUp, OnDatasets, Rule, check_catch_up, check_cron
from lakewright.model.times import parse_time

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline
    from lakewright.pipelines.definitions import Settings

__all__ = ["Timetable", "check_upstreams", "checked_schedule", "timetable_of", "timetables_of"]

_NO_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timetable:
    """When one pipeline is due, and how many of its runs may go on at once."""

    pipeline: str
    schedule: str | None = None
    timezone: str | None = None
    start: datetime | None = None
    """The first scheduled time comes after it; without one the newest due time is the first."""
    catch_up: CatchUp = "all"
    concurrency: int = 1
    depends_on_past: bool = False
    upstream: tuple[str, ...] = ()
    """The datasets whose changes start it."""
    rule: Rule = "any"
    makers: tuple[str, ...] = ()
    """The pipelines that make those datasets: while one of them runs, its changes are not complete."""
    triggers: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The schedule in words."""
        if self.upstream:
            joined = " or " if self.rule == "any" else " and "
            return f"new in {joined.join(self.upstream)}"
        if self.schedule is None:
            return "-"
        return self.schedule if self.timezone is None else f"{self.schedule} ({self.timezone})"

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which ``from_json`` makes it again."""
        return {**asdict(self), "start": None if self.start is None else self.start.isoformat()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Timetable:
        """The timetable that another process has told."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        start = known.get("start")
        return cls(**{**known, **lists, "start": None if start is None else parse_time(start)})


def checked_schedule(
    schedule: str | OnDatasets | None, timezone: str | None, catch_up: CatchUp
) -> tuple[str | None, OnDatasets | None]:
    """The cron text, or the datasets, that a pipeline's ``schedule`` stands for; a wrong one is refused."""
    check_catch_up(catch_up)
    if isinstance(schedule, str):
        check_cron(schedule, timezone)
        return schedule, None
    if schedule is not None and not isinstance(schedule, OnDatasets):
        raise ConfigurationError(f"{schedule!r} is no schedule. Write @daily, '0 6 * * *' or OnDatasets(...).")
    if timezone is not None:
        raise ConfigurationError("timezone goes with a schedule of times: schedule='0 6 * * *'.")
    return None, schedule


def timetables_of(pipelines: Sequence[Pipeline]) -> list[Timetable]:
    """The timetable of each pipeline, also of those without a schedule."""
    return [
        timetable_of(pipeline.settings, _upstream(pipeline, pipelines), _makers(pipeline, pipelines))
        for pipeline in pipelines
    ]


def timetable_of(settings: Settings, upstream: Sequence[str] = (), makers: Sequence[str] = ()) -> Timetable:
    """The timetable of a pipeline, with the datasets that it waits for."""
    return Timetable(
        pipeline=settings.pipeline,
        schedule=settings.schedule,
        timezone=settings.timezone,
        start=None if settings.start == _NO_START else settings.start,
        catch_up=settings.catch_up,
        concurrency=settings.runs.concurrency,
        depends_on_past=settings.runs.depends_on_past,
        upstream=tuple(upstream),
        rule="any" if settings.on_datasets is None else settings.on_datasets.rule,
        makers=tuple(makers),
        triggers=tuple(trigger.name for trigger in settings.triggers),
    )


def check_upstreams(pipelines: Sequence[Pipeline]) -> None:
    """Refuse a schedule by datasets that nobody makes, or that the pipeline makes itself."""
    made_by = _made_by(pipelines)
    for pipeline in pipelines:
        if pipeline.settings.on_datasets is None:
            continue
        found = _upstream(pipeline, pipelines)
        problem, hint = None, None
        if not found:
            problem = f"the pipeline '{pipeline.name}' reads no dataset of another pipeline, so nothing would start it"
            hint = 'Name the datasets: schedule=OnDatasets("clean_visits").'
        for name in found:
            if name not in made_by:
                problem = f"OnDatasets names '{name}', which no pipeline of this project makes"
                hint = did_you_mean(name, list(made_by))
            elif made_by[name] == pipeline.name:
                problem = f"OnDatasets names '{name}', which '{pipeline.name}' makes itself: it would start itself"
                hint = "Name datasets of other pipelines."
        if problem is not None:
            raise DefinitionError(f"{problem}.", file=pipeline.place.file, line=pipeline.place.line, hint=hint)


def _made_by(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    return {name: p.name for p in pipelines for d in p.datasets for name in (d.name, *d.outputs)}


def _upstream(pipeline: Pipeline, pipelines: Sequence[Pipeline]) -> list[str]:
    wanted = pipeline.settings.on_datasets
    if wanted is None:
        return []
    if wanted.names:
        return list(wanted.names)
    made_by = _made_by(pipelines)
    read = dict.fromkeys(name for d in pipeline.datasets for given in d.inputs for name in given.datasets)
    return [name for name in read if name in made_by and made_by[name] != pipeline.name]


def _makers(pipeline: Pipeline, pipelines: Sequence[Pipeline]) -> list[str]:
    made_by = _made_by(pipelines)
    return sorted({made_by[name] for name in _upstream(pipeline, pipelines) if name in made_by})
