"""`make chaos`: the blog platform, exported to a real Airflow, whose tasks are killed at random; then a backfill."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from platforms.blog.generate import deliver_late
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.pipelines.project import Project
from lakewright.testing.airflow import Airflow, ensure_airflow, running_airflow

from .test_random_kills import content, prepare

pytestmark = pytest.mark.chaos

DAGS = ("blog.sources", "blog.visits", "blog.sessions")
DAYS = 4
LAST = "2026-01-05T06:00:00+00:00"
"""Of the runs by hand, after those of the schedule; Airflow makes no task for a date after the DAG's end."""


def test_the_exported_platform_is_killed_and_backfilled_and_has_the_tables_of_an_undisturbed_run(
    spark, tmp_path: Path
) -> None:
    kills = max(1, int(os.environ.get("LAKEWRIGHT_KILLS", "50")) // 5)
    chance = random.Random(int(os.environ.get("LAKEWRIGHT_SEED", "1")))
    calm, wild = prepare(tmp_path / "calm"), prepare(tmp_path / "wild")
    deliver_late(calm)
    with Project(calm, spark=spark) as project:
        for error in project.run(at=LAST).errors:
            raise error
        expected = content(project)

    airflow = Airflow(ensure_airflow(), tmp_path / "airflow")
    export(wild, airflow.dags)
    airflow.prepare()
    with running_airflow(airflow):
        for dag_id in DAGS:
            airflow.call("PATCH", f"dags/{dag_id}", is_paused=False)
        done = kill_tasks(airflow, wild, chance, kills)
        assert all_good(airflow) == DAYS * len(DAGS)
        deliver_late(wild)
        for dag_id in DAGS:  # in their order: what one takes, the next one reads
            run_id = airflow.trigger(dag_id, LAST)
            assert airflow.ended(dag_id, run_id, seconds=600) == "success"
            assert airflow.tasks(dag_id, run_id)["run"]["state"] in ("success", "skipped")
        airflow.backfill("blog.visits", "2026-01-02T00:00:00+00:00", "2026-01-04T00:00:00+00:00")
        with Project(wild, spark=spark) as project:
            airflow.wait(lambda: len(backfilled(project)) == 3, "the backfill", 900)
    assert done, "no task was killed"
    with Project(wild, spark=spark) as project:
        project.graph  # noqa: B018  (declares the names, as any command does)
        assert content(project) == expected
        assert project.store.leases.held(project._now()) == []
        assert project.store.steps.open_steps() == []


def export(folder: Path, dags: Path) -> None:
    """The platform's DAGs for four days; whoever is killed is tried again at once."""
    words = ["export", "airflow", "--project", str(folder), "--to", str(dags), "--python", sys.executable]
    assert CliRunner().invoke(app, words).exit_code == 0
    changes = {
        "timedelta(minutes=1)": "timedelta(seconds=1)",
        '"retries": 2': '"retries": 99',
        "poke_interval=30": "poke_interval=2",
        "    catchup=True,\n": "    catchup=True,\n    end_date=datetime(2026, 1, 5, 12, tzinfo=UTC),\n",
    }
    for file in dags.glob("blog_*.py"):
        text = file.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)


def kill_tasks(airflow: Airflow, folder: Path, chance: random.Random, kills: int) -> int:
    """Kill a task's process, or Lakewright alone, at random moments, until all runs have ended."""
    done, deadline = 0, time.monotonic() + 3600
    while all_good(airflow) < DAYS * len(DAGS):
        assert time.monotonic() < deadline
        time.sleep(chance.uniform(3, 20))
        at_work = processes_of(folder)
        if done < kills and at_work:
            victim = chance.choice(at_work)
            for pid in chance.choice([[victim], [parent_of(victim), victim], [parent_of(victim)]]):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it ended by itself
            done += 1
    return done


def all_good(airflow: Airflow) -> int:
    """How many scheduled runs have succeeded; none may have failed."""
    states = [run["state"] for dag_id in DAGS for run in airflow.runs(dag_id).values()]
    assert "failed" not in states
    return states.count("success")


def processes_of(folder: Path) -> list[int]:
    """The runs of Lakewright on this project: tasks that our Airflow has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"lakewright" in words and b"--run-id" in words and str(folder).encode() in words:
            found.append(int(entry.name))
    return sorted(found)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return pid


def backfilled(project: Project) -> set[str]:
    runs = project.store.runs.latest(limit=200)
    return {run.run_id for run in runs if run.reason == "backfill" and run.state == "ok"}
