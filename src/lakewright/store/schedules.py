"""Schedules: which pipelines are paused, and what is known of their scheduled runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, and_, func, insert, or_, select, update

from lakewright.model.receipts import STALING_KINDS
from lakewright.model.runs import RunState
from lakewright.model.times import parse_time
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import receipts, runs, schedules

__all__ = ["Backfill", "Pause", "Produced", "Schedules", "Tried", "Upstream"]


class Pause(NamedTuple):
    """A pipeline that no schedule starts."""

    pipeline: str
    since: datetime
    because: str | None


class Tried(NamedTuple):
    """A scheduled run that has not succeeded, or not yet."""

    pipeline: str
    run_time: datetime
    state: RunState
    attempt: int
    started_at: datetime
    ended_at: datetime | None
    owner_id: str | None


class Upstream(NamedTuple):
    """The newest change of a dataset that its readers should know of."""

    version: int
    committed_at: datetime


class Produced(NamedTuple):
    """How the run of a time ended, or that it has not yet."""

    run_id: str
    run_time: datetime
    state: RunState
    summary: Mapping[str, Any] | None
    error: str | None


class Backfill(NamedTuple):
    """A backfill that succeeded: of which pipelines and datasets, and over which event time."""

    run_id: str
    pipelines: tuple[str, ...]
    datasets: tuple[str, ...]
    start: datetime
    end: datetime
    began: datetime


class Schedules:
    """A row per pipeline that was ever paused, or started by a dataset."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pause(self, pipeline: str, *, because: str | None, now: datetime) -> bool:
        """Let no schedule start it; False where it was paused already, which stays as it is."""
        with writing(self._engine) as c:
            paused = select(schedules.c.paused_at).where(schedules.c.pipeline == pipeline)
            if c.execute(paused).scalar() is not None:
                return False
            _set(c, pipeline, now, paused_at=now, because=because)
            return True

    def resume(self, pipeline: str, *, now: datetime) -> bool:
        """Let its schedule start it again; False where it was not paused."""
        mine = (schedules.c.pipeline == pipeline) & schedules.c.paused_at.is_not(None)
        with writing(self._engine) as c:
            values = {"paused_at": None, "because": None, "updated_at": now}
            return c.execute(update(schedules).where(mine).values(values)).rowcount > 0

    def paused(self) -> list[Pause]:
        """The pipelines that are paused."""
        columns = (schedules.c.pipeline, schedules.c.paused_at, schedules.c.because)
        query = select(*columns).where(schedules.c.paused_at.is_not(None)).order_by(schedules.c.pipeline)
        with reading(self._engine) as c:
            return [Pause(*row) for row in c.execute(query)]

    def see(self, pipeline: str, versions: Mapping[str, int], *, now: datetime) -> None:
        """Note which versions of its upstream a run has answered to."""
        with writing(self._engine) as c:
            _set(c, pipeline, now, seen=dict(versions))

    def seen(self) -> dict[str, dict[str, int]]:
        """Pipeline -> which versions of its upstream it has answered to."""
        query = select(schedules.c.pipeline, schedules.c.seen).where(schedules.c.seen.is_not(None))
        with reading(self._engine) as c:
            return {name: dict(seen) for name, seen in c.execute(query)}

    def heads(self, datasets: Sequence[str]) -> dict[str, Upstream]:
        """The newest change of each dataset that has one."""
        mine = receipts.c.dataset.in_(datasets) & receipts.c.kind.in_(STALING_KINDS)
        last = select(receipts.c.dataset, func.max(receipts.c.version).label("version")).where(mine)
        top = last.group_by(receipts.c.dataset).subquery()
        same = (receipts.c.dataset == top.c.dataset) & (receipts.c.version == top.c.version)
        query = select(receipts.c.dataset, receipts.c.version, receipts.c.committed_at).join(top, same)
        with reading(self._engine) as c:
            return {name: Upstream(version, at) for name, version, at in c.execute(query)}

    def last_good(self) -> dict[str, datetime]:
        """Pipeline -> the latest time for which a scheduled run succeeded."""
        with reading(self._engine) as c:
            return {row.pipeline: row.newest for row in c.execute(_LAST_GOOD)}

    def good_times(self, pipeline: str, *, after: datetime | None) -> set[datetime]:
        """The times for which scheduled runs of a pipeline succeeded."""
        good = (runs.c.pipeline == pipeline) & (runs.c.reason == "scheduled") & (runs.c.state == "ok")
        if after is not None:
            good &= runs.c.run_time > after
        with reading(self._engine) as c:
            return set(c.execute(select(runs.c.run_time).where(good)).scalars())

    def produced(self, pipeline: str, *, after: datetime | None, limit: int) -> list[Produced]:
        """The runs of a pipeline's schedule and triggers, in order of time; of more than ``limit`` the newest."""
        mine = (runs.c.pipeline == pipeline) & runs.c.reason.in_(("scheduled", "trigger"))
        if after is not None:
            mine &= runs.c.run_time > after
        newest = select(*(runs.c[name] for name in Produced._fields)).where(mine).order_by(runs.c.run_time.desc())
        with reading(self._engine) as c:
            return [Produced(*row) for row in c.execute(newest.limit(limit))][::-1]

    def bounds(self, pipeline: str) -> tuple[datetime | None, datetime | None]:
        """The first and the last time of a pipeline's schedule and triggers that have a run."""
        mine = (runs.c.pipeline == pipeline) & runs.c.reason.in_(("scheduled", "trigger"))
        with reading(self._engine) as c:
            row = c.execute(select(func.min(runs.c.run_time), func.max(runs.c.run_time)).where(mine)).one()
        return row[0], row[1]

    def backfills(self, *, after: datetime) -> list[Backfill]:
        """The backfills of event time that began after a moment and succeeded, in order."""
        good = (runs.c.reason == "backfill") & (runs.c.state == "ok") & (runs.c.started_at > after)
        query = select(runs.c.run_id, runs.c.pipeline, runs.c.options, runs.c.started_at).where(good)
        with reading(self._engine) as c:
            found = list(c.execute(query.order_by(runs.c.started_at)))
        return [
            Backfill(
                row.run_id,
                tuple(row.pipeline.split(",")),
                tuple(row.options.get("select", ())),
                parse_time(row.options["backfill"][0]),
                parse_time(row.options["backfill"][1]),
                row.started_at,
            )
            for row in found
            if "backfill" in row.options
        ]

    def first_good(self, pipeline: str) -> datetime | None:
        """When the first run of a pipeline that succeeded began."""
        mine = (runs.c.state == "ok") & (runs.c.pipeline == pipeline)
        with reading(self._engine) as c:
            found: datetime | None = c.execute(select(func.min(runs.c.started_at)).where(mine)).scalar()
        return found

    def tried(self, *, apart: Sequence[str] = ()) -> list[Tried]:
        """The scheduled runs that have not succeeded, in the order in which they began.

        Those before the last good one of their pipeline only where they still run, or each of its times needs a run of
        its own (``apart``).
        """
        good = _LAST_GOOD.subquery()
        later = or_(good.c.newest.is_(None), runs.c.run_time > good.c.newest, runs.c.state == "running")
        newer = or_(later, runs.c.pipeline.in_(apart))
        query = (
            select(*(runs.c[name] for name in Tried._fields))
            .select_from(runs.outerjoin(good, runs.c.pipeline == good.c.pipeline))
            .where(and_(runs.c.reason == "scheduled", runs.c.state.in_(_NOT_GOOD), newer))
            .order_by(runs.c.started_at)
        )
        with reading(self._engine) as c:
            return [Tried(*row) for row in c.execute(query)]


def _set(conn: Connection, pipeline: str, now: datetime, **values: Any) -> None:
    values["updated_at"] = now
    if not conn.execute(update(schedules).where(schedules.c.pipeline == pipeline).values(values)).rowcount:
        conn.execute(insert(schedules).values(pipeline=pipeline, **values))


_NOT_GOOD = ("running", "failed", "refused", "interrupted", "lost")
_LAST_GOOD = (
    select(runs.c.pipeline, func.max(runs.c.run_time).label("newest"))
    .where(runs.c.reason == "scheduled", runs.c.state == "ok")
    .group_by(runs.c.pipeline)
)
