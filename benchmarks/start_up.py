"""How long a command takes before it does anything, and what a plan of 1,000 datasets costs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import keep, spread

COMMANDS = {"--help": ["--help"], "patterns": ["patterns"], "status": ["status"]}
MANY = """
from lakewright import JsonFiles, Pipeline
many = Pipeline("many", start="2026-01-01")
many.source("s0", JsonFiles("landing"), schema="n int, at timestamp", event_time="at")


def add(name, upstream):
    def step(rows):
        return rows
    many.add(step, name=name, inputs={"rows": upstream}, event_time="at")


for i in range(1, 1000):
    add(f"s{i}", f"s{(i - 1) // 3}")
"""


def main(*, pairs: int, size: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    (folder / "pipelines").mkdir()
    (folder / "landing").mkdir()
    (folder / "pipelines" / "many.py").write_text(MANY)
    (folder / "lakewright.toml").write_text('name = "bench"\n')
    bare = [sys.executable, "-c", "import typer, rich"]
    times: dict[str, list[float]] = {"bare": []}
    for _ in range(pairs + 1):
        times["bare"].append(_seconds(bare, folder))
        for name, words in COMMANDS.items():
            times.setdefault(name, []).append(_seconds([sys.executable, "-m", "lakewright", *words], folder))
    found = {name: spread(values[1:]) for name, values in times.items()}
    for name in COMMANDS:
        print(
            f"  {name}: {found[name]} s, {found[name].median / found['bare'].median:.1f} times bare (limit 6)",
            flush=True,
        )
    own = spread([_plan_seconds(folder) for _ in range(pairs)])
    print(f"  plan of 1,000 datasets: {own} s of our own time (limit 2)", flush=True)
    keep("start_up", {"commands": found, "plan_1000_seconds": own})


def _seconds(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began


def _plan_seconds(folder: Path) -> float:
    """A whole new process, less the imports that the user's own files need anyway."""
    code = (
        "import time, pyspark.sql.types, lakewright.pipelines.project, lakewright.connectors.files\n"
        "began = time.perf_counter()\n"
        "from lakewright.pipelines.project import Project\n"
        "Project('.').plan(at='2026-01-02')\n"
        "print(time.perf_counter() - began)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    return float(done.stdout)
