"""Whether `status` and `plan` slow down as the store fills: 1,000 receipts against 100,000."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from benchmarks.harness import keep, spread
from lakewright.model.receipts import Change, Counters, Receipt
from lakewright.pipelines.project import Project

DATASETS = 20
PIPELINE = """
from lakewright import JsonFiles, Pipeline
many = Pipeline("many", start="2000-01-01")
many.source("s0", JsonFiles("landing"), schema="n int, at timestamp", event_time="at")


def add(name, upstream):
    def step(rows):
        return rows
    many.add(step, name=name, inputs={"rows": upstream}, event_time="at")


for i in range(1, %d):
    add(f"s{i}", f"s{i - 1}")
"""


def main(*, pairs: int, size: int) -> None:
    few, many = _filled(1_000), _filled(100_000)
    found = {}
    for command in (["plan", "--at", "2030-01-01"], ["status"]):
        times: dict[str, list[float]] = {"few": [], "many": [], "ratio": []}
        for _ in range(pairs):
            times["few"].append(_seconds(command, few))
            times["many"].append(_seconds(command, many))
            times["ratio"].append(times["many"][-1] / times["few"][-1])
        found[command[0]] = {name: spread(values) for name, values in times.items()}
        told = found[command[0]]
        print(f"  {command[0]}: 1,000 receipts {told['few']} s, 100,000 receipts {told['many']} s", flush=True)
        print(f"    {told['ratio']} times as long (limit 2)", flush=True)
    for name, project in (("1,000", few), ("100,000", many)):
        inner = spread([_inner(project) for _ in range(pairs)])
        print(f"  deciding alone, without the start of a process, {name} receipts: {inner} s", flush=True)
        found[f"inner {name}"] = {"plan": inner}
    keep("receipts", found)


def _seconds(words: list[str], project: Project) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "lakewright", *words], cwd=project.folder, check=True, capture_output=True)
    return time.perf_counter() - began


def _inner(project: Project) -> float:
    began = time.perf_counter()
    project.plan(at="2030-01-01")
    return time.perf_counter() - began


def _filled(total: int) -> Project:
    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    (folder / "pipelines").mkdir()
    (folder / "landing").mkdir()
    (folder / "pipelines" / "many.py").write_text(PIPELINE % DATASETS)
    (folder / "lakewright.toml").write_text('name = "bench"\n')
    project = Project(folder)
    # A settled project: each slice was made some times over, and all but the last receipt of it are history.
    slices = 50
    days = [(date(2026, 1, 1) + timedelta(days=n)).isoformat() for n in range(slices)]
    repeats = max(1, total // (DATASETS * slices))
    codes = project.codes
    for i in range(DATASETS):
        name, receipts, version = f"s{i}", [], 0
        for _ in range(repeats):
            for day in days:
                version += 1
                receipts.append(
                    Receipt(
                        dataset=name,
                        slice_id=day if i else f"arrival-{version}",
                        kind="data",
                        version=version,
                        version_before=version - 1,
                        number=version,
                        committed_at=datetime(2026, 6, 1, tzinfo=UTC),
                        rows=10,
                        counters=Counters(written=10),
                        touched={day: Change(10, 10 if i else 0)},
                        inputs={f"s{i - 1}": repeats * slices} if i else {},
                        code=codes[name],
                    )
                )
        project.store.receipts.add(receipts)
    return project
