"""What a step costs beyond its write: a chain of 100 datasets against the same 100 Delta writes by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep, measure, small_project, spread
from benchmarks.silver import CHECK_ROWS
from lakewright.model.receipts import Commit

LENGTH = 100
PIPELINE = """
from lakewright import JsonFiles, Pipeline
chain = Pipeline("chain", start="2026-01-01")
chain.source("d0", JsonFiles("landing"), schema="n int")


def add(name, upstream):
    def step(rows):
        return rows
    chain.add(step, name=name, inputs={"rows": upstream})


for i in range(1, %d + 1):
    add(f"d{i}", f"d{i - 1}")
"""


@dataclass(frozen=True)
class Counting:
    """A writer that only counts: what is left is the runner, the store and the lake's bookkeeping."""

    streams: bool = False
    replaces_slice: bool = True

    def publish(self, frame: Any, ctx: Any) -> Commit:
        version = (ctx.table.log.latest() or 0) + 1
        return Commit(version, datetime.now(UTC), "WRITE", ctx.table.identity.to_json(), {"numOutputRows": 1}, {})


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    with small_project(PIPELINE % LENGTH, '{"n": 1}', "parallel = 1") as folder, Project(folder) as project:
        for error in project.run(at="2026-01-02").errors:
            raise error
        found = compare(
            f"{LENGTH} chained datasets",
            lambda: _ours(project),
            lambda: _by_hand(project, folder / "by_hand"),
            jvm=jvm_of(project.spark()),
            pairs=pairs,
            warmups=1,
        )
        extra = (found.ours.median - found.baseline.median) / LENGTH * 1000
        print(f"  beyond the write by hand: {extra:.1f} ms per step (limit 50)", flush=True)
        counted = _counting(project, pairs)
        print(f"  with a writer that only counts: {counted} ms per step (limit 20)", flush=True)
        keep("chain", {"comparison": found, "extra_ms_per_step": extra, "counting_ms_per_step": counted})


def _ours(project: Any) -> None:
    names = [f"d{i}" for i in range(1, LENGTH + 1)]
    summary = project.run(names, at="2026-01-02", again=True, slices=["arrival-1"])
    for error in summary.errors:
        raise error
    assert len(summary.made) == LENGTH


def _by_hand(project: Any, target: Path) -> None:
    spark = project.spark()
    spark.conf.set(CHECK_ROWS, "false")
    above = project.lake.resolve("d0")
    for i in range(1, LENGTH + 1):
        rows = spark.read.format("delta").load(above).select("n")
        path = str(target / f"d{i}")
        writer = rows.selectExpr("*", "1L AS _lw_arrival").write.format("delta").mode("overwrite")
        writer.partitionBy("_lw_arrival").option("replaceWhere", "_lw_arrival = 1").save(path)
        above = path


def _counting(project: Any, pairs: int) -> Any:
    graph = project.graph
    for name, dataset in graph.datasets.items():
        if not dataset.is_source:
            graph.datasets[name] = replace(dataset, writer=Counting())
    _ours(project)
    return spread([measure(lambda: _ours(project), None).wall / LENGTH * 1000 for _ in range(pairs)])
