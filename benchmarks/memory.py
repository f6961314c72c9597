"""Whether the driver's memory is flat: over many micro-batches of one stream, and over many runs of one project."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import heap_after_collection_mb, jvm_of, keep, resident_mb
from benchmarks.kafka import SCHEMA, fill

BATCHES = 500
RUNS = 1_000
LOOKS = 20
"""How often the memory is looked at, evenly over the whole."""
PIPELINE = """
from lakewright import JsonFiles, KafkaTopic, Pipeline
shop = Pipeline("shop", start="2026-01-01")
shop.source("visits", KafkaTopic("broker", "visits"), schema="{schema}", event_time="event_time", mode="stream",
            max_records=2)
shop.source("orders", JsonFiles("landing"), schema="n int")


@shop.dataset(inputs={{"rows": "orders"}})
def doubled(rows):
    return rows.selectExpr("n", "2 * n AS twice")
"""


@dataclass(frozen=True)
class Look:
    """The memory of the driver's two processes, in MB; the heap right after a collection."""

    done: int
    python: float
    java: float
    heap: float


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import down, up

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    services = folder / ".lakewright" / "services"
    try:
        for name in ("pipelines", "landing"):
            (folder / name).mkdir()
        (folder / "pipelines" / "shop.py").write_text(PIPELINE.format(schema=SCHEMA))
        (folder / "landing" / "a.json").write_text('{"n": 1}\n')
        (folder / "lakewright.toml").write_text('name = "bench"\n[connections.broker]\nservice = "kafka"\n')
        (broker,) = up(services, ["kafka"])
        assert broker.address is not None
        with Project(folder) as project:
            for error in project.run(["orders"], at="2026-01-02").errors:
                raise error
            done: Counter[str] = Counter()
            runs = follow("runs", RUNS, project, lambda: _runs(project, done), lambda: done.total())
            fill(broker.address.url, "visits", 2 * BATCHES)
            commits = project.lake.delta_log("visits")
            batches = follow(
                "micro-batches", BATCHES, project, lambda: _stream(project), lambda: (commits.latest() or 0) + 1
            )
            keep("memory", {"runs": runs, "batches": batches})
    finally:
        down(services, ["kafka"], delete=True)
        shutil.rmtree(folder, ignore_errors=True)


def follow(what: str, count: int, project: Any, work: Callable[[], None], done: Callable[[], int]) -> list[Look]:
    """Look at the memory beside the work; the second quarter is compared with the last, for the first one warms up."""
    looks: list[Look] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if done() >= (len(looks) + 1) * count // LOOKS:
                looks.append(look(done(), project.spark()))
                print(f"  {what}: {looks[-1]}", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    work()
    over.set()
    watcher.join()
    for name in ("python", "java", "heap"):
        values = [getattr(found, name) for found in looks]
        before, after = (statistics.median(part) for part in (_quarter(values, 1), _quarter(values, 3)))
        print(f"  {count:,} {what}, {name}: {before:.0f} MB in the second quarter, {after:.0f} in the last", flush=True)
    return looks


def look(done: int, spark: Any) -> Look:
    heap = heap_after_collection_mb(spark)
    return Look(done, resident_mb("self"), resident_mb(jvm_of(spark)), heap)


def _runs(project: Any, done: Counter[str]) -> None:
    for _ in range(RUNS):
        for error in project.run(["doubled"], at="2026-01-02", again=True).errors:
            raise error
        done["run"] += 1


def _stream(project: Any) -> None:
    for error in project.run(["visits"]).errors:
        raise error


def _quarter(values: Sequence[float], number: int) -> Sequence[float]:
    size = len(values) // 4
    return values[number * size : (number + 1) * size]
