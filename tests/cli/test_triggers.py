"""`lakewright listen` and `lakewright triggers`: events from the command line, without Spark where no run starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakewright.pipelines.project import Project

from .conftest import Lakewright

PIPELINE = """
from lakewright import ExternalTrigger, FolderEvents, JsonFiles, Pipeline

landed = ExternalTrigger(on=FolderEvents("inbox"), name="landed", types=["release"])
devices = Pipeline("devices", schedule=None, triggers=[landed])
devices.source("raw_devices", JsonFiles("landing"), schema="device string")
"""


@pytest.fixture
def devices(folder: Path) -> Path:
    for name in ("pipelines", "landing", "inbox"):
        (folder / name).mkdir()
    (folder / "pipelines" / "devices.py").write_text(PIPELINE)
    (folder / "lakewright.toml").write_text('name = "devices"\n')
    return folder


@pytest.mark.shows("02.external-trigger", 2, 6, 8)
def test_events_are_handled_shown_and_given_up_without_spark(
    lakewright: Lakewright, devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Project, "spark", lambda self: pytest.fail("Spark was started"))
    assert json.loads(lakewright("triggers", "list", "--json").stdout) == {"events": [], "counts": {}, "error": None}
    result = lakewright("listen", "--once", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        **dict.fromkeys(("received", "filtered", "done", "dead", "known", "waiting", "idle"), 0),
        "runs": [],
        "state": "ok",
        "error": None,
    }
    (devices / "inbox" / "1.json").write_text('{"id": "h1", "type": "holiday"}')
    (devices / "inbox" / "2.json").write_text('{"id": ')
    (devices / "inbox" / "3.json").write_text('{"id": "r1", "type": "release", "files": ["gone.json"]}')
    result = lakewright("listen", "devices", "--once")
    assert result.exit_code == 1
    assert "3 received, 1 filtered, 0 done, 2 dead" in result.stderr
    assert "the event names the file 'gone.json', which is in none of the folders landing" in result.stderr
    assert lakewright("listen", "device", "--once").exit_code == 2

    listed = json.loads(lakewright("triggers", "list", "--json").stdout)
    assert listed["counts"] == {"landed": {"received": 3, "filtered": 1, "dead": 2}}
    assert {one["state"] for one in listed["events"]} == {"dead"}
    shown = lakewright("triggers", "list", "--state", "all").stdout
    assert all(word in shown for word in ("h1", "filtered", "r1", "it is not JSON"))
    assert lakewright("triggers", "list", "--state", "ded").exit_code == 2
    assert json.loads(lakewright("triggers", "show", "r1", "--json").stdout)["envelope"]["records"] == ["gone.json"]
    assert "gone.json" in lakewright("triggers", "show", "r1").stdout
    assert lakewright("triggers", "show", "r9").exit_code == 2

    result = lakewright("triggers", "replay", "r1")
    assert (result.exit_code, "gone.json" in result.stderr) == (3, True)
    assert lakewright("triggers", "replay", "h1").exit_code == 2
    broken = next(one["event_id"] for one in listed["events"] if one["event_id"] != "r1")
    assert lakewright("triggers", "retire", "r1", broken).exit_code == 0
    assert json.loads(lakewright("triggers", "list", "--json").stdout)["events"] == []
    assert lakewright("listen", "--once").exit_code == 0, "what was given up does not come again"


@pytest.mark.shows("02.external-trigger", 4)
def test_a_listener_that_is_killed_between_keeping_and_starting_loses_nothing(
    lakewright: Lakewright, devices: Path
) -> None:
    file = devices / "inbox" / "1.json"
    file.write_text('{"id": "r1", "type": "release", "files": ["gone.json"]}')
    killed = subprocess.run(
        [sys.executable, "-m", "lakewright", "listen", "--once"],
        cwd=devices,
        env={**os.environ, "LAKEWRIGHT_FAILPOINT": "event_recorded"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -9
    file.unlink()  # the channel has nothing more to tell: what was kept is enough
    listed = json.loads(lakewright("triggers", "list", "--state", "all", "--json").stdout)
    assert [one["state"] for one in listed["events"]] == ["received"]
    assert "0 received, 0 filtered, 0 done, 1 dead" in lakewright("listen", "--once").stderr
