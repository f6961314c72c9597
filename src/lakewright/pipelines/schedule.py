"""Running what a schedule asks for: every due time once, in order, and a word when runs take too long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakewright.model.findings import Finding
from lakewright.patterns.data_flow.single_runner import due_times
from lakewright.pipelines.definitions import Settings
from lakewright.pipelines.progress import Listener, Note, RunSummary

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["due_runs", "run_due"]

_NO_START = datetime(1970, 1, 1, tzinfo=UTC)


def due_runs(project: Project, until: datetime) -> list[tuple[datetime, Settings]]:
    """Each logical time that is due, with its pipeline, in order.

    It begins after the last scheduled run that succeeded, so that a time whose run failed or died comes first. A
    pipeline that never ran begins at its ``start``, or, where it has none, with the newest due time alone.
    """
    pipelines = {d.pipeline: d.settings for d in (project.graph[name] for name in project.graph.order)}
    found: list[tuple[datetime, Settings]] = []
    for name, settings in pipelines.items():
        if settings.schedule is None:
            continue
        last = project.store.runs.last_scheduled(name)
        if last is None and settings.start == _NO_START:
            recent = list(due_times(settings.schedule, after=until - timedelta(days=400), until=until))
            times = recent[-1:]
        else:
            times = list(due_times(settings.schedule, after=last or settings.start, until=until))
        found += [(time, settings) for time in times]
    order = list(pipelines)
    return sorted(found, key=lambda due: (due[0], order.index(due[1].pipeline)))


def run_due(
    project: Project, *, until: datetime, listener: Listener, parallel: int | None, wait_seconds: float
) -> list[RunSummary]:
    """Runs each due time; a pipeline whose run did not succeed is left for the next call, which begins there."""
    summaries: list[RunSummary] = []
    stopped: set[str] = set()
    for time, settings in due_runs(project, until):
        if settings.pipeline in stopped:
            continue
        summary = project.run(
            [f"pipeline:{settings.pipeline}"],
            at=time,
            reason="scheduled",
            listener=listener,
            parallel=parallel,
            wait_seconds=wait_seconds,
        )
        if (note := _lag(project, settings, summary, time)) is not None:
            summary.notes.append(note)
            listener(note)
        if summary.state != "ok":
            stopped.add(settings.pipeline)
        summaries.append(summary)
        if summary.state == "interrupted":
            break
    return summaries


def _lag(project: Project, settings: Settings, summary: RunSummary, time: datetime) -> Note | None:
    record = project.store.runs.get(summary.run_id)
    if record is None or record.ended_at is None or settings.schedule is None:
        return None
    took = record.ended_at - record.started_at
    period = next(due_times(settings.schedule, after=time, until=time + timedelta(days=400))) - time
    if took <= period:
        return None
    message = (
        f"Lag: the run of {settings.pipeline} for {time:%Y-%m-%d %H:%M} took {_minutes(took)}, and one is due every "
        f"{_minutes(period)}: each later run ends later."
    )
    cure = "Give it more parallel slices or compute, or cut the work into smaller pipelines."
    project.store.findings.add(
        [Finding(dataset=settings.pipeline, subject="lag", message=message, cure=cure)],
        run_id=summary.run_id,
        now=record.ended_at,
    )
    return Note(message, "warning")


def _minutes(length: timedelta) -> str:
    return f"{length.total_seconds() / 60:,.0f} minutes"
