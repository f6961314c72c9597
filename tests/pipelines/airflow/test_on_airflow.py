"""An exported project on a real Airflow: its own environment, SQLite, `dags test` and the scheduler."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.model.schedules import times_between
from lakewright.runtime.settings import load_settings
from lakewright.store import Store, open_store
from lakewright.testing.airflow import Airflow, ensure_airflow, running_airflow
from lakewright.testing.plugin import write_files
from tests.patterns.delta import live_files

from .test_export import PIPELINES as EVERY_KIND
from .test_export import TOML as EVERY_KIND_TOML

YEAR = datetime.now(UTC).year
FIRST, SECOND = f"{YEAR - 1}-01-01T00:00:00+00:00", f"{YEAR}-01-01T00:00:00+00:00"
# The one belongs to the first time of the schedule, and is made by hand before it; the other to the second.
DAYS = (f"{YEAR - 2}-07-01", f"{YEAR - 1}-06-01")
PIPELINES = f"""
    from lakewright import JsonFiles, OnDatasets, Pipeline

    visits = Pipeline("visits", schedule="@yearly", start="{YEAR - 2}-06-01", grid="day")
    visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @visits.dataset(event_time="at")
    def clean(raw):
        return raw

    figures = Pipeline("figures", schedule=OnDatasets("clean"), start="{YEAR - 2}-06-01")
    figures.sql("daily", "SELECT to_date(at) AS day, count(*) AS n FROM clean GROUP BY ALL", event_time="day")
"""
LANDING = "".join(f'{{"visit": "v{number}", "at": "{day}T10:00:00Z"}}\n' for number, day in enumerate(DAYS))


@pytest.fixture(scope="module")
def blog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "blog"
    write_files(folder, {"lakewright.toml": 'name = "blog"\n', "pipelines/visits.py": PIPELINES})
    write_files(folder, {"landing/1.json": LANDING})
    return folder


@pytest.fixture(scope="module")
def exported(blog: Path) -> Airflow:
    """An Airflow with the project; and once more under another name, for an interpreter that has no Lakewright."""
    made = Airflow(ensure_airflow(), blog.parent / "airflow")
    other = blog.parent / "other"
    write_files(other, {"lakewright.toml": 'name = "other"\n', "pipelines/visits.py": PIPELINES})
    for folder, python in ((blog, sys.executable), (other, str(made.python))):
        words = ["export", "airflow", "--project", str(folder), "--to", str(made.dags), "--python", python]
        assert CliRunner().invoke(app, words).exit_code == 0
    for file in made.dags.glob("blog_*.py"):  # nobody waits for a minute here
        file.write_text(file.read_text().replace("timedelta(minutes=1)", "timedelta(seconds=1)"))
    return made


@pytest.fixture(scope="module")
def airflow(exported: Airflow, blog: Path, connect_url: str) -> Airflow:
    """The same with a database, whose tasks stop where a table is written and its receipt is not, and wait."""
    paused = {
        "LAKEWRIGHT_FAILPOINT": "published",
        "LAKEWRIGHT_FAILPOINT_ACTION": "pause",
        "LAKEWRIGHT_FAILPOINT_DIR": str(blog / "pause"),
    }
    made = replace(exported, more={"LAKEWRIGHT_MASTER": connect_url, **paused})
    made.prepare(read_dags=False)
    return made


@pytest.fixture(scope="module")
def running(airflow: Airflow, tried_by_hand: str) -> Iterator[Airflow]:
    with running_airflow(airflow):
        yield airflow


@pytest.fixture(scope="module")
def tried_by_hand(airflow: Airflow, blog: Path) -> str:
    """What `airflow dags test` says: before the schedule begins, at a time of its own."""
    (blog / "pause").mkdir()
    (blog / "pause" / "published.go").touch()
    done = airflow.command("dags", "test", "blog.visits", f"{YEAR - 1}-01-02")
    assert done.returncode == 0, done.stdout + done.stderr
    for file in (blog / "pause").iterdir():
        file.unlink()
    return done.stdout + done.stderr


@pytest.fixture
def store(blog: Path) -> Iterator[Store]:
    with open_store(load_settings(blog).target.store) as opened:
        yield opened


CODES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace as Some
from lakewright_airflow import LakewrightRun

def ended(python, **of_run):
    task = LakewrightRun(task_id="run", python=python, project="/p", target="dev", select=["a"], retries=2,
                         grace=timedelta(minutes=10))
    due = datetime(2026, 1, 6, tzinfo=timezone.utc)
    run = dict(dag_id="blog.visits", run_id="r", logical_date=due, run_after=due, start_date=due, run_type="scheduled",
               conf={"mode": "fast"})
    context = {"dag_run": Some(**{**run, **of_run}), "ti": Some(max_tries=5, try_number=1, task=task),
               "outlet_events": {}}
    try:
        task.execute.__wrapped__(task, context) if hasattr(task.execute, "__wrapped__") else task.execute(context)
        return "success", ""
    except Exception as error:
        return type(error).__name__, str(error)

answers = {code: ended(f"{sys.argv[2]}/{code}") for code in sys.argv[3].split(",")}
late = datetime(2026, 1, 6, 0, 11, tzinfo=timezone.utc)
answers["late"] = ended(f"{sys.argv[2]}/0", start_date=late)
answers["late, by hand"] = ended(f"{sys.argv[2]}/0", start_date=late, run_type="manual")
answers["nobody"] = ended(f"{sys.argv[2]}/nobody")
answers["without"] = ended(sys.executable)
print(json.dumps(answers))
"""


