"""How long the scheduler takes to decide 1,000 due slices (limit: 1 s): in one pipeline, and in a hundred.

From the store on, with a year of hourly runs in it, to the times that it would hand out. Needs no Spark.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.harness import keep, spread
from lakewright.model.runs import Run
from lakewright.pipelines.schedule_facts import gather
from lakewright.pipelines.scheduling import decide, scheduled_run_id
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store, open_store

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KINDS = {
    "one pipeline, 1,000 times": (1, 1000, None),
    "100 pipelines, 10 times each": (100, 10, None),
    "100 pipelines, 10 times each, in a zone": (100, 10, "Europe/Warsaw"),
}


def main(*, pairs: int, size: int) -> None:
    found = {}
    for name, (pipelines, due, zone) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder, _filled(Path(folder), pipelines, due) as store:
            tables = [Timetable(f"p{number}", "@hourly", timezone=zone) for number in range(pipelines)]
            found[name] = {"seconds": spread([_decide(store, tables) for _ in range(pairs)])}
        print(f"  {name}: {found[name]['seconds']} s (limit 1)", flush=True)
    keep("scheduler", found)


def _decide(store: Store, tables: list[Timetable]) -> float:
    began = time.perf_counter()
    facts = gather(store, tables, NOW)
    slices = sum(len(decide(table, facts, NOW).times) for table in tables)
    assert slices == 1000, slices
    return time.perf_counter() - began


def _filled(folder: Path, pipelines: int, due: int) -> Store:
    """A store with 8,760 good runs, the last of each pipeline ``due`` hours ago."""
    store = open_store(f"sqlite:///{folder}/store.db")
    with store.transaction() as conn:
        for number in range(8760):
            pipeline, back = f"p{number % pipelines}", number // pipelines
            at = NOW - timedelta(hours=due + back)
            run = Run(scheduled_run_id(pipeline, at), pipeline, at, "scheduled")
            store.runs.start(run, owner_id=None, options={}, now=at, conn=conn)
            store.runs.finish(run.run_id, "ok", now=at, conn=conn)
    return store
