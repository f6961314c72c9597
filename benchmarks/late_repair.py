"""Late rows for 3 of 365 daily slices: only those are read and written.

Commits tell what was written; what was read, the list of files that the optimiser leaves of each step's input.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness import keep

PIPELINE = """
import json
from pathlib import Path

from lakewright import JsonFiles, Pipeline
from pyspark.sql import functions as F

visits = Pipeline("visits", start="2025-01-01")
visits.source("raw", JsonFiles("landing"), schema="id long, at timestamp", event_time="at")


def note_scan(step, frame):
    with (Path(__file__).parent.parent / "scanned.jsonl").open("a") as file:
        file.write(json.dumps([step, frame.inputFiles()]) + "\\n")


@visits.dataset(event_time="at", rows="preserve")
def clean(raw):
    note_scan("clean", raw)
    return raw


@visits.dataset(event_time="day", rows="reduce")
def daily(clean):
    note_scan("daily", clean)
    return clean.groupBy(F.to_date("at").alias("day")).agg(F.count("*").alias("visits"))
"""
FIRST = date(2025, 1, 1)


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    days = [str(FIRST + timedelta(days=n)) for n in range(365 if size >= 100_000 else 30)]
    late = days[3], days[len(days) // 2], days[-2]
    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "visits.py").write_text(PIPELINE)
        (folder / "lakewright.toml").write_text('name = "bench"\n')
        per_day = max(size // len(days), 1)
        _land(folder, "first.json", [day for day in days for _ in range(per_day)])
        with Project(folder) as project:
            all_seconds = _run(project)
            before = {name: project.lake.log(name).latest() for name in ("raw", "clean", "daily")}
            (folder / "scanned.jsonl").unlink()
            _land(folder, "late.json", late)
            seconds = _run(project)
            scanned, written = _scanned(folder), {}
            for name in ("clean", "daily"):
                commits = list(project.lake.log(name).commits(after=before[name]))
                written[name] = sorted({cell for commit in commits for cell in commit.touched})
                assert len(commits) == len(late), f"{name}: {len(commits)} commits"
                assert written[name] == sorted(late), written[name]
        assert scanned == {name: sorted(late) for name in written}, scanned
        found = {"slices": len(days), "rows": per_day * len(days), "late": late, "scanned": scanned}
        found |= {"written": written, "all_seconds": all_seconds, "repair_seconds": seconds}
        print(
            f"late repair: {len(late)} of {len(days)} slices read and written, {seconds:.1f} s "
            f"({all_seconds:.1f} s for all of them)",
            flush=True,
        )
        keep("late_repair", found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(project: Any) -> float:
    began = time.perf_counter()
    for error in project.run(at="2026-06-01").errors:
        raise error
    return time.perf_counter() - began


def _scanned(folder: Path) -> dict[str, list[str]]:
    """By step the days whose files it was given to read."""
    found: dict[str, set[str]] = {}
    for line in (folder / "scanned.jsonl").read_text().splitlines():
        step, files = json.loads(line)
        found.setdefault(step, set()).update(file.split("_lw_event=")[1].split("/")[0] for file in files)
    return {step: sorted(days) for step, days in found.items()}


def _land(folder: Path, name: str, days: Any) -> None:
    file = folder / "landing" / name
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as out:
        for number, day in enumerate(days):
            out.write(f'{{"id": {number}, "at": "{day}T12:00:00Z"}}\n')