def test_exit_codes_become_states_and_retrying_what_is_pointless_is_not_tried(
    exported: Airflow, tmp_path: Path
) -> None:
    made = {"message": "Done.", "run_id": "r", "made": {"a": ["2026-01-05"]}}
    wrong = {"error": {"message": "It broke.", "hint": "Mend it."}}
    answers = {"0": (0, made), "fresh": (0, {"message": "Everything is fresh."}), "1": (1, wrong), "2": (2, wrong)}
    answers |= {"3": (3, wrong), "4": (4, wrong), "130": (130, {}), "killed": (None, {}), "silent": (0, None)}
    for name, (code, told) in answers.items():
        end = "kill -9 $$" if code is None else f"exit {code}"
        said = "" if told is None else json.dumps(told)
        (tmp_path / name).write_text(f"#!/bin/sh\necho \"$@\" >&2\ncat <<'END'\n{said}\nEND\n{end}\n")
        (tmp_path / name).chmod(0o755)
    found = exported.script(CODES, str(exported.dags), str(tmp_path), ",".join(answers))
    states = {name: state for name, (state, _) in found.items()}
    assert states == {
        "0": "success",
        "fresh": "AirflowSkipException",
        "1": "AirflowException",
        "2": "AirflowFailException",
        "3": "AirflowFailException",
        "4": "AirflowRescheduleException",
        "130": "AirflowException",
        "killed": "AirflowException",
        "silent": "AirflowException",  # a step has ended the process by os._exit(0): that is no success
        "late": "AirflowSkipException",
        "late, by hand": "success",
        "nobody": "AirflowFailException",
        "without": "AirflowFailException",
    }
    assert "ended with 1: It broke. Mend it." in found["1"][1]
    assert "was killed by SIGKILL" in found["killed"][1]
    # What it was called with is the last that 130 said.
    words = "run --json --project /p --target dev --select a --at 2026-01-06T00:00:00+00:00"
    assert (
        f"{words} --param mode=fast --run-id blog.visits/r --repeat 3 --reason scheduled --wait 600.0"
        in found["130"][1]
    )
    for name in ("nobody", "without"):
        assert "cannot run Lakewright" in found[name][1]
        assert "pip install lakewright" in found[name][1]


PARSED = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
found = {}
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    bag = DagBag(folder)
    assert not bag.import_errors, bag.import_errors
    for dag in bag.dags.values():
        tasks = {task.task_id: [sorted(task.upstream_task_ids), task.trigger_rule.value] for task in dag.tasks}
        found[f"{folder.rpartition('/')[2]} {dag.dag_id}"] = [dag.max_active_runs, dag.catchup, tasks]
