"""What a step costs in a wide graph: 1,000 datasets in 20 levels, 4 at once, with a writer that only counts.

Limit: 20 ms of our own time for each. The tables are made by hand, empty: a thousand Delta writes prove nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import keep, measure, small_project, spread
from lakewright.model.receipts import Commit

LEVELS, WIDTH, AT_ONCE = 20, 50, 4
STEPS = LEVELS * WIDTH
LIMIT = 20
PIPELINE = f"""
from lakewright import JsonFiles, Pipeline
wide = Pipeline("wide", start="2026-01-01")
wide.source("d0", JsonFiles("landing"), schema="n int")


def add(name, upstream):
    def step(rows):
        return rows
    wide.add(step, name=name, inputs={{"rows": upstream}})


for number in range({STEPS}):
    add(f"d{{number + 1}}", f"d{{number + 1 - {WIDTH}}}" if number >= {WIDTH} else "d0")
"""


@dataclass(frozen=True)
class Counting:
    """A writer that only counts. A new table begins with the first commit of another one, without its rows."""

    pattern: Path
    streams: bool = False
    replaces_slice: bool = True

    def publish(self, frame: Any, ctx: Any) -> Commit:
        version = (ctx.table.log.latest() or 0) + 1
        log = Path(ctx.table.path) / "_delta_log"
        if not log.exists():
            log.mkdir(parents=True)
            lines = self.pattern.read_text().splitlines(keepends=True)
            (log / self.pattern.name).write_text("".join(line for line in lines if not line.startswith('{"add"')))
            version = 0
        return Commit(version, datetime.now(UTC), "WRITE", ctx.table.identity.to_json(), {"numOutputRows": 1}, {})


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    with small_project(PIPELINE, '{"n": 1}', f"parallel = {AT_ONCE}") as folder, Project(folder) as project:
        _run(project, ["d0", "d1"])
        _count_only(project)
        first = measure(lambda: _run(project, ["d0+"]), None).wall / STEPS * 1000
        print(f"  the first run: {first:.1f} ms per step", flush=True)
        again = {"again": True, "slices": ["arrival-1"]}
        names = [f"d{number + 1}" for number in range(STEPS)]
        found = spread([measure(lambda: _run(project, names, **again), None).wall / STEPS * 1000 for _ in range(pairs)])
    verdict = "kept" if found.median < LIMIT else "MISSED"
    print(f"  {STEPS:,} steps in {LEVELS} levels: {found} ms per step, limit {LIMIT}: {verdict}", flush=True)
    keep("levels", {"first_run_ms_per_step": first, "ms_per_step": found})


def _run(project: Any, names: list[str], **how: Any) -> None:
    for error in project.run(names, at="2026-01-02", **how).errors:
        raise error


def _count_only(project: Any) -> None:
    pattern = Path(project.lake.resolve("d1")) / "_delta_log" / f"{0:020}.json"
    for name, dataset in project.graph.datasets.items():
        if not dataset.is_source:
            project.graph.datasets[name] = replace(dataset, writer=Counting(pattern))
