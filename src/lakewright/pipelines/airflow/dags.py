"""DAGs: what Airflow has to know of each pipeline, as values.

A pipeline is a DAG. Slices, branches, fan-in rules, retries of a step and its timeout stay with Lakewright, which
each task calls; what belongs to a whole run (when, how many at once, out of which pool, after whom) is said in
Airflow's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lakewright.model.schedules import Rule, next_time
from lakewright.pipelines.scheduling import GRACE
from lakewright.pipelines.timetables import timetables_of

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline
    from lakewright.pipelines.definitions import Dataset
    from lakewright.pipelines.timetables import Timetable

__all__ = ["Dag", "DagTask", "Described", "Granularity", "dags_of", "slug"]

Granularity = Literal["pipeline", "dataset"]
"""A task for a whole run of a pipeline, or one for each of its datasets."""


@dataclass(frozen=True, slots=True)
class Described:
    """A dataset in a DAG's own documentation."""

    name: str
    layer: str
    kind: str
    description: str


@dataclass(frozen=True, slots=True)
class DagTask:
    """One call of Lakewright."""

    task_id: str
    select: tuple[str, ...]
    whole: bool
    outlets: tuple[str, ...]
    """The datasets that it makes."""
    inlets: tuple[str, ...]
    """The datasets of other pipelines that it reads."""
    after: tuple[str, ...] = ()
    """The tasks of the same DAG that come before it."""
    whatever_happened: bool = False
    """Whether it is also begun where those have failed: what it can be made of, Lakewright decides."""
    side_outputs: tuple[tuple[str, str], ...] = ()
    """Private outputs, each with the dataset whose step writes it."""


@dataclass(frozen=True, slots=True)
class Dag:
    """One pipeline in Airflow's words."""

    dag_id: str
    project: str
    pipeline: str
    file: str
    """The project's file that declares it."""
    cron: str | None
    timezone: str
    follows: str | None
    """The DAG whose run of the same time must have succeeded."""
    follows_task: str | None
    """The one task of it that counts, where each dataset has its own."""
    upstream: tuple[str, ...]
    """The datasets that start it, where that is its schedule."""
    rule: Rule
    start: datetime | None
    """Its first time."""
    catch_up: bool
    run_first: bool | timedelta
    """Without a start: whether the newest time that has passed is the first one, or only if it passed that lately."""
    grace: timedelta | None
    runs: int
    depends_on_past: bool
    retries: int
    pool: str | None
    owner: str
    tags: tuple[str, ...]
    datasets: tuple[Described, ...]
    triggers: tuple[str, ...]
    tasks: tuple[DagTask, ...]


def dags_of(project: str, pipelines: Sequence[Pipeline], *, tasks: Granularity, folder: Path) -> list[Dag]:
    """A DAG for each pipeline of a project, in their order."""
    tables = {table.pipeline: table for table in timetables_of(pipelines)}
    made = {one.name: tuple(dataset.name for dataset in one.datasets) for one in pipelines}
    return [_dag(slug(project), one, _clocked(tables[one.name], tables, made), tasks, folder) for one in pipelines]


def slug(name: str) -> str:
    """A name as it may stand in an id of Airflow and in a file's name.

    >>> slug("The Blog (EU)")
    'The_Blog_EU'
    """
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "project"


def _clocked(table: Timetable, tables: Mapping[str, Timetable], made: Mapping[str, tuple[str, ...]]) -> Timetable:
    """A pipeline that follows another has its times, or, where that has none, is started by what it makes."""
    if table.after is None:
        return table
    other = _clocked(tables[table.after.pipeline], tables, made)
    if other.schedule is None:
        return replace(table, upstream=made[other.pipeline], rule="any")
    start = table.start or other.start
    return replace(table, schedule=other.schedule, timezone=other.timezone, start=start, catch_up=other.catch_up)


def _dag(project: str, pipeline: Pipeline, table: Timetable, tasks: Granularity, folder: Path) -> Dag:
    settings, datasets = pipeline.settings, _in_order(pipeline.datasets)
    first = None
    if table.schedule is not None and table.start is not None:
        first = next_time(table.schedule, after=table.start, timezone=table.timezone)
    passes_over = table.schedule is not None and table.catch_up == "none"
    owners = sorted({one.owner for one in datasets if one.owner})
    tags = {tag for one in datasets for tag in one.tags} | {*settings.tags}
    return Dag(
        dag_id=f"{project}.{pipeline.name}",
        project=project,
        pipeline=pipeline.name,
        file=_below(Path(pipeline.place.file), folder),
        cron=table.schedule,
        timezone=table.timezone or "UTC",
        follows=None if table.after is None or table.schedule is None else f"{project}.{table.after.pipeline}",
        follows_task=table.after.task if table.after is not None and tasks == "dataset" else None,
        upstream=table.upstream,
        rule=table.rule,
        start=first,
        catch_up=table.schedule is not None and table.catch_up == "all",
        run_first=GRACE if passes_over else True,
        grace=GRACE if passes_over else None,
        runs=table.concurrency,
        depends_on_past=table.depends_on_past,
        retries=max((one.retries for one in datasets), default=0),
        pool=settings.runs.pool,
        owner=", ".join(owners) or "lakewright",
        tags=("lakewright", project, *sorted(tags - {"lakewright", project})),
        datasets=tuple(Described(one.name, one.layer, _kind(one), one.description) for one in datasets),
        triggers=table.triggers,
        tasks=_whole(pipeline.name, datasets) if tasks == "pipeline" else _each(datasets),
    )


def _below(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name


def _whole(pipeline: str, datasets: Sequence[Dataset]) -> tuple[DagTask, ...]:
    return (_task("run", (f"pipeline:{pipeline}",), datasets, datasets),)


def _each(datasets: Sequence[Dataset]) -> tuple[DagTask, ...]:
    return tuple(_task(one.name, (one.name,), [one], datasets) for one in datasets)


def _task(task_id: str, select: tuple[str, ...], mine: Sequence[Dataset], datasets: Sequence[Dataset]) -> DagTask:
    made = [one.name for one in mine]
    makers = {name: one.name for one in datasets for name in (one.name, *one.outputs)}
    read = dict.fromkeys(name for one in mine for given in one.inputs for name in given.datasets)
    return DagTask(
        task_id=task_id,
        select=select,
        whole=len(mine) == len(datasets),
        outlets=tuple(name for one in mine for name in (one.name, *one.outputs)),
        inlets=tuple(name for name in read if name not in makers),
        after=tuple(dict.fromkeys(makers[name] for name in read if name in makers and makers[name] not in made)),
        whatever_happened=any(one.fan_in is not None and one.fan_in.rule != "all" for one in mine),
        side_outputs=tuple((name, one.name) for one in mine for name in one.outputs),
    )


def _in_order(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Each after those of them that it reads; beyond that, as they were declared."""
    by_name = {one.name: one for one in datasets}
    makers = {name: one.name for one in datasets for name in (one.name, *one.outputs)}
    reads = {
        one.name: [makers[n] for i in one.inputs for n in i.datasets if n in makers and makers[n] != one.name]
        for one in datasets
    }
    return [by_name[name] for name in TopologicalSorter(reads).static_order()]


def _kind(dataset: Dataset) -> str:
    if dataset.is_stream:
        return "stream"
    if dataset.is_source:
        return "source"
    return dataset.grid if dataset.event_time is not None else "arrivals or whole"
