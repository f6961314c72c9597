"""Scheduling: which times are due now, given the timetables, what has run, and the clock. It only decides.

Guarantee:
    A time whose run has succeeded is never due again, whatever the clock does. With ``catch_up="all"`` every time is
    due until a run of it, or of a later one, has succeeded; a pipeline whose runs go on side by side needs its own for
    each time. What is due comes in order. A time that failed is tried again after a pause, which grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from lakewright.model.runs import RunState
from lakewright.model.schedules import newest_time, next_time, times_between
from lakewright.pipelines.following import Followed, follow
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Backfill, Produced, Tried, Upstream

__all__ = ["GRACE", "MOST", "Decision", "Facts", "decide", "due_now", "retry_at", "scheduled_run_id", "share_out"]

GRACE = timedelta(minutes=10)
"""With ``catch_up="none"``: a time that could not be started for so long is passed over."""
MOST = 1000
"""Times of one pipeline that are looked at in one go; the others follow when those are made."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
_A_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known at one moment, by pipeline."""

    paused: Collection[str] = ()
    last_good: Mapping[str, datetime] = field(default_factory=dict)
    good: Mapping[str, Collection[datetime]] = field(default_factory=dict)
    """The times that have succeeded, of pipelines with several runs at once."""
    settled: Mapping[str, datetime] = field(default_factory=dict)
    """Of the same pipelines: until here every time has succeeded."""
    tried: Mapping[str, Mapping[datetime, Tried]] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, Collection[datetime]] = field(default_factory=dict)
    """The times that somebody works on."""
    heads: Mapping[str, Upstream] = field(default_factory=dict)
    """By dataset: its newest change."""
    seen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    produced: Mapping[str, Sequence[Produced]] = field(default_factory=dict)
    """By follower: the runs of the pipeline that it follows, in order of time."""
    answered: Mapping[str, Mapping[datetime, RunState]] = field(default_factory=dict)
    """By follower: how its own runs of those times ended."""
    backfills: Mapping[str, Sequence[Backfill]] = field(default_factory=dict)
    """By follower: the backfills that it has not answered to."""
    pooled: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By pool: the processes that hold its slots."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one pipeline now."""

    pipeline: str
    times: tuple[datetime, ...] = ()
    """To be run, in order."""
    seen: Mapping[str, int] | None = None
    """The versions that a run for datasets answers to."""
    waits: str = ""
    """Why something due is not run now."""
    again: datetime | None = None
    """When to look again, at the latest."""
    settled: datetime | None = None
    skipped: tuple[tuple[datetime, str], ...] = ()
    """To be recorded as skipped, each with the reason."""
    failed: tuple[tuple[datetime, str], ...] = ()
    """To be recorded as failed although nothing was begun, each with the reason."""
    backfill: Backfill | None = None
    """Of the pipeline that it follows: to be answered next."""


def decide(table: Timetable, facts: Facts, now: datetime) -> Decision:
    """What is due of one pipeline, and whether it may start."""
    seen: Mapping[str, int] | None = None
    settled = None
    coming: list[datetime] = []
    told = Followed()
    if table.after is not None:
        told = follow(table, facts.produced.get(table.pipeline, ()), facts.answered.get(table.pipeline, {}))
        pending, settled = list(told.due), told.settled
    elif table.upstream:
        pending, seen = _changed(table, facts)
    elif table.schedule is not None:
        pending, settled = due_now(table, facts, now)
        upcoming = next_time(table.schedule, after=now, timezone=table.timezone)
        coming = [] if upcoming is None else [upcoming]
    else:
        return Decision(table.pipeline)
    ready, later, waits = _ready(table, facts, pending, now)
    if ready and (blocked := _blocked(table, facts)):
        ready, waits = [], blocked
    again = min([*coming, *later], default=None)
    backfill = next(iter(facts.backfills.get(table.pipeline, ())), None)
    return Decision(
        table.pipeline,
        tuple(ready),
        seen if ready else None,
        waits,
        again,
        settled,
        told.skipped,
        told.failed,
        None if _blocked(table, facts) else backfill,
    )


