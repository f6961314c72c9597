"""Lag: a word, and a finding, where a run takes longer than the time between two of its pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from lakewright.model.findings import Finding
from lakewright.model.schedules import next_time
from lakewright.model.times import cell_interval, cell_of
from lakewright.pipelines.definitions import Settings
from lakewright.pipelines.progress import Note, RunSummary
from lakewright.store import Store

__all__ = ["lag_of", "next_due"]

_A_MOMENT = timedelta(microseconds=1)


def lag_of(
    store: Store, summary: RunSummary, settings: Settings, known: Mapping[str, Settings], time: datetime
) -> Note | None:
    """What to tell of the run of a time, which the findings keep; None where it was quick enough."""
    record = store.runs.get(summary.run_id)
    upcoming = next_due(settings, known, time)
    if record is None or record.ended_at is None or upcoming is None:
        return None
    took = record.ended_at - record.started_at
    if took <= upcoming - time:
        return None
    message = (
        f"Lag: the run of {settings.pipeline} for {time:%Y-%m-%d %H:%M} took {took.total_seconds() / 60:,.0f} minutes, "
        f"and one is due every {(upcoming - time).total_seconds() / 60:,.0f} minutes: each later run ends later."
    )
    cure = "Give it more parallel slices or compute, or cut the work into smaller pipelines."
    store.findings.add(
        [Finding(dataset=settings.pipeline, subject="lag", message=message, cure=cure)],
        run_id=summary.run_id,
        now=record.ended_at,
    )
    return Note(message, "warning")


def next_due(settings: Settings, known: Mapping[str, Settings], time: datetime) -> datetime | None:
    """The next time of a pipeline after one of its own: by its clock, or by that of the one that it follows."""
    after, followed = time, settings
    while followed.after is not None:
        if (every := followed.after.every) is not None:
            # Where one run of a day is followed, the next is that of the next day.
            after = max(after, cell_interval(cell_of(time, every)).end - _A_MOMENT)
        if followed.after.pipeline not in known:
            return None
        followed = known[followed.after.pipeline]
    if followed.schedule is None:
        return None
    return next_time(followed.schedule, after=after, timezone=followed.timezone)
