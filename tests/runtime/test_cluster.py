"""The blog platform by the real command on a standalone cluster of two workers, one of which dies in the middle."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from lakewright.demo_accounts import show_accounts
from lakewright.demo_project import load_generator, prepare
from lakewright.pipelines.project import Project
from lakewright.runtime.services import processes
from lakewright.runtime.session import FAST_START
from lakewright.testing.cluster import Cluster

SMALL = """
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = 2
"spark.databricks.delta.snapshotPartitions" = 2
"spark.ui.enabled" = false
# What makes short runs on few rows cheap: no second compiler, no generated code, no planning anew.
"spark.sql.adaptive.enabled" = false
"spark.sql.codegen.wholeStage" = false
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"""
SMALL += f'"spark.driver.extraJavaOptions" = "{FAST_START}"\n"spark.executor.extraJavaOptions" = "{FAST_START}"\n'
TARGET = (
    """
[targets.cluster]
master = "{url}"
[targets.cluster.spark]
"spark.scheduler.minRegisteredResourcesRatio" = "1.0"
"spark.scheduler.maxRegisteredResourcesWaitingTime" = "120s"
"""
    + SMALL
)
# A step whose tasks, one on each worker, wait until the test lets them go on.
WATCHED = """
from lakewright import Pipeline

watch = Pipeline("watch", start="2026-01-01")
FOLDER = "{folder}"


@watch.dataset(layer="gold", event_time="event_time")
def watched(clean_visits):
    folder = FOLDER

    def wait(frames):
        import os
        import time
        from pyspark import TaskContext

        worker = next(part for part in os.getcwd().split("/") if part.startswith("spark-worker-"))
        with open(f"{{folder}}/{{worker}}-{{TaskContext.get().attemptNumber()}}.part", "w") as mark:
            mark.write(str(os.getpid()))
        os.rename(mark.name, mark.name.removesuffix(".part"))
        while not os.path.exists(f"{{folder}}/go"):
            time.sleep(0.05)
        yield from frames

    chosen = clean_visits.select("visit_id", "event_time")
    return chosen.repartition(2).mapInPandas(wait, chosen.schema)
"""


def wait_for(file: Path, child: subprocess.Popen[str]) -> None:
    while not file.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
            raise AssertionError(f"it ended early: {child.communicate()}")


def test_the_blog_on_a_cluster_keeps_every_row_though_a_worker_dies(
    cluster: Cluster, spark: Any, tmp_path: Path
) -> None:
    home, marks = prepare(tmp_path / "blog"), tmp_path / "marks"
    marks.mkdir()
    with (home / "lakewright.toml").open("a") as settings:
        settings.write(TARGET.format(url=cluster.url))
    (home / "pipelines" / "watched.py").write_text(WATCHED.format(folder=marks))
    generator: Any = load_generator()
    truth = generator.generate(home, visits=400, days=1, start=date(2026, 1, 1), seed=7, replace=True)
    generator.deliver(home, truth.recipe.dates[0])

    command = [sys.executable, "-m", "lakewright", "run", "--target", "cluster", "--at", "2026-01-02"]
    environ = {key: value for key, value in os.environ.items() if key != "LAKEWRIGHT_MASTER"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=home, env=environ, text=True, **pipes) as child:
        for worker in ("spark-worker-1", "spark-worker-2"):
            wait_for(marks / f"{worker}-0", child)
        lost = processes.identify(int((marks / "spark-worker-1-0").read_text()))
        cluster.kill_worker(0)
        assert processes.wait_until_gone([lost], 60), "the executor of a lost worker ends"
        (marks / "go").touch()
        out, err = child.communicate(timeout=240)
    assert child.returncode == 0, f"{out}\n{err}"
    assert any(mark.name.endswith("-1") for mark in marks.iterdir()), "the lost task was done again"

    shown = io.StringIO()
    with Project(home, target="cluster", spark=spark) as project:
        assert show_accounts(project, truth, Console(file=shown, width=200), late=False), shown.getvalue()
        kept = project.sql("SELECT visit_id FROM clean_visits")
        assert sorted(project.sql("SELECT visit_id FROM watched").collect()) == sorted(kept.collect())
