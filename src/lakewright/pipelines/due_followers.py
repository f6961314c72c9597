"""Due followers: the runs that pipelines owe to those that they follow, where no scheduler is there to start them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from lakewright.pipelines.definitions import Settings
from lakewright.pipelines.progress import Listener, Note, RunSummary
from lakewright.pipelines.schedule_facts import gather
from lakewright.pipelines.scheduler_links import Links
from lakewright.pipelines.scheduling import decide
from lakewright.pipelines.timetables import Timetable, followed_clock, timetable_of
from lakewright.store import Store

__all__ = ["run_followers"]

Run = Callable[[Settings, datetime], RunSummary]


def run_followers(
    store: Store, known: Mapping[str, Settings], run: Run, *, until: datetime, folder: Path, listener: Listener
) -> list[RunSummary]:
    """Runs each time of a pipeline that is followed, one link of a chain after another, until nothing more is due.

    A pipeline whose run did not succeed is left for the next call. Backfills are followed by a scheduler alone.
    """
    tables = [_timetable(one, known, folder) for one in known.values() if one.after is not None]
    links = Links(store, tell=lambda words, severity: listener(Note(words, severity)), count=Counter())
    summaries: list[RunSummary] = []
    tried: set[tuple[str, datetime]] = set()
    stopped: set[str] = set()
    before = -1
    while tables and before < len(tried):
        before, facts = len(tried), gather(store, tables, until)
        for table in tables:
            for time in links.settle(table, decide(table, facts, until), facts, until).times:
                if (table.pipeline, time) in tried or table.pipeline in stopped:
                    continue
                tried.add((table.pipeline, time))
                summaries.append(run(known[table.pipeline], time))
                if summaries[-1].state == "interrupted":
                    return summaries
                if summaries[-1].state != "ok" and (table.concurrency == 1 or table.depends_on_past):
                    stopped.add(table.pipeline)
    return summaries


def _timetable(settings: Settings, known: Mapping[str, Settings], folder: Path) -> Timetable:
    clock = followed_clock(settings, known)
    table = timetable_of(settings, folder=folder)
    if clock is None:
        return table
    return replace(table, after_schedule=clock.schedule, after_timezone=clock.timezone)
