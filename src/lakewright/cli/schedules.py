"""`lakewright schedules`: when each pipeline is due, and what it waits for. Starts no Spark."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewright.cli.opening import declared_pipelines, open_existing_store, settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.model.schedules import next_time
from lakewright.model.times import utc_now

if TYPE_CHECKING:
    from lakewright.pipelines.scheduling import Decision, Facts
    from lakewright.pipelines.timetables import Timetable

__all__ = ["schedules"]


def schedules(screen: Screen) -> None:
    """Show the schedule of each pipeline: its last good time, what is due now, the next time, and what it waits for.

    All times are UTC. Starts no Spark and changes nothing.
    """
    from lakewright.pipelines.schedule_facts import gather
    from lakewright.pipelines.scheduler_links import held_back
    from lakewright.pipelines.scheduling import Facts, decide
    from lakewright.pipelines.timetables import timetables_of

    settings, now = settings_of(screen), utc_now()
    tables = timetables_of(declared_pipelines(screen), pools=settings.pools, folder=settings.folder)
    with open_existing_store(screen) as store:
        facts = Facts() if store is None else gather(store, tables, now)
        decisions = [decide(table, facts, now) for table in tables]
        if store is not None:
            decisions = [held_back(table, one, store, now) for table, one in zip(tables, decisions, strict=True)]
    found = [_as_json(table, facts, one, now) for table, one in zip(tables, decisions, strict=True)]
    if screen.as_json:
        screen.show_json({"schedules": found, "error": None})
        return
    columns = ["pipeline", "schedule", "catch up", "last good", "due", "next", "note"]
    screen.show(plain_table(columns, [_cells(one, table) for one, table in zip(found, tables, strict=True)]))


def _as_json(table: Timetable, facts: Facts, decision: Decision, now: datetime) -> dict[str, Any]:
    upcoming = None
    if table.schedule is not None:
        upcoming = next_time(table.schedule, after=now, timezone=table.timezone)
    return {
        "pipeline": table.pipeline,
        "timetable": table.as_json(),
        "paused": table.pipeline in facts.paused,
        "last_good": facts.last_good.get(table.pipeline),
        "due": list(decision.times),
        "next": upcoming,
        "waits": decision.waits,
    }


def _cells(found: dict[str, Any], table: Timetable) -> list[str]:
    due = found["due"]
    first = "-" if not due else _minute(due[0]) + (f" and {len(due) - 1} more" if len(due) > 1 else "")
    note = found["waits"] or ("paused" if found["paused"] else "")
    if table.pool is not None:
        note = f"{note}; " * bool(note) + f"pool {table.pool}, {table.slots} at once"
    if table.triggers:
        note = f"{note}; " * bool(note) + f"triggers: {', '.join(table.triggers)}"
    policy = table.catch_up if table.schedule else "-"
    return [table.pipeline, table.words, policy, _minute(found["last_good"]), first, _minute(found["next"]), note]


def _minute(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"
