"""Following another pipeline (``schedule=After(...)``): which of its runs start one here. It only decides.

Guarantee:
    Each run of the producer that succeeded is followed by one run of the same time; one that failed, or was skipped,
    fails it at once; one that has not ended is waited for. With ``every`` the first time in a new hour, day, week or
    month is followed, and the others are skipped. A backfill of the producer is followed once, by the same dates,
    unless it has made the follower's datasets as well, or the follower never ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lakewright.errors import first_words
from lakewright.model.runs import RunState
from lakewright.model.schedules import newest_time
from lakewright.model.times import cell_interval, cell_of
from lakewright.patterns.data_flow.isolated_sequencer import After
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Backfill, Produced

__all__ = ["Followed", "follow", "following_run_id", "to_follow"]

_A_MOMENT = timedelta(microseconds=1)
_OVER: Mapping[RunState, str] = {"failed": "failed", "refused": "was refused", "skipped": "was skipped"}


@dataclass(frozen=True, slots=True)
class Followed:
    """What becomes of the producer's times."""

    due: tuple[datetime, ...] = ()
    skipped: tuple[tuple[datetime, str], ...] = ()
    """To be recorded as skipped, each with the reason."""
    failed: tuple[tuple[datetime, str], ...] = ()
    """To be recorded as failed, each with the reason."""
    settled: datetime | None = None
    """Until here nothing more is to be done."""


def follow(table: Timetable, produced: Sequence[Produced], answered: Mapping[datetime, RunState]) -> Followed:
    """Decide for the producer's runs, in order of time, given how the follower's own runs of the same times ended."""
    assert table.after is not None
    floor = _floor(table, produced, answered)
    due: list[datetime] = []
    skipped: list[tuple[datetime, str]] = []
    failed: list[tuple[datetime, str]] = []
    settled: datetime | None = None
    earlier: datetime | None = None
    left = False
    for one in produced:
        before, earlier = earlier, one.run_time
        if floor is not None and one.run_time <= floor:
            continue
        mine, outcome = answered.get(one.run_time), _outcome(table.after, one)
        if mine in ("ok", "skipped"):
            settled = settled if left else one.run_time
            continue
        left = True
        if outcome != "open" and not _is_first(table, one.run_time, before):
            skipped.append((one.run_time, f"{table.after.pipeline} is followed once for each {table.after.every}"))
        elif outcome == "ok":
            due.append(one.run_time)
        elif outcome == "skip":
            skipped.append((one.run_time, f"{table.after.pipeline} was skipped"))
        elif outcome == "failed" and mine is None:
            failed.append((one.run_time, _why(table.after, one)))
        if outcome == "open" and table.depends_on_past:
            break
    return Followed(tuple(due), tuple(skipped), tuple(failed), settled)


def to_follow(table: Timetable, backfills: Sequence[Backfill]) -> list[Backfill]:
    """The backfills that concern the follower, and that did not make its datasets themselves."""
    after = table.after
    assert after is not None
    return [
        one
        for one in backfills
        if after.pipeline in one.pipelines
        and table.pipeline not in one.pipelines
        and (after.task is None or after.task in one.datasets)
    ]


def following_run_id(pipeline: str, backfill: Backfill | str) -> str:
    """The id of the one run that answers to a backfill of another pipeline."""
    run_id = backfill if isinstance(backfill, str) else backfill.run_id
    digest = hashlib.sha256(f"{pipeline}|follows|{run_id}".encode()).hexdigest()[:8]
    return f"{run_id[:15]}-{digest}"


def _floor(table: Timetable, produced: Sequence[Produced], answered: Mapping[datetime, RunState]) -> datetime | None:
    """Times until here are of no concern: before the start or, without one, before the newest when it first looked."""
    if table.start is not None:
        return table.start
    if answered:
        return min(answered) - _A_MOMENT
    return produced[-1].run_time - _A_MOMENT if produced else None


def _outcome(after: After, one: Produced) -> Literal["ok", "failed", "skip", "open"]:
    if one.state == "skipped":
        return "failed" if after.on_skipped == "fail" else "skip"
    if after.task is not None and one.state in ("ok", "failed", "refused") and one.summary is not None:
        broken = [*one.summary.get("failed", ()), *one.summary.get("skipped", ())]
        return "failed" if after.task in broken else "ok"
    if one.state == "ok":
        return "ok"
    return "failed" if one.state in _OVER else "open"


def _why(after: After, one: Produced) -> str:
    what = f"{after.pipeline} ({after.task})" if after.task else after.pipeline
    first = "" if not one.error else f": {first_words(one.error, most=None)}"
    return (
        f"{what} {_OVER.get(one.state, one.state)} for {one.run_time:%Y-%m-%d %H:%M} (run {one.run_id}){first}. "
        "Nothing was started; a good run of it starts this one."
    )


def _is_first(table: Timetable, time: datetime, before: datetime | None) -> bool:
    """Whether a time is the first in its hour, day, week or month: everything before it has been run."""
    assert table.after is not None
    grid = table.after.every
    if grid is None:
        return True
    if table.after_schedule is not None:
        before = newest_time(table.after_schedule, until=time - _A_MOMENT, timezone=table.after_timezone)
    if before is None:
        return cell_interval(cell_of(time, grid)).start == time
    return cell_of(before, grid) != cell_of(time, grid)
