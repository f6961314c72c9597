"""`lakewright consumers`, and how long runs have waited in `lakewright status`: without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewright.model.runs import Run
from lakewright.runtime.settings import load_settings
from lakewright.store import open_store

from .conftest import Lakewright

LOADER = """
from lakewright import After, Pipeline

loader = Pipeline("loader")
loader.sql("devices", "SELECT * FROM raw", layer="silver")
aggregator = Pipeline("aggregator", schedule=After("loader"))
aggregator.sql("figures", "SELECT * FROM devices")
"""
DASHBOARD = """
from lakewright import Pipeline, WhenReady

dashboard = Pipeline("dashboard", waits_for=WhenReady("figures", project="../team_a"))
dashboard.sql("tiles", "SELECT * FROM anything")
other = Pipeline("other", waits_for=WhenReady("ads", flag="../ads/{slice}"))
other.sql("more", "SELECT * FROM anything")
"""


@pytest.fixture
def teams(folder: Path) -> tuple[str, str]:
    for name, text in (("team_a", LOADER), ("team_b", DASHBOARD)):
        (folder / name / "pipelines").mkdir(parents=True)
        (folder / name / "pipelines" / "one.py").write_text(text)
        (folder / name / "lakewright.toml").touch()
    return str(folder / "team_a"), str(folder / "team_b")


@pytest.mark.shows("06.isolated-sequencer", 8)
def test_the_consumers_of_a_dataset_are_shown_across_pipelines_and_projects(
    teams: tuple[str, str], lakewright: Lakewright
) -> None:
    mine, theirs = teams
    shown = lakewright("consumers", "devices", "--project", mine)
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["loader", "(its", "runs)", "aggregator", "starts", "after", "its", "run"] in rows
    assert ["loader", "devices", "aggregator", "reads", "it"] in rows

    told = json.loads(lakewright("consumers", "figures", "--project", mine, "--also", theirs, "--json").stdout)
    assert told["error"] is None
    (edge,) = told["edges"]
    assert edge == {
        "producer": "aggregator",
        "dataset": "figures",
        "consumer": "dashboard",
        "by": "marker",
        "project": None,
        "consumer_project": theirs,
    }
    other = json.loads(lakewright("consumers", "--project", theirs, "--json").stdout)["edges"]
    assert [(one["dataset"], one["project"]) for one in other] == [("ads", "../ads/{slice}"), ("figures", "../team_a")]
    assert lakewright("consumers", "nothing", "--project", mine).exit_code == 2
    assert lakewright("consumers", "--project", mine, "--also", "nowhere").exit_code == 2


def test_what_another_side_has_taken_away_is_told(teams: tuple[str, str], lakewright: Lakewright, folder: Path) -> None:
    (folder / "ads").mkdir()
    good = lakewright("consumers", "--check", "--project", teams[1])
    assert (good.exit_code, good.stderr.strip()) == (0, "2 links to other projects, 0 broken.")
    file = folder / "team_a" / "pipelines" / "one.py"
    file.write_text(LOADER.replace('"figures"', '"totals"'))
    (folder / "ads").rmdir()
    told = lakewright("consumers", "--check", "--project", teams[1])
    assert told.exit_code == 1
    missed = "dashboard waits for figures (../team_a): There is no dataset 'figures'. Known: devices, totals."
    assert missed in told.stderr
    assert "other waits for ads (../ads/{slice}): there is no folder" in told.stderr
    checked = json.loads(lakewright("consumers", "--check", "--json", "--project", teams[1]).stdout)["checked"]
    assert [one["problem"] is None for one in checked] == [False, False]


def test_status_tells_how_long_a_run_has_waited(teams: tuple[str, str], lakewright: Lakewright) -> None:
    began = datetime(2026, 1, 5, tzinfo=UTC)
    with open_store(load_settings(Path(teams[0])).target.reveal_store()) as store:
        run = Run("r1", "loader", began)
        store.runs.start(run, owner_id=None, options={}, now=began, asked_at=began - timedelta(seconds=90))
        store.runs.finish("r1", "ok", now=began + timedelta(seconds=5))
    assert " 90.0 " in lakewright("status", "--project", teams[0]).stdout
    (told,) = json.loads(lakewright("status", "--project", teams[0], "--json").stdout)["runs"]
    assert told["queued_seconds"] == 90.0