def due_now(table: Timetable, facts: Facts, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The times that have no good run yet, in order; and until where all have one, if that is told apart."""
    assert table.schedule is not None
    last = facts.last_good.get(table.pipeline)
    newest = newest_time(table.schedule, until=now, timezone=table.timezone)
    if newest is None or (table.start is not None and newest <= table.start):
        return [], None
    if table.catch_up != "all" or (last is None and table.start is None):
        old = table.catch_up == "none" and now - newest > GRACE and newest not in facts.tried.get(table.pipeline, ())
        return ([] if old or (last is not None and newest <= last) else [newest]), None
    if table.concurrency > 1:
        return _apart(table, facts, now)
    span = times_between(table.schedule, after=last or table.start or newest, until=now, timezone=table.timezone)
    return list(islice(span, MOST)), None


def retry_at(tried: Tried | None, now: datetime) -> datetime:
    """When a time that was tried may be tried again; the first attempt that was lost costs no pause."""
    if tried is None:
        return now
    told = tried.attempt if tried.ended_at is not None and tried.state != "lost" else tried.attempt - 1
    ended = tried.ended_at or tried.started_at
    if told <= 0 or ended > now:  # the clock went back: how long ago that was, nobody can tell
        return now
    doubled: int = 2 ** min(told - 1, 10)
    return ended + min(_FIRST_PAUSE * doubled, _LONGEST_PAUSE)


def share_out(times: Iterable[datetime], *, room: int, most: int = 50) -> list[list[datetime]]:
    """The times for each of ``room`` processes: neighbours stay together, in order."""
    left = list(times)
    size = max(1, min(most, -(-len(left) // room)))
    return [left[first : first + size] for first in range(0, len(left), size)][:room]


def scheduled_run_id(pipeline: str, time: datetime, seen: Mapping[str, int] | None = None) -> str:
    """The id of the one run for a time of a pipeline's schedule, or for what was new in its upstream."""
    versions = [f"{name}@{version}" for name, version in sorted((seen or {}).items())]
    words = [pipeline, "scheduled", time.isoformat(), *versions]
    return f"{time:%Y%m%d-%H%M%S}-{hashlib.sha256('|'.join(words).encode()).hexdigest()[:8]}"


def _ready(
    table: Timetable, facts: Facts, pending: Iterable[datetime], now: datetime
) -> tuple[list[datetime], list[datetime], str]:
    """The times that may be tried now, when others may be, and why those wait."""
    tried, taken = facts.tried.get(table.pipeline, {}), facts.taken.get(table.pipeline, ())
    ready: list[datetime] = []
    later: list[datetime] = []
    waits = ""
    for time in pending:
        at = retry_at(tried.get(time), now)
        if time not in taken and at <= now:
            ready.append(time)
            continue
        if time not in taken:
            waits = waits or f"{time:%Y-%m-%d %H:%M} did not succeed; it is tried again at {at:%Y-%m-%d %H:%M:%S}"
            later.append(at)
        if table.depends_on_past:
            break
    return ready, later, waits


def _blocked(table: Timetable, facts: Facts) -> str:
    if table.pipeline in facts.paused:
        return "paused"
    if facts.running.get(table.pipeline, 0) >= table.concurrency:
        return "a run of it is at work"
    busy = [name for name in table.makers if facts.running.get(name, 0)]
    return f"{busy[0]}, which makes its input, is at work" if busy else ""


def _apart(table: Timetable, facts: Facts, now: datetime) -> tuple[list[datetime], datetime | None]:
    """Of a pipeline with several runs at once: each time that has no good run of its own."""
    assert table.schedule is not None
    good = facts.good.get(table.pipeline, ())
    floor = facts.settled.get(table.pipeline) or table.start or min(good) - _A_MOMENT
    settled: datetime | None = None
    found: list[datetime] = []
    for time in times_between(table.schedule, after=floor, until=now, timezone=table.timezone):
        if time not in good:
            found.append(time)
            if len(found) == MOST:
                break
        elif not found:
            settled = time
    return found, settled


def _changed(table: Timetable, facts: Facts) -> tuple[list[datetime], Mapping[str, int]]:
    """The one time of a run for datasets, where they have something new, and their versions."""
    heads = {name: facts.heads[name] for name in table.upstream if name in facts.heads}
    versions = {name: head.version for name, head in heads.items()}
    known = facts.seen.get(table.pipeline, {})
    new = [name for name, version in versions.items() if known.get(name) != version]
    if not new or (table.rule == "all" and len(new) < len(table.upstream)):
        return [], versions
    time, last = max(head.committed_at for head in heads.values()), facts.last_good.get(table.pipeline)
    # Rising, also where the clock of whoever wrote them does not.
    return [time if last is None or time > last else last + _A_MOMENT], versions