print(json.dumps(found))
"""


def test_airflow_reads_every_kind_of_pipeline(exported: Airflow, tmp_path: Path) -> None:
    folder = tmp_path / "blog"
    write_files(folder, {"lakewright.toml": EVERY_KIND_TOML, "pipelines/all.py": EVERY_KIND})
    for kind in ("pipeline", "dataset"):
        words = ["export", "airflow", "--project", str(folder), "--to", str(tmp_path / kind), "--tasks", kind]
        assert CliRunner().invoke(app, words).exit_code == 0
    found = exported.script(PARSED, str(tmp_path / "pipeline"), str(tmp_path / "dataset"))
    assert len(found) == 14
    assert found["pipeline The_Blog.visits"] == [1, True, {"run": [[], "all_success"]}]
    assert found["pipeline The_Blog.newest"][1] is False
    assert found["dataset The_Blog.visits"][2] == {
        "raw": [[], "all_success"],
        "clean": [["raw"], "none_failed"],
        "daily": [["clean"], "none_failed"],
    }
    assert found["dataset The_Blog.reports"] == [
        4,
        True,
        {
            "after-visits": [[], "all_success"],
            "report": [["after-visits"], "none_failed"],
            "summary": [["report"], "all_done"],
        },
    ]


TIMES = """
import json, sys
from airflow.timetables.trigger import CronTriggerTimetable
import pendulum
found = {}
for cron, zone in json.loads(sys.argv[1]):
    table, times = CronTriggerTimetable(cron, timezone=zone), []
    for month in (3, 10):
        at, end = pendulum.datetime(2026, month, 15), pendulum.datetime(2026, month + 1, 15)
        while (at := table._get_next(at)) <= end:
            times.append(at.in_timezone("UTC").isoformat())
    found[f"{cron} {zone}"] = times
