"""Starting a pipeline for an event: exactly one run for the two of them, and the files that the event names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from lakewright.errors import InputError, InterruptedRun, LakewrightError, StepFailed
from lakewright.lake.delta_errors import is_transient
from lakewright.model.protocols import Found, SourceContext
from lakewright.model.triggers import Event
from lakewright.patterns.ingestion.external_trigger import Starter, is_transient_start
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.progress import Listener

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["may_pass", "named_files", "run_id_of", "starter", "takes_named_files"]


def takes_named_files(dataset: Dataset, event: Event | None) -> bool:
    """Whether the source takes what an event names, and nothing else: not where a loader says what an arrival is."""
    return event is not None and bool(event.records) and hasattr(dataset.source, "look_for") and dataset.load is None


def named_files(dataset: Dataset, event: Event | None, context: SourceContext) -> Sequence[Found]:
    """One arrival of the files that the event names and this source has; none where they were taken before."""
    assert event is not None
    found: Found | None = cast(Any, dataset.source).look_for(event.records, context)
    return () if found is None else (found,)


def run_id_of(event: Event, pipeline: str, *, replay: bool = False) -> str:
    """The id of the one run that this event starts in this pipeline; a replay is another run."""
    words = "\n".join([event.trigger, event.id, pipeline, *(["replay"] if replay else [])])
    return f"{event.processing_time:%Y%m%d-%H%M%S}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def starter(
    project: Project, pipeline: str, *, listener: Listener, replay: bool = False, at: datetime | None = None
) -> Starter:
    """Runs the pipeline for an event, once: a run that has succeeded is not made again."""

    def start(event: Event) -> str:
        run_id = run_id_of(event, pipeline, replay=replay)
        known = project.store.runs.get(run_id)
        if known is not None and known.state == "ok":
            return run_id
        _refuse_unknown_files(project, pipeline, event)
        summary = project.run(
            [f"pipeline:{pipeline}"],
            at=at or event.processing_time,
            reason="replay" if replay else "trigger",
            event=event,
            run_id=run_id,
            listener=listener,
        )
        if summary.state == "interrupted":
            raise InterruptedRun(f"The run {run_id} was interrupted.")
        if summary.state != "ok":
            told = str(summary.errors[0]) if summary.errors else summary.state
            failed = StepFailed(f"the run {run_id} {summary.state}: {told}")
            raise failed from (summary.errors[0] if summary.errors else None)
        return run_id

    return start


def may_pass(error: BaseException) -> bool:
    """Whether a run may succeed later as it is."""
    return is_transient_start(error) or is_transient(error)


def _refuse_unknown_files(project: Project, pipeline: str, event: Event) -> None:
    """Refuse files that are in none of the pipeline's sources: a run without them would count as success."""
    mine = [d for d in project.graph.datasets.values() if d.pipeline == pipeline and takes_named_files(d, event)]
    if not mine:
        return
    context = SourceContext("", project.folder)
    for name in event.records:
        if not any(_has(dataset, name, context) for dataset in mine):
            folders = ", ".join(str(getattr(dataset.source, "path", dataset.name)) for dataset in mine)
            raise InputError(
                f"the event names the file '{name}', which is in none of the folders {folders} of '{pipeline}'. "
                "Nothing was read.",
                hint=f"Bring it there, then: lakewright triggers replay {event.id}",
            )


def _has(dataset: Dataset, name: str, context: SourceContext) -> bool:
    try:
        return cast(Any, dataset.source).look_for([name], replace(context, dataset=dataset.name)) is not None
    except LakewrightError:
        return False
