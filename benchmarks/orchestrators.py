"""What a step costs beyond its work: the same chain of 10 on Airflow, Spark Declarative Pipelines and ours.

Limit: ours is a twentieth of each of the others. All are warm, and each step does as little as it can: a task of
Airflow nothing at all, ours hands one row to a writer that only counts. What a run costs once is taken off for all
three: a chain of 10 is compared with a chain of 1. Declarative Pipelines always write a table, so the same writes by
hand are taken off as well. Airflow's scheduler has the settings that it is shipped with.
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
from benchmarks.harness import Spread, keep, small_project, spread

LENGTH = 10
LIMIT = 20
WARM_UPS = 3
DAG = """
from airflow.sdk import DAG, task
with DAG("{name}", schedule=None):
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
            "ours": _ours(pairs),
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


def _ours(rounds: int) -> Spread:
    from lakewright.pipelines.project import Project

    with small_project(PIPELINE % LENGTH, '{"n": 1}', "parallel = 1") as folder, Project(folder) as project:
        for error in project.run(at="2026-01-02").errors:
            raise error
        for name, dataset in project.graph.datasets.items():
            if not dataset.is_source:
                project.graph.datasets[name] = replace(dataset, writer=Counting())

        def run(length: int) -> None:
            names = [f"d{number}" for number in range(1, length + 1)]
            summary = project.run(names, at="2026-01-02", again=True, slices=["arrival-1"])
            assert len(summary.made) == length, summary.errors

        return _per_step(_timed(lambda: run(LENGTH), rounds), _timed(lambda: run(1), rounds))


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
        return _per_step([a - b for a, b in zip(long, by_hand, strict=True)], short)
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

    airflow = Airflow(ensure_airflow(print), folder, more={"AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1"})
    airflow.dags.mkdir(parents=True)
    for name, length in (("long", LENGTH), ("short", 1)):
        (airflow.dags / f"{name}.py").write_text(DAG.format(name=name, length=length))
    airflow.prepare()
    with running_airflow(airflow):
        long, short = (_run_dags(airflow, name, rounds) for name in ("long", "short"))
    return _per_step(long, short)


def _run_dags(airflow: Any, dag: str, rounds: int) -> list[float]:
    """Seconds of each run, after those to warm up."""
    airflow.call("PATCH", f"dags/{dag}", is_paused=False)
    return [_run_dag(airflow, dag, number) for number in range(WARM_UPS + rounds)][WARM_UPS:]


def _run_dag(airflow: Any, dag: str, number: int) -> float:
    """From the run's start to its end, as Airflow itself tells it."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    run_id = airflow.trigger(dag, at.isoformat())
    assert airflow.ended(dag, run_id, seconds=600) == "success"
    run = airflow.runs(dag)[run_id]
    start, end = (datetime.fromisoformat(run[key]) for key in ("start_date", "end_date"))
    return (end - start).total_seconds()


def _timed(work: Callable[[], None], rounds: int) -> list[float]:
    """Seconds of each round, after those to warm up."""
    found = []
    for _ in range(WARM_UPS + rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found[WARM_UPS:]


def _per_step(long: list[float], short: list[float]) -> Spread:
    """Milliseconds of a step: a chain of 10 without a chain of 1."""
    return spread([(a - b) / (LENGTH - 1) * 1000 for a, b in zip(long, short, strict=True)])