print(json.dumps(found))
"""


def test_airflow_finds_the_same_times_but_in_the_two_nights_in_which_a_clock_is_changed(exported: Airflow) -> None:
    schedules = [("@daily", "UTC"), ("0 */6 * * *", "UTC"), ("0 0 1 */3 1", "UTC"), ("0 6 * * *", "Europe/Warsaw")]
    schedules += [("0 0 * * 1", "America/New_York"), ("30 2 * * *", "Europe/Warsaw"), ("@hourly", "Europe/Warsaw")]
    found = exported.script(TIMES, json.dumps(schedules))
    spans = [(datetime(2026, month, 15, tzinfo=UTC), datetime(2026, month + 1, 15, tzinfo=UTC)) for month in (3, 10)]
    for cron, zone in schedules:
        theirs = {datetime.fromisoformat(text) for text in found[f"{cron} {zone}"]}
        ours = {time for after, end in spans for time in times_between(cron, timezone=zone, after=after, until=end)}
        apart = {f"{time:%m-%d}" for time in theirs ^ ours}
        assert apart <= {"03-29", "10-25"}, (cron, zone)
        assert not apart or zone != "UTC"


def test_a_dag_can_be_tried_without_a_scheduler(tried_by_hand: str, blog: Path, store: Store) -> None:
    assert "2 ok, 0 warnings, 0 failed, 0 skipped." in tried_by_hand
    (run,) = store.runs.latest()
    assert (run.reason, run.state, run.run_id.split("/")[0]) == ("manual", "ok", "blog.visits")
    assert days(blog) == [DAYS[0]]


def test_a_killed_task_goes_on_datasets_start_others_and_clear_and_backfill_make_again(
    running: Airflow, blog: Path, store: Store
) -> None:
    airflow = running
    for name in ("visits", "figures"):
        airflow.call("PATCH", f"dags/blog.{name}", is_paused=False)
    first, second = f"scheduled__{FIRST}", f"scheduled__{SECOND}"

    # The table is written, its receipt is not: the task dies with all that it has started.
    kill_the_task(airflow, blog)
    assert airflow.ended("blog.visits", second) == "success"
    assert airflow.tasks("blog.visits", second)["run"]["try_number"] == 2
    run = store.runs.get(f"blog.visits/{second}")
    assert run is not None
    assert (run.reason, run.state, run.attempt, run.run_time.isoformat()) == ("scheduled", "ok", 2, SECOND)
    assert [(step.slice_id, step.state) for step in store.steps.of_run(run.run_id)] == [(DAYS[1], "recovered")]
    assert days(blog) == [*DAYS]
    assert airflow.tasks("blog.visits", first)["run"]["state"] == "skipped", "it had nothing to make"

    # What is new starts the pipeline that waits for it, and nobody is told of what is not.
    settled(airflow, "blog.figures", 1)
    assert {one["run_type"] for one in airflow.runs("blog.figures").values()} == {"asset_triggered"}
    assert len(rows_of(blog, "gold/daily")) == 2
    assert events(airflow, second) == ["clean"]

    # Cleared: the run is repeated on purpose, and only what it made.
    airflow.clear("blog.visits", second)
    airflow.wait(lambda: made(store, f"blog.visits/{second}~2"), "the repeat")
    assert airflow.ended("blog.visits", second) == "success"
    assert made(store, f"blog.visits/{second}~2") == {("clean", DAYS[1])}
    assert len(store.steps.of_run(f"blog.visits/{second}")) == 1
    settled(airflow, "blog.figures", 2)

    # A backfill from Airflow's side: the slices of that time, once, and no other.
    airflow.backfill("blog.visits", FIRST, FIRST)
    airflow.wait(lambda: backfilled(store), "the backfill")
    (again,) = backfilled(store)
    assert (again.run_time.isoformat(), again.run_id.split("~")[0]) == (FIRST, f"blog.visits/{first}")
    assert made(store, again.run_id) == {("clean", DAYS[0])}, "what has ended in the year before it"
    settled(airflow, "blog.figures", 3)
    assert days(blog) == [*DAYS]
    assert len(rows_of(blog, "gold/daily")) == 2


def test_an_airflow_without_lakewright_says_so_in_the_log_and_does_not_try_again(running: Airflow) -> None:
    running.call("PATCH", "dags/other.figures", is_paused=False)
    run_id = running.trigger("other.figures", f"{YEAR}-02-01T00:00:00+00:00")
    assert running.ended("other.figures", run_id) == "failed"
    assert running.tasks("other.figures", run_id)["run"]["try_number"] == 1
    log = running.log("other.figures", run_id, "run")
    assert "cannot run Lakewright: it has no module lakewright. Install it there (pip install lakewright)" in log


def kill_the_task(airflow: Airflow, blog: Path) -> None:
    paused = blog / "pause" / "published.paused"
    airflow.wait(lambda: paused.exists() and paused.read_text(), "the task")
    child = int(paused.read_text())
    parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (child, parent):
        os.kill(pid, signal.SIGKILL)
    (blog / "pause" / "published.go").touch()


def settled(airflow: Airflow, dag_id: str, number: int) -> None:
    """Wait until a DAG has had so many runs, all of which succeeded."""

    def all_ended() -> bool:
        states = [run["state"] for run in airflow.runs(dag_id).values()]
        assert "failed" not in states
        return len(states) >= number and {*states} == {"success"}

    airflow.wait(all_ended, f"{number} runs of {dag_id}")


def events(airflow: Airflow, run_id: str) -> list[str]:
    """The datasets that a run has told of."""
    found = airflow.call("GET", "assets/events?limit=100")["asset_events"]
    return sorted(event["uri"].rpartition("/")[2] for event in found if event["source_run_id"] == run_id)


def backfilled(store: Store) -> list[Any]:
    return [run for run in store.runs.latest() if run.reason == "backfill" and run.state == "ok"]


def made(store: Store, run_id: str) -> set[tuple[str, str]]:
    return {(step.dataset, step.slice_id) for step in store.steps.of_run(run_id) if step.state == "ok"}


def days(blog: Path) -> list[str]:
    return sorted(f"{row['at']:%Y-%m-%d}" for row in rows_of(blog, "silver/clean"))


def rows_of(blog: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a Delta table, read from its log without Spark."""
    folder = blog / ".lakewright" / "lake" / table
    return [row for path in live_files(folder) for row in pq.ParquetFile(folder / unquote(path)).read().to_pylist()]
