"""Timetables: what a scheduler has to know of each pipeline, as plain values that pass between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.model.schedules import CatchUp, OnDatasets, Rule, check_catch_up, check_cron
from lakewright.model.times import Grid, parse_time
from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady, resolve_marker
from lakewright.pipelines.linking import made_by

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline
    from lakewright.pipelines.definitions import Settings

__all__ = [
    "Timetable",
    "check_upstreams",
    "checked_schedule",
    "checked_waits",
    "followed_clock",
    "timetable_of",
    "timetables_of",
]

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
    grid: Grid = "day"
    pool: str | None = None
    slots: int = 1
    """How many runs of the pool may be at work at once."""
    after: After | None = None
    """The pipeline whose runs start it."""
    after_schedule: str | None = None
    """The cron text of that pipeline, or of the one that it follows, on the clock of ``after_timezone``."""
    after_timezone: str | None = None
    waits_for: tuple[WhenReady, ...] = ()
    """What must be ready before a time is run; paths are absolute."""

    @property
    def words(self) -> str:
        """The schedule in words."""
        if self.after is not None:
            task = "" if self.after.task is None else f" ({self.after.task})"
            every = "" if self.after.every is None else f", once for each {self.after.every}"
            return f"after {self.after.pipeline}{task}{every}"
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
        start, after = known.get("start"), known.get("after")
        own = {
            "start": None if start is None else parse_time(start),
            "after": None if after is None else After(**after),
            "waits_for": tuple(WhenReady(**one) for one in known.get("waits_for", ())),
        }
        return cls(**{**known, **lists, **own})


def checked_schedule(
    schedule: str | OnDatasets | After | None, timezone: str | None, catch_up: CatchUp
) -> tuple[str | None, OnDatasets | None, After | None]:
    """The cron text, the datasets, or the pipeline, that a ``schedule`` stands for; a wrong one is refused."""
    check_catch_up(catch_up)
    if isinstance(schedule, str):
        check_cron(schedule, timezone)
        return schedule, None, None
    if schedule is not None and not isinstance(schedule, OnDatasets | After):
        raise ConfigurationError(
            f"{schedule!r} is no schedule. Write @daily, '0 6 * * *', OnDatasets(...) or After(...)."
        )
    if timezone is not None:
        raise ConfigurationError("timezone goes with a schedule of times: schedule='0 6 * * *'.")
    return (None, None, schedule) if isinstance(schedule, After) else (None, schedule, None)


def checked_waits(waits_for: WhenReady | Sequence[WhenReady], cron: str | None) -> tuple[WhenReady, ...]:
    """What a pipeline waits for; refused where it has no times that could wait."""
    waits = (waits_for,) if isinstance(waits_for, WhenReady) else tuple(waits_for)
    if wrong := [one for one in waits if not isinstance(one, WhenReady)]:
        raise ConfigurationError(f'waits_for is WhenReady("clean_visits", ...), not {wrong[0]!r}.')
    if waits and cron is None:
        raise ConfigurationError(
            "waits_for says what the times of a schedule wait for, and this pipeline has none.",
            hint='Say when its dates are due: schedule="@daily". OnDatasets(...) and After(...) wait by themselves.',
        )
    return waits


def timetables_of(
    pipelines: Sequence[Pipeline], *, pools: Mapping[str, int] | None = None, folder: Path | None = None
) -> list[Timetable]:
    """The timetable of each pipeline, also of those without a schedule; ``folder`` is the project's."""
    known = {pipeline.name: pipeline.settings for pipeline in pipelines}
    found = []
    for pipeline in pipelines:
        upstream, makers = _upstream(pipeline, pipelines), _makers(pipeline, pipelines)
        table = timetable_of(pipeline.settings, upstream, makers, folder=folder)
        if table.pool is not None:
            table = replace(table, slots=(pools or {}).get(table.pool, 1))
        if (clock := followed_clock(pipeline.settings, known)) is not None:
            table = replace(table, after_schedule=clock.schedule, after_timezone=clock.timezone)
        found.append(table)
    return found


def followed_clock(settings: Settings, known: Mapping[str, Settings]) -> Settings | None:
    """The pipeline whose times a follower has in the end, for whoever is followed may follow others; None for none."""
    seen: set[str] = set()
    found = None
    while settings.after is not None and settings.after.pipeline in known and settings.after.pipeline not in seen:
        seen.add(settings.after.pipeline)
        found = settings = known[settings.after.pipeline]
    return found


def timetable_of(
    settings: Settings, upstream: Sequence[str] = (), makers: Sequence[str] = (), *, folder: Path | None = None
) -> Timetable:
    """The timetable of a pipeline, with the datasets that it waits for; ``folder`` is the project's."""
    waits = settings.waits_for
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
        grid=settings.grid,
        pool=settings.runs.pool,
        after=settings.after,
        waits_for=waits if folder is None else tuple(_placed(one, folder) for one in waits),
    )


def _placed(wait: WhenReady, folder: Path) -> WhenReady:
    own = {name: getattr(wait, name) for name in ("flag", "table", "project") if getattr(wait, name) is not None}
    return replace(wait, **{name: resolve_marker(path, folder) for name, path in own.items()})


def check_upstreams(pipelines: Sequence[Pipeline]) -> None:
    """Refuse a schedule by datasets that nobody makes, or that the pipeline makes itself."""
    owners = made_by(pipelines)
    for pipeline in pipelines:
        if pipeline.settings.on_datasets is None:
            continue
        found = _upstream(pipeline, pipelines)
        problem, hint = None, None
        if not found:
            problem = f"the pipeline '{pipeline.name}' reads no dataset of another pipeline, so nothing would start it"
            hint = 'Name the datasets: schedule=OnDatasets("clean_visits").'
        for name in found:
            if name not in owners:
                problem = f"OnDatasets names '{name}', which no pipeline of this project makes"
                hint = did_you_mean(name, list(owners))
            elif owners[name] == pipeline.name:
                problem = f"OnDatasets names '{name}', which '{pipeline.name}' makes itself: it would start itself"
                hint = "Name datasets of other pipelines."
        if problem is not None:
            raise DefinitionError(f"{problem}.", file=pipeline.place.file, line=pipeline.place.line, hint=hint)


def _upstream(pipeline: Pipeline, pipelines: Sequence[Pipeline]) -> list[str]:
    wanted = pipeline.settings.on_datasets
    if wanted is None:
        return []
    if wanted.names:
        return list(wanted.names)
    owners = made_by(pipelines)
    read = dict.fromkeys(name for d in pipeline.datasets for given in d.inputs for name in given.datasets)
    return [name for name in read if name in owners and owners[name] != pipeline.name]


def _makers(pipeline: Pipeline, pipelines: Sequence[Pipeline]) -> list[str]:
    owners = made_by(pipelines)
    return sorted({owners[name] for name in _upstream(pipeline, pipelines) if name in owners})
