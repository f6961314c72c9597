"""Order times: whether a run that an orchestrator asks for may begin: what its pipeline waits for, whom it follows."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, NotReady
from lakewright.model.runs import Run
from lakewright.model.schedules import newest_time
from lakewright.model.times import cell_of
from lakewright.pipelines.gates import judge
from lakewright.pipelines.orders import Order, clock_of
from lakewright.pipelines.timetables import timetable_of

if TYPE_CHECKING:
    from lakewright.pipelines.definitions import Settings
    from lakewright.pipelines.graph import Graph
    from lakewright.store import Store

__all__ = ["passed_over", "refuse_too_early"]

_A_MOMENT = timedelta(microseconds=1)


def refuse_too_early(
    order: Order, settings: Settings, store: Store, at: datetime, *, folder: Path, now: datetime
) -> None:
    """Raise `NotReady` where the pipeline waits for a dataset; another error where that took longer than it may."""
    if not order.has_a_time:
        return
    for held in judge(timetable_of(settings, folder=folder), [at], store, now).held:
        told = f"{settings.pipeline}: {at:%Y-%m-%d %H:%M} waits: {held.reason}. Nothing was started."
        raise LakewrightError(told) if held.overdue else NotReady(told)


def passed_over(
    order: Order, settings: Settings, graph: Graph, store: Store, at: datetime, *, now: datetime
) -> str | None:
    """Why a time of the pipeline that is followed has no run here, which is recorded; None where it has one."""
    after = settings.after
    if after is None or after.every is None or not order.has_a_time:
        return None
    clock = clock_of(settings, graph)
    before = newest_time(clock.schedule, until=at - _A_MOMENT, timezone=clock.timezone) if clock.schedule else None
    if before is None or cell_of(before, after.every) != cell_of(at, after.every):
        return None
    why = f"{after.pipeline} is followed once for each {after.every}"
    run = Run(order.run_id, settings.pipeline, at, order.recorded, attempt=0)
    store.runs.settle(run, "skipped", now=now, error=why, options={})
    return f"{settings.pipeline}: {at:%Y-%m-%d %H:%M} is skipped: {why}."
