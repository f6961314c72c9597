"""Linking: which pipelines follow which, as their declarations tell it; what cannot work is refused by name.

The edges are those of this project. One whose producer belongs to another project is told by that project's folder, or
by the marker that is waited for: who produces it there, only that project knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakewright.errors import DefinitionError, did_you_mean
from lakewright.patterns.data_flow.isolated_sequencer import WhenReady, resolve_marker

if TYPE_CHECKING:
    from lakewright.pipelines.declare import Pipeline

__all__ = ["Edge", "check_links", "edges_of", "made_by"]

By = Literal["reads", "change", "run", "marker"]
_PROJECT_FILE = "lakewright.toml"


@dataclass(frozen=True, slots=True)
class Edge:
    """A consumer follows a producer: by reading its dataset, by its changes, by its runs, or by a marker."""

    producer: str | None
    """The pipeline; None where another project, or nobody who is known, makes the dataset."""
    dataset: str | None
    """None where the whole run of the producer is followed."""
    consumer: str
    by: By
    project: str | None = None
    """The folder of the project that makes it, or the flag or table that tells of it, where that is not this one."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def made_by(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Dataset -> the pipeline that makes it."""
    return {name: p.name for p in pipelines for d in p.datasets for name in (d.name, *d.outputs)}


def edges_of(pipelines: Sequence[Pipeline]) -> list[Edge]:
    """Every edge between pipelines, and from other projects into this one."""
    owners = made_by(pipelines)
    found = [edge for pipeline in pipelines for edge in _edges(pipeline, owners)]
    return sorted(dict.fromkeys(found), key=lambda e: (e.producer or "", e.dataset or "", e.consumer, e.by))


def _edges(pipeline: Pipeline, owners: Mapping[str, str]) -> Iterator[Edge]:
    settings, me = pipeline.settings, pipeline.name
    reads = dict.fromkeys(name for d in pipeline.datasets for given in d.inputs for name in given.datasets)
    others = [name for name in reads if owners.get(name, me) != me]
    for name in others:
        yield Edge(owners[name], name, me, "reads")
    if settings.on_datasets is not None:
        for name in settings.on_datasets.names or others:
            yield Edge(owners.get(name), name, me, "change")
    if settings.after is not None:
        yield Edge(settings.after.pipeline, settings.after.task, me, "run")
    for wait in settings.waits_for:
        elsewhere = wait.project or wait.table or wait.flag
        yield Edge(owners.get(wait.dataset) if wait.is_here else None, wait.dataset, me, "marker", elsewhere)


def check_links(pipelines: Sequence[Pipeline], folder: Path) -> None:
    """Refuse what names a pipeline, a task, a dataset or a project that is not there, and circles."""
    owners, known = made_by(pipelines), [pipeline.name for pipeline in pipelines]
    for pipeline in pipelines:
        _check_after(pipeline, known, owners)
        for wait in pipeline.settings.waits_for:
            _check_wait(pipeline, wait, owners, folder)
    _check_circles(pipelines)


def _check_after(pipeline: Pipeline, known: Sequence[str], owners: Mapping[str, str]) -> None:
    after = pipeline.settings.after
    if after is None:
        return
    if after.pipeline not in known:
        _refuse(
            pipeline,
            f"After names the unknown pipeline '{after.pipeline}'. This project has {', '.join(known)}",
            did_you_mean(after.pipeline, known),
        )
    if after.task is not None and owners.get(after.task) != after.pipeline:
        tasks = sorted(name for name, owner in owners.items() if owner == after.pipeline)
        _refuse(
            pipeline,
            f"After names the unknown task '{after.task}': the pipeline '{after.pipeline}' makes {', '.join(tasks)}",
            did_you_mean(after.task, tasks),
        )


def _check_wait(pipeline: Pipeline, wait: WhenReady, owners: Mapping[str, str], folder: Path) -> None:
    if wait.is_here and wait.dataset not in owners:
        _refuse(
            pipeline,
            f"WhenReady names the unknown dataset '{wait.dataset}', which no pipeline of this project makes",
            did_you_mean(wait.dataset, list(owners)) or "Say where it is ready: flag=, table= or project=.",
        )
    if wait.is_here and owners[wait.dataset] == pipeline.name:
        _refuse(pipeline, f"WhenReady names '{wait.dataset}', which '{pipeline.name}' makes itself", None)
    if wait.project is not None and not Path(resolve_marker(wait.project, folder), _PROJECT_FILE).is_file():
        _refuse(
            pipeline,
            f"WhenReady names the project '{wait.project}', where there is no {_PROJECT_FILE}",
            "The folder is relative to this project's. Where the other project cannot be seen from here, agree on a "
            "flag: WhenReady(..., flag=...).",
        )


def _check_circles(pipelines: Sequence[Pipeline]) -> None:
    """Pipelines that start each other would never end; reading alone starts nobody."""
    starts: dict[str, set[str]] = {pipeline.name: set() for pipeline in pipelines}
    for edge in edges_of(pipelines):
        if edge.by != "reads" and edge.producer is not None and edge.producer != edge.consumer:
            starts[edge.consumer].add(edge.producer)
        elif edge.by == "run":
            starts[edge.consumer].add(edge.consumer)
    try:
        tuple(TopologicalSorter(starts).static_order())
    except CycleError as error:
        circle = error.args[1]
        first = next(pipeline for pipeline in pipelines if pipeline.name == circle[0])
        _refuse(
            first,
            f"pipelines wait for each other in a circle: {' -> '.join(circle)}",
            "Take one of the links away, or make them one pipeline.",
        )


def _refuse(pipeline: Pipeline, problem: str, hint: str | None) -> None:
    raise DefinitionError(f"{problem}.", file=pipeline.place.file, line=pipeline.place.line, hint=hint)
