"""Runs: each execution of a pipeline, from its start to how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, Engine, Row, Select, insert, select, update

from lakewright.errors import StoreError
from lakewright.model.arrivals import JsonValue
from lakewright.model.runs import Reason, Run, RunState
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import runs

__all__ = ["RunRecord", "Runs"]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as it was recorded."""

    run_id: str
    pipeline: str
    reason: Reason
    run_time: datetime
    attempt: int
    state: RunState
    started_at: datetime
    ended_at: datetime | None = None
    owner_id: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    summary: Mapping[str, JsonValue] | None = None
    error: str | None = None
    cancel_requested: bool = False
    asked_at: datetime | None = None
    """Since when it has waited for a place, or for its time to be handed out."""

    @property
    def queued_seconds(self) -> float | None:
        """How long it waited before it began; None where nobody noted it."""
        return None if self.asked_at is None else max((self.started_at - self.asked_at).total_seconds(), 0.0)


class Runs:
    """The runs of all pipelines; their ids are made by the caller."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(
        self,
        run: Run,
        *,
        owner_id: str | None,
        options: Mapping[str, JsonValue],
        now: datetime,
        asked_at: datetime | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Record that a run has begun; a further attempt of the same run takes over its row."""
        values = {
            "pipeline": run.pipeline,
            "reason": run.reason,
            "run_time": run.time,
            "attempt": run.attempt,
            "state": "running",
            "started_at": now,
            "ended_at": None,
            "owner_id": owner_id,
            "options": dict(options),
            "summary": None,
            "error": None,
            "cancel_requested": False,
            "asked_at": asked_at,
        }
        with writing(self._engine, conn) as c:
            if not c.execute(update(runs).where(runs.c.run_id == run.run_id).values(values)).rowcount:
                c.execute(insert(runs).values(run_id=run.run_id, **values))

    def finish(
        self,
        run_id: str,
        state: RunState,
        *,
        now: datetime,
        error: str | None = None,
        summary: Mapping[str, JsonValue] | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Record how a run ended."""
        values = {
            "state": state,
            "ended_at": now,
            "error": error,
            "summary": None if summary is None else dict(summary),
        }
        with writing(self._engine, conn) as c:
            if not c.execute(update(runs).where(runs.c.run_id == run_id).values(values)).rowcount:
                raise StoreError(f"The store knows no run '{run_id}', so it cannot be closed as '{state}'.")

    def settle(self, run: Run, state: RunState, *, now: datetime, error: str, options: Mapping[str, JsonValue]) -> bool:
        """Record how a run ended that was never begun; False where it is known already, which stays as it is."""
        with writing(self._engine) as c:
            if c.execute(select(runs.c.run_id).where(runs.c.run_id == run.run_id)).first() is not None:
                return False
            self.start(run, owner_id=None, options=options, now=now, conn=c)
            self.finish(run.run_id, state, now=now, error=error, conn=c)
            return True

    def get(self, run_id: str) -> RunRecord | None:
        """One run, or None."""
        found = self._records(select(runs).where(runs.c.run_id == run_id))
        return found[0] if found else None

    def of_time(self, pipeline: str, time: datetime) -> RunRecord | None:
        """The scheduled run of a time of a pipeline that began last, or None."""
        mine = (runs.c.reason == "scheduled") & (runs.c.pipeline == pipeline) & (runs.c.run_time == time)
        found = self._records(select(runs).where(mine).order_by(runs.c.started_at.desc()).limit(1))
        return found[0] if found else None

    def latest(self, pipeline: str | None = None, limit: int = 20) -> list[RunRecord]:
        """The runs that began last, newest first."""
        query = select(runs).order_by(runs.c.started_at.desc(), runs.c.run_id.desc()).limit(limit)
        return self._records(query if pipeline is None else query.where(runs.c.pipeline == pipeline))

    def unfinished(self, pipeline: str | None = None) -> list[RunRecord]:
        """The runs that have no end, oldest first; whether anybody works on them, the leases tell."""
        query = select(runs).where(runs.c.state == "running").order_by(runs.c.started_at, runs.c.run_id)
        return self._records(query if pipeline is None else query.where(runs.c.pipeline == pipeline))

    def last_scheduled(self, pipeline: str) -> datetime | None:
        """The latest logical time for which a scheduled run of a pipeline succeeded."""
        good = (runs.c.pipeline == pipeline) & (runs.c.reason == "scheduled") & (runs.c.state == "ok")
        newest = select(runs.c.run_time).where(good).order_by(runs.c.run_time.desc()).limit(1)
        with reading(self._engine) as c:
            found: datetime | None = c.execute(newest).scalar()
        return found

    def request_cancel(self, run_id: str, conn: Connection | None = None) -> bool:
        """Ask a run to stop; False where it is not running."""
        asked = update(runs).where(runs.c.run_id == run_id, runs.c.state == "running")
        with writing(self._engine, conn) as c:
            return c.execute(asked.values(cancel_requested=True)).rowcount > 0

    def cancel_requested(self, run_id: str) -> bool:
        """Whether somebody has asked the run to stop."""
        with reading(self._engine) as c:
            return bool(c.execute(select(runs.c.cancel_requested).where(runs.c.run_id == run_id)).scalar())

    def mark_lost(self, run_ids: Sequence[str], now: datetime, conn: Connection | None = None) -> int:
        """Close the runs whose worker is gone; their open steps stay open until they are recovered."""
        lost = update(runs).where(runs.c.run_id.in_(run_ids), runs.c.state == "running")
        with writing(self._engine, conn) as c:
            return c.execute(lost.values(state="lost", ended_at=now)).rowcount

    def _records(self, query: Select[tuple[object, ...]]) -> list[RunRecord]:
        with reading(self._engine) as c:
            return [_record(row) for row in c.execute(query)]


def _record(row: Row[tuple[object, ...]]) -> RunRecord:
    return RunRecord(**row._mapping)
