"""What a scheduler does for pipelines that wait for others: hold times back, and record those that nobody will run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime

from lakewright.model.runs import Run, RunState
from lakewright.pipelines.following import following_run_id
from lakewright.pipelines.gates import judge
from lakewright.pipelines.scheduler_jobs import Tell
from lakewright.pipelines.scheduling import Decision, Facts, scheduled_run_id
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store

__all__ = ["Links", "decline", "held_back"]


class Links:
    """The links of one project's pipelines."""

    def __init__(self, store: Store, *, tell: Tell, count: Counter[str]) -> None:
        self._store, self._tell, self._count = store, tell, count

    def settle(self, table: Timetable, decision: Decision, facts: Facts, now: datetime) -> Decision:
        """Record the times that were skipped, or whose wait has failed; what is left may be run."""
        if table.pipeline in facts.paused:
            return decision
        decision = held_back(table, decision, self._store, now)
        for time, why in decision.skipped:
            self._record(table.pipeline, time, "skipped", why, now)
        for time, why in decision.failed:
            self._record(table.pipeline, time, "failed", why, now)
        if table.after is not None and table.after.backfills == "decline" and decision.backfill is not None:
            decline(self._store, table.pipeline, decision.backfill.run_id, now)
            decision = replace(decision, backfill=None)
        return decision

    def _record(self, pipeline: str, time: datetime, state: RunState, why: str, now: datetime) -> None:
        run = Run(scheduled_run_id(pipeline, time), pipeline, time, "scheduled", attempt=0)
        if self._store.runs.settle(run, state, now=now, error=why, options={}):
            self._count[state] += 1
            self._tell(f"{pipeline}: {time:%Y-%m-%d %H:%M} {state}: {why}", "warning" if state == "failed" else "info")


def held_back(table: Timetable, decision: Decision, store: Store, now: datetime) -> Decision:
    """The same without times whose datasets are not ready, and without a backfill that somebody is asked about."""
    judged = judge(table, decision.times, store, now)
    overdue = tuple((one.time, f"{one.reason}. Nothing was started.") for one in judged.held if one.overdue)
    waits = [f"{one.time:%Y-%m-%d %H:%M} waits: {one.reason}" for one in judged.held[:1]]
    announced, after = decision.backfill, table.after
    if announced is not None and after is not None and after.backfills == "ask":
        waits.append(
            f"{after.pipeline} was backfilled from {announced.start:%Y-%m-%d} to {announced.end:%Y-%m-%d}; `lakewright "
            f"work {table.pipeline} --backfill {announced.run_id}` follows, with --decline it is left as it is"
        )
        announced = None
    told = "; ".join([*([decision.waits] if decision.waits else []), *waits])
    failed = (*decision.failed, *overdue)
    return replace(decision, times=judged.ready, waits=told, failed=failed, backfill=announced)


def decline(store: Store, pipeline: str, run_id: str, now: datetime) -> bool:
    """Record that a backfill of another pipeline is not followed; False where it was answered before."""
    run = Run(following_run_id(pipeline, run_id), pipeline, now, "backfill", attempt=0)
    return store.runs.settle(run, "skipped", now=now, error=f"the backfill {run_id} was declined", options={})
