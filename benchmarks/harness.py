"""Interleaved pairs in one process: wall time and the JVM's CPU time, median and spread of each and of their ratio."""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Sample:
    wall: float
    cpu: float


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Comparison:
    """Ours against the baseline; the ratio is taken pair by pair."""

    name: str
    pairs: int
    ours: Spread
    baseline: Spread
    wall_ratio: Spread
    cpu_ratio: Spread
    limit: float | None
    unit: str = "s"

    def lines(self) -> list[str]:
        verdict = (
            ""
            if self.limit is None
            else f"  limit {self.limit}: {'kept' if self.wall_ratio.median <= self.limit else 'MISSED'}"
        )
        return [
            f"{self.name}: {self.pairs} pairs",
            f"  ours     {self.ours} {self.unit}",
            f"  baseline {self.baseline} {self.unit}",
            f"  wall ratio {self.wall_ratio}, JVM CPU ratio {self.cpu_ratio}{verdict}",
        ]


@contextmanager
def small_project(pipeline: str, record: str, target: str) -> Iterator[Path]:
    """A project of one pipeline file, with one record that has landed; ``target`` are keys of its target."""
    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "landing").mkdir()
        (folder / "landing" / "a.json").write_text(f"{record}\n")
        (folder / "pipelines" / "bench.py").write_text(pipeline)
        (folder / "lakewright.toml").write_text(f'name = "bench"\n[targets.dev]\n{target}\n')
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def compare(
    name: str,
    ours: Callable[[], None],
    baseline: Callable[[], None],
    *,
    jvm: int | None,
    pairs: int = 7,
    warmups: int = 2,
    limit: float | None = None,
) -> Comparison:
    """Run both in turn, the order changing with each pair so that neither always comes second."""
    for _ in range(warmups):
        baseline()
        ours()
    mine, theirs = [], []
    for pair in range(pairs):
        first, second = (ours, baseline) if pair % 2 else (baseline, ours)
        one, two = measure(first, jvm), measure(second, jvm)
        mine.append(one if pair % 2 else two)
        theirs.append(two if pair % 2 else one)
        print(f"  {name} pair {pair + 1}: ours {mine[-1].wall:.2f} s, baseline {theirs[-1].wall:.2f} s", flush=True)
    found = Comparison(
        name,
        pairs,
        spread([s.wall for s in mine]),
        spread([s.wall for s in theirs]),
        spread([a.wall / b.wall for a, b in zip(mine, theirs, strict=True)]),
        spread([a.cpu / b.cpu if b.cpu else 0.0 for a, b in zip(mine, theirs, strict=True)]),
        limit,
    )
    print("\n".join(found.lines()), flush=True)
    return found


def measure(work: Callable[[], None], jvm: int | None) -> Sample:
    gc.collect()
    cpu, began = cpu_seconds(jvm), time.perf_counter()
    work()
    return Sample(time.perf_counter() - began, cpu_seconds(jvm) - cpu)


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process so far."""
    if pid is None:
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def jvm_of(spark: Any) -> int:
    """The process id of a session's JVM."""
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def linked_copies(first: Path, targets: Iterable[Path]) -> list[Path]:
    """Equal copies of a table, made before anything is measured. Its files are never changed: links to them will do."""
    made = list(targets)
    for target in made:
        shutil.copytree(first, target, copy_function=os.link)
    return made


def bytes_written(copy: Path) -> int:
    """What was written to a linked copy since: all files that have no second name."""
    found = (file.stat() for file in copy.rglob("*") if file.is_file())
    return sum(one.st_size for one in found if one.st_nlink == 1)


def resident_mb(process: int | str | None, figure: str = "VmRSS") -> float:
    """The memory of a process, in MB: now, or at most so far (VmHWM)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return round(int(next(line for line in lines if line.startswith(figure)).split()[1]) / 1024, 1)


def heap_after_collection_mb(spark: Any) -> float:
    """What the JVM's heap holds right after a collection, in MB."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return round(float(runtime.totalMemory() - runtime.freeMemory()) / 2**20, 1)


def keep(name: str, value: Any) -> None:
    """Write a result beside the others, with the day and the machine's size."""
    RESULTS.mkdir(exist_ok=True)
    body = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count(), name: value}
    text = json.dumps(body, indent=2, default=lambda v: asdict(v) if hasattr(v, "__dataclass_fields__") else str(v))
    (RESULTS / f"{name}.json").write_text(text)
