"""`lakewright export airflow`: what becomes of each part of a pipeline. Needs neither Spark nor Airflow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakewright.cli.main import app
from lakewright.pipelines.project import Project
from lakewright.testing.plugin import write_files

TOML = """
    name = "The Blog"
    [pools]
    warehouse = 3
"""
PIPELINES = '''
    from lakewright import ExternalTrigger, FolderEvents, JsonFiles, OnDatasets, Pipeline, SingleRunner
    from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
    from lakewright.patterns.data_flow.isolated_sequencer import After
    from lakewright.patterns.data_flow.unaligned_fan_in import UnalignedFanIn

    visits = Pipeline(
        "visits", schedule="0 6 * * *", timezone="Europe/Warsaw", start="2026-01-01", tags=["web"],
        runs=SingleRunner(depends_on_past=True, pool="warehouse"),
    )
    visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at", owner="web")

    @visits.dataset(event_time="at", retries=5)
    def clean(raw):
        """Visits | with a "quoted" word."""
        return raw

    visits.sql("daily", "SELECT to_date(at) AS day, count(*) AS n FROM clean GROUP BY ALL", event_time="day")

    figures = Pipeline("figures", schedule=OnDatasets("clean", "daily", rule="all"))
    figures.sql("weekly", "SELECT * FROM daily", event_time="day", grid="week")
    either = Pipeline("either", schedule=OnDatasets())
    either.sql("copied", "SELECT * FROM weekly", event_time="day")
    newest = Pipeline("newest", schedule="@hourly", catch_up="newest")
    newest.source("raw_newest", JsonFiles("landing2"), schema="n int")
    none = Pipeline("none", schedule="@hourly", catch_up="none")
    none.source("raw_none", JsonFiles("landing3"), schema="n int")
    reports = Pipeline("reports", schedule=After("visits", task="daily"), runs=ConcurrentRunner(limit=4))
    reports.sql("report", "SELECT * FROM daily", event_time="day")
    reports.sql("summary", "SELECT * FROM report", event_time="day", grid="week", fan_in=UnalignedFanIn())
    landed = ExternalTrigger(on=FolderEvents("inbox"), name="landed")
    devices = Pipeline("devices", schedule=None, triggers=[landed])
    devices.source("raw_devices", JsonFiles("landing4"), schema="n int")
'''
Export = Callable[..., Result]


@pytest.fixture
def blog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path / "blog", {"lakewright.toml": TOML, "pipelines/all.py": PIPELINES})
    monkeypatch.chdir(tmp_path / "blog")
    monkeypatch.setattr(Project, "spark", lambda self: pytest.fail("Spark was started"))
    return tmp_path / "blog"


@pytest.fixture
def export(blog: Path) -> Export:
    def type_in(*words: str) -> Result:
        return CliRunner().invoke(app, ["export", "airflow", "--python", "python3", "--folder", "/srv/blog", *words])

    return type_in


def text_of(blog: Path, pipeline: str) -> str:
    return (blog / "dags" / f"The_Blog_{pipeline}.py").read_text()


def test_each_part_of_a_pipeline_is_said_in_airflows_words(export: Export, blog: Path) -> None:
    result = export()
    assert result.exit_code == 0, result.stderr
    assert 'airflow pools set warehouse 3 "A pool of The Blog"' in result.stderr
    visits = text_of(blog, "visits")
    for words in (
        'dag_id="The_Blog.visits"',
        'schedule=CronTriggerTimetable("0 6 * * *", timezone="Europe/Warsaw")',
        "start_date=datetime(2026, 1, 1, 5, tzinfo=UTC)",  # the first time after the start, on the clock of Warsaw
        "catchup=True",
        "max_active_runs=1",
        '"owner": "web"',
        '"depends_on_past": True',
        '"retries": 5',
        'tags=["lakewright", "The_Blog", "web"]',
        'pool="warehouse"',
        'select=["pipeline:visits"]',
        'outlets=[dataset("raw"), dataset("clean"), dataset("daily")]',
        '| clean | silver | day | Visits \\\\| with a "quoted" word. |',
        '"project": "/srv/blog"',
    ):
        assert words in visits, words
    assert 'schedule=AssetAll(dataset("clean"), dataset("daily"))' in text_of(blog, "figures")
    assert 'inlets=[dataset("daily")]' in text_of(blog, "figures")
    assert 'schedule=[dataset("weekly")]' in text_of(blog, "either")
    newest, none = text_of(blog, "newest"), text_of(blog, "none")
    assert 'CronTriggerTimetable("@hourly", timezone="UTC", run_immediately=True)' in newest
    assert "catchup=False" in newest
    assert "grace" not in newest
    assert "run_immediately=timedelta(minutes=10))" in none
    assert "grace=timedelta(minutes=10)" in none
    assert "schedule=None" in text_of(blog, "devices")
    assert "Its triggers (landed) are heard by `lakewright listen`" in text_of(blog, "devices")


def test_a_task_for_each_dataset_keeps_their_order_and_goes_on_below_what_had_nothing_to_make(
    export: Export, blog: Path
) -> None:
    assert export("--tasks", "dataset").exit_code == 0
    visits = text_of(blog, "visits")
    assert "max_active_tasks=1" in visits
    assert 'tasks["raw"] >> tasks["clean"]' in visits
    assert 'tasks["clean"] >> tasks["daily"]' in visits
    assert visits.count('trigger_rule="none_failed"') == 2
    assert visits.count("whole=False") == 3
    assert "whole=False" not in text_of(blog, "figures"), "its one dataset is all of it"
    assert export("--tasks", "slice").exit_code == 2


def test_a_pipeline_that_follows_another_waits_for_its_run_of_the_same_time(export: Export, blog: Path) -> None:
    assert export().exit_code == 0
    reports = text_of(blog, "reports")
    for words in (
        'schedule=CronTriggerTimetable("0 6 * * *", timezone="Europe/Warsaw")',
        "start_date=datetime(2026, 1, 1, 5, tzinfo=UTC)",
        "max_active_runs=4",
        'external_dag_id="The_Blog.visits"',
        'mode="reschedule"',
        "followed >> run\n",
    ):
        assert words in reports, words
    assert "external_task_id" not in reports, "the other DAG has one task"

    assert export("--tasks", "dataset").exit_code == 0
    reports = text_of(blog, "reports")
    assert 'external_task_id="daily"' in reports
    assert 'followed >> tasks["report"]\n' in reports
    assert 'tasks["report"] >> tasks["summary"]\n' in reports
    # What a week can be made of, Lakewright decides: the task is begun although a part may have failed.
    assert 'trigger_rule="all_done"' in reports


def test_the_same_project_gives_the_same_files_and_they_are_formatted(export: Export, blog: Path) -> None:
    assert json.loads(export("--json").stdout)["files"][0]["state"] == "new"
    files = sorted((blog / "dags").iterdir())
    before = {file.name: file.read_bytes() for file in files}
    told = json.loads(export("--json").stdout)
    assert {one["state"] for one in told["files"]} == {"same"}
    assert told["pools"] == {"warehouse": 3}
    export("--to", "elsewhere")
    assert {file.name: file.read_bytes() for file in (blog / "elsewhere").iterdir()} == before
    words = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", "--isolated", "dags"]
    assert subprocess.run(words, cwd=blog, capture_output=True, check=False).returncode == 0


def test_an_edited_file_is_not_overwritten_unless_it_is_asked_for(export: Export, blog: Path) -> None:
    export()
    edited, other = (blog / "dags" / f"The_Blog_{name}.py" for name in ("visits", "newest"))
    untouched = edited.read_text()
    edited.write_text(untouched.replace("max_active_runs=1", "max_active_runs=7"))
    (blog / "pipelines" / "all.py").write_text((blog / "pipelines" / "all.py").read_text().replace("@hourly", "@daily"))
    result = export()
    assert result.exit_code == 1
    assert "The_Blog_visits.py was edited" in result.stderr
    assert "max_active_runs=7" in edited.read_text()
    assert "@hourly" in other.read_text(), "nothing else was written either"
    states = {Path(one["file"]).name: one["state"] for one in json.loads(export("--dry-run", "--json").stdout)["files"]}
    assert (states[edited.name], states[other.name]) == ("edited", "changed")
    assert export("--force").exit_code == 0
    assert edited.read_text() == untouched
    assert "@daily" in other.read_text()


def test_a_file_whose_pipeline_is_gone_is_told(export: Export, blog: Path) -> None:
    export()
    (blog / "dags" / "The_Blog_mine.py").write_text("")  # of somebody else
    text = (blog / "pipelines" / "all.py").read_text()
    (blog / "pipelines" / "all.py").write_text(text.replace('Pipeline("none"', 'Pipeline("nobody"'))
    result = export()
    assert "The_Blog_none.py is of a pipeline that is gone" in result.stderr
    assert json.loads(export("--json").stdout)["left_over"] == ["The_Blog_none.py"]


def test_orders_of_an_orchestrator_are_checked_before_anything_is_started(blog: Path) -> None:
    for words in (
        ["--repeat", "1"],
        ["--reason", "scheduled"],
        ["--run-id", "a", "--again"],
        ["--run-id", "a b"],
        ["--run-id", "a", "--reason", "soon"],
        ["--run-id", "a", "--continuous"],
        ["--run-id", "a", "--reason", "scheduled", "--select", "clean"],
        ["--run-id", "a", "--reason", "backfill", "--select", "pipeline:devices"],
    ):
        result = CliRunner().invoke(app, ["run", *words])
        assert result.exit_code == 2, words
