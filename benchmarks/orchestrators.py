"""What a step costs beyond its work: the same chain of 10 on Airflow, Spark Declarative Pipelines and ours.

Limit: ours is a twentieth of each of the others. All are warm, and each step does as little as it can: a task of
Airflow nothing at all, ours hands one row to a writer that only counts. Declarative Pipelines always write a table, so
the same writes by hand are taken off, and what they need once for a run as well: a chain of 10 is compared with 1.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.chain import PIPELINE, Counting
from benchmarks.harness import Spread, keep, spread

LENGTH = 10
LIMIT = 20
DAG = """
from airflow.sdk import DAG, task
with DAG("chain", schedule=None):
    @task
    def step(before=None):
        pass
    last = None
    for number in range({length}):
        last = step.override(task_id=f"step{{number}}")(last)
"""
VIEWS = """
from pyspark import pipelines as dp

def add(name, above):
    @dp.materialized_view(name=name, format="parquet")
    def step():
        return spark.range(1) if above is None else spark.read.table(above)

for number in range({length}):
    add(f"{prefix}{{number}}", f"{prefix}{{number - 1}}" if number else None)
"""
SPEC = """
name: {prefix}
storage: file://{folder}/storage
libraries:
  - glob:
      include: {prefix}.py
"""


def main(*, pairs: int, size: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        found = {
            "ours": _ours(folder / "ours", pairs),
            "declarative pipelines": _declarative(folder / "declarative", pairs),
            "airflow": _airflow(folder / "airflow", pairs),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ours = found["ours"].median
    for name, figure in found.items():
        times = figure.median / ours
        verdict = "" if name == "ours" else f", {times:.0f} times ours, limit {LIMIT}: {_verdict(times)}"
        print(f"  {name}: {figure} ms per step{verdict}", flush=True)
    keep("orchestrators", {"ms_per_step": found, "times_ours": {k: v.median / ours for k, v in found.items()}})


def _verdict(times: float) -> str:
    return "kept" if times >= LIMIT else "MISSED"


def _ours(folder: Path, rounds: int) -> Spread:
    from lakewright.pipelines.project import Project

    (folder / "pipelines").mkdir(parents=True)
    (folder / "landing").mkdir()
    (folder / "landing" / "a.json").write_text('{"n": 1}\n')
    (folder / "pipelines" / "chain.py").write_text(PIPELINE % LENGTH)
    (folder / "lakewright.toml").write_text('name = "bench"\n[targets.dev]\nparallel = 1\n')
    with Project(folder) as project:
        for error in project.run(at="2026-01-02").errors:
            raise error
        for name, dataset in project.graph.datasets.items():
            if not dataset.is_source:
                project.graph.datasets[name] = replace(dataset, writer=Counting())

        def once() -> None:
            names = [f"d{number}" for number in range(1, LENGTH + 1)]
            summary = project.run(names, at="2026-01-02", again=True, slices=["arrival-1"])
            assert len(summary.made) == LENGTH, summary.errors

        return spread([seconds / LENGTH * 1000 for seconds in _timed(once, rounds)])


def _declarative(folder: Path, rounds: int) -> Spread:
    from pyspark.sql.connect.session import SparkSession

    from lakewright.runtime.services import down, up

    folder.mkdir(parents=True)
    services = folder / "services"
    (server,) = up(services, ["connect"])
    assert server.address is not None
    spark: Any = SparkSession.builder.remote(server.address.url).create()
    try:
        for prefix, length in (("long", LENGTH), ("short", 1)):
            (folder / f"{prefix}.py").write_text(VIEWS.format(length=length, prefix=prefix))
            (folder / f"{prefix}.yml").write_text(SPEC.format(folder=folder, prefix=prefix))
        long = _timed(lambda: _run_views(spark, folder / "long.yml"), rounds)
        short = _timed(lambda: _run_views(spark, folder / "short.yml"), rounds)
        spark.range(1).write.format("parquet").saveAsTable("hand0")
        by_hand = _timed(lambda: _write_by_hand(spark), rounds)
        more = LENGTH - 1
        return spread([(a - b - c) / more * 1000 for a, b, c in zip(long, short, by_hand, strict=True)])
    finally:
        spark.stop()
        down(services)


def _run_views(spark: Any, file: Path) -> None:
    """What `spark-pipelines run` does, in a session that is warm."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

    spec = load_pipeline_spec(file)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        graph = create_dataflow_graph(spark, None, None, {})
        register_definitions(file, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
        handle_pipeline_events(start_run(spark, graph, [], False, [], False, spec.storage))


def _write_by_hand(spark: Any) -> None:
    """The writes that a chain of 10 has beyond those of a chain of 1."""
    for number in range(1, LENGTH):
        above = spark.read.table(f"hand{number - 1}")
        above.write.mode("overwrite").format("parquet").saveAsTable(f"hand{number}")


def _airflow(folder: Path, rounds: int) -> Spread:
    from lakewright.testing.airflow import Airflow, ensure_airflow, running_airflow

    airflow = Airflow(ensure_airflow(print), folder)
    airflow.dags.mkdir(parents=True)
    (airflow.dags / "chain.py").write_text(DAG.format(length=LENGTH))
    airflow.prepare()
    with running_airflow(airflow):
        airflow.call("PATCH", "dags/chain", is_paused=False)
        seconds = [_run_dag(airflow, number) for number in range(rounds + 1)][1:]
    return spread([one / LENGTH * 1000 for one in seconds])


def _run_dag(airflow: Any, number: int) -> float:
    """From the run's start to its end, as Airflow itself tells it."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    run_id = airflow.trigger("chain", at.isoformat())
    assert airflow.ended("chain", run_id, seconds=600) == "success"
    run = airflow.runs("chain")[run_id]
    start, end = (datetime.fromisoformat(run[key]) for key in ("start_date", "end_date"))
    return (end - start).total_seconds()


def _timed(work: Callable[[], None], rounds: int) -> list[float]:
    """Seconds of each round, after one to warm up."""
    found = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found[1:]
