"""`lakewright up`, `schedules`, `pause`, `resume` and `work`: without Spark but for the last test."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.processes import environment

from lakewright.model.runs import Run
from lakewright.model.times import utc_now
from lakewright.pipelines.launching import BUSY, ProcessLauncher
from lakewright.pipelines.progress import RunSummary
from lakewright.pipelines.project import Project
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.runtime.settings import load_settings
from lakewright.store import open_store, this_process

from .conftest import Lakewright

YEAR = datetime.now(UTC).year

PIPELINES = f"""
from pyspark.sql import DataFrame

from lakewright import ExternalTrigger, FolderEvents, JsonFiles, OnDatasets, Pipeline

visits = Pipeline("visits", schedule="@yearly", start="{YEAR - 2}-06-01", grid="day")
visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

below = Pipeline("below", schedule=OnDatasets(), start="{YEAR - 2}-06-01")


@below.dataset(event_time="at")
def clean(raw: DataFrame) -> DataFrame:
    return raw
"""
TRIGGERED = """
landed = ExternalTrigger(on=FolderEvents("inbox"), name="landed")
devices = Pipeline("devices", schedule=None, triggers=[landed])
devices.source("raw_devices", JsonFiles("landing"), schema="visit string")
"""


@pytest.fixture
def blog(folder: Path) -> Path:
    for name in ("pipelines", "landing", "inbox"):
        (folder / name).mkdir()
    (folder / "pipelines" / "visits.py").write_text(PIPELINES)
    (folder / "lakewright.toml").write_text('name = "blog"\n[targets.dev]\nfast_start = true\n')
    (folder / "landing" / "1.json").write_text(f'{{"visit": "v1", "at": "{YEAR - 1}-06-01T10:00:00Z"}}\n')
    return folder


def test_schedules_pause_and_resume_need_no_spark(
    lakewright: Lakewright, blog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Project, "spark", lambda self: pytest.fail("Spark was started"))
    shown = lakewright("schedules").stdout
    assert f"{YEAR - 1}-01-01 00:00 and 1 more" in shown
    assert "new in raw" in shown
    assert not (blog / ".lakewright").exists()

    assert lakewright("pause", "visit").exit_code == 2
    result = lakewright("pause", "visits", "--because", "the blog moves")
    assert (result.exit_code, result.stderr) == (0, "visits is paused.\n")
    assert "visits was paused already." in lakewright("pause", "visits").stderr
    assert "visits is paused since" in lakewright("status").stderr
    assert "(the blog moves)" in lakewright("status").stderr
    (paused,) = json.loads(lakewright("status", "--json").stdout)["paused"]
    assert (paused["pipeline"], paused["because"]) == ("visits", "the blog moves")
    told = json.loads(lakewright("schedules", "--json").stdout)["schedules"]
    assert [(one["pipeline"], one["paused"], one["waits"], one["due"]) for one in told] == [
        ("visits", True, "paused", []),
        ("below", False, "", []),
    ]

    # Nothing is started while it is paused, and by hand neither is what a schedule asks for.
    assert "no runs, in 0 processes." in lakewright("up", "--once").stderr
    assert Project(blog).run_due() == []
    assert json.loads(lakewright("resume", "visits", "--json").stdout) == {"resumed": ["visits"], "error": None}
    assert "visits was not paused." in lakewright("resume", "visits").stderr
    assert lakewright("resume", "vists").exit_code == 2


def test_wrong_files_and_work_end_with_2_and_the_place(lakewright: Lakewright, blog: Path) -> None:
    for words in (["visits"], ["visits", "--time", "2026-01-01", "--event", "e1"], ["visits", "--time", "soon"]):
        assert lakewright("work", *words).exit_code == 2
    assert lakewright("work", "visits", "--time", "2026-01-01", "--seen", "raw").exit_code == 2
    assert lakewright("work", "visit", "--time", "2026-01-01").exit_code == 2
    (blog / "pipelines" / "visits.py").write_text(PIPELINES.replace("@yearly", "0 0 30 2 *"))
    for command in ("up", "schedules", "plan"):
        result = lakewright(command)
        assert result.exit_code == 2
        assert "visits.py:6: The schedule '0 0 30 2 *' never comes" in result.stderr


def test_a_time_that_is_made_or_being_made_is_not_made_again(lakewright: Lakewright, blog: Path) -> None:
    address = load_settings(blog).target.store
    at = datetime(YEAR, 1, 1, tzinfo=UTC)
    run = Run(scheduled_run_id("visits", at), "visits", at, "scheduled")
    with open_store(address) as store:
        other = this_process()
        store.leases.register(other, timedelta(minutes=1), utc_now())
        store.leases.acquire("scheduled:visits", at.isoformat(), owner_id=other.owner_id, run_id=None, now=utc_now())
        result = lakewright("work", "visits", "--time", at.isoformat())
        assert result.exit_code == BUSY
        store.leases.forget(other.owner_id)
        store.runs.start(run, owner_id=None, options={}, now=utc_now())
        store.runs.finish(run.run_id, "ok", now=utc_now())
        result = lakewright("work", "visits", "--time", at.isoformat(), "--json")
        assert (result.exit_code, json.loads(result.stdout)) == (0, {"runs": [], "error": None})
        assert lakewright("up", "--once").exit_code == 0


UP = """
import atexit, sys
from lakewright.cli.main import app
atexit.register(lambda: print("loaded:", sorted({name.split(".")[0] for name in sys.modules} & {"pyspark", "py4j"})))
app()
"""


def test_it_needs_no_spark_while_nothing_is_due_and_ends_with_0_when_it_is_asked_to(blog: Path) -> None:
    text = PIPELINES.replace('schedule="@yearly"', "schedule=None") + TRIGGERED
    (blog / "pipelines" / "visits.py").write_text(text)
    scheduler = subprocess.Popen(
        [sys.executable, "-c", UP, "up"], cwd=blog, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert scheduler.stderr is not None
    assert scheduler.stdout is not None
    assert "listens to the triggers of devices" in scheduler.stderr.readline()
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(timeout=60) == 0
    assert scheduler.stdout.read() == "loaded: []\n"
    with open_store(load_settings(blog).target.store) as store:
        assert store.leases.held(utc_now()) == []


def test_an_event_is_handled_by_a_process_of_its_own_which_tells_what_went_wrong(
    lakewright: Lakewright, blog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (blog / "pipelines" / "visits.py").write_text(PIPELINES + TRIGGERED)
    (blog / "inbox" / "1.json").write_text('{"id": "e1", "files": ["gone.json"]}')
    assert lakewright("listen", "--apart", "--once").exit_code == 1
    (event,) = json.loads(lakewright("triggers", "list", "--json").stdout)["events"]
    assert event["state"] == "dead"
    assert "the event names the file 'gone.json', which is in none of the folders landing" in event["problem"]

    # What that process does where nothing is wrong, without the run itself.
    asked: list[dict[str, object]] = []

    def run(self: Project, select: list[str], **options: object) -> RunSummary:
        asked.append({"select": select, **options})
        return RunSummary(str(options["run_id"]), "ok")

    monkeypatch.setattr(Project, "run", run)
    monkeypatch.setattr("lakewright.pipelines.triggers._refuse_unknown_files", lambda *given: None)
    result = lakewright("work", "devices", "--event", "e1", "--trigger", "landed", "--json")
    assert json.loads(result.stdout) == {"runs": [{"run_id": asked[0]["run_id"], "state": "ok"}], "error": None}
    assert (asked[0]["select"], asked[0]["reason"]) == (["pipeline:devices"], "trigger")
    assert lakewright("work", "devices", "--event", "e2").exit_code == 2


def test_a_launcher_reads_what_the_files_say_and_keeps_the_last_words(blog: Path) -> None:
    launcher = ProcessLauncher(blog, ["pipelines/*.py"], target="dev", logs=blog / "logs")
    before = launcher.fingerprint()
    assert launcher.fingerprint() == before
    (blog / "pipelines" / "shared.py").write_text("")
    assert launcher.fingerprint() != before
    assert launcher.last_words("visits") == ""
    (blog / "logs").mkdir()
    (blog / "logs" / "visits.log").write_text("error: it broke\nhint: mend it\n")
    assert launcher.last_words("visits") == "error: it broke"


def test_a_run_for_datasets_notes_what_it_has_answered_to_where_it_succeeds(
    lakewright: Lakewright, blog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(["failed", "ok"])
    monkeypatch.setattr(Project, "run", lambda self, select, **options: RunSummary(options["run_id"], next(states)))
    words = ["work", "below", "--time", f"{YEAR}-01-01T00:05", "--seen", "raw=3"]
    with open_store(load_settings(blog).target.store) as store:
        assert lakewright(*words).exit_code == 1
        assert store.schedules.seen() == {}
        assert lakewright(*words).exit_code == 0
        assert store.schedules.seen() == {"below": {"raw": 3}}
        assert store.leases.held(utc_now()) == []


def test_what_is_due_is_made_by_a_process_with_spark_which_ends_with_it(blog: Path, connect_url: str) -> None:
    text = PIPELINES.replace("schedule=OnDatasets()", "schedule=None")
    (blog / "pipelines" / "visits.py").write_text(text)
    words = [sys.executable, "-m", "lakewright", "up", "--once", "--json"]
    environ = environment(connect_url)
    made = subprocess.run(words, cwd=blog, env=environ, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    # Two years in one process, in one Spark.
    assert json.loads(made.stdout) == {"processes": 1, "runs": {"ok": 2}, "state": "ok", "error": None}
    with open_store(load_settings(blog).target.store) as store:
        runs = sorted(store.runs.latest(), key=lambda run: run.started_at)
        assert [(run.pipeline, run.reason, run.state, run.run_time.year) for run in runs] == [
            ("visits", "scheduled", "ok", YEAR - 1),
            ("visits", "scheduled", "ok", YEAR),
        ]
        assert store.receipts.heads(["raw"])["raw"].version >= 0
        assert store.leases.held(utc_now()) == []
