"""A run that is stopped while another Spark works for it: it ends, nothing is left, and the next one completes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.model.identity import Identity
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.pipelines.compute_messages import Begin, MakeSlice
from lakewright.pipelines.compute_process import ComputeProcess, ProcessEnded
from lakewright.pipelines.states import SliceState
from lakewright.runtime.services.processes import Process, wait_until_gone, working_in
from lakewright.runtime.settings import load_settings
from lakewright.testing.plugin import write_files
from tests.pipelines.shop import land, ok, rows_of
from tests.pipelines.streaming import until
from tests.processes import LAKEWRIGHT, environment

HEAVY = """
    name = "heavy"
    [targets.dev.compute.heavy]
    master = "local[1]"
    driver_memory = "768m"
    fast_start = true
"""
WAITING = """
    from pathlib import Path

    from lakewright import JsonFiles, Pipeline

    HERE = str(Path(__file__).parent.parent)

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing/devices"), schema="type string", compute="heavy")

    @main.dataset(compute="heavy")
    def slow(devices):
        '''Its tasks take until somebody lets them go.'''
        here = HERE

        def wait(frames):
            import os
            import time

            open(f"{here}/at_work", "w").close()
            while not os.path.exists(f"{here}/go"):
                time.sleep(0.05)
            yield from frames

        return devices.mapInPandas(wait, devices.schema)
"""


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    """The real command; its processes, and no others, have the project as their folder."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *LAKEWRIGHT, "run", *words], cwd=home, env=environment(), text=True, **pipes
    )


def at_work_in(home: Path) -> dict[str, list[Process]]:
    """The Java and Python processes that work in a folder."""
    return {name: working_in(home, name) for name in ("java", Path(sys.executable).resolve().name)}


def refuse_left(home: Path, known: dict[str, list[Process]]) -> None:
    """Fail where one of these processes goes on, or any other that works in the folder."""
    assert wait_until_gone([one for found in known.values() for one in found], 20)
    assert not any(at_work_in(home).values())


def test_a_run_that_is_stopped_while_its_compute_works_ends_and_the_next_one_has_each_row_once(project: Any) -> None:
    opened = project({"lakewright.toml": HEAVY, "pipelines/main.py": WAITING})
    home = opened.folder
    land(home, "1.json", [{"type": "phone"}, {"type": "tablet"}], folder="devices")
    run = start(home)
    try:
        until(lambda: (home / "at_work").exists() or run.poll() is not None)
        known = at_work_in(home)
        assert len(known["java"]) == 1, "the run's own process has started no Spark"
        run.send_signal(signal.SIGTERM)
        said = "\n".join(run.communicate(timeout=60))
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert "slow arrival-1: interrupted; `lakewright run` goes on from here." in said
    assert "Traceback" not in said
    refuse_left(home, known)
    assert opened.store.runs.latest()[0].state == "interrupted"
    assert opened.store.leases.held(opened._now()) == []
    assert opened.store.steps.open_steps() == []
    assert opened.store.receipts.history("slow") == []

    (home / "go").touch()
    summary: Any = ok(opened.run())
    assert [(one.dataset, one.state, one.attempts) for one in summary.made] == [("slow", "ok", 1)]
    for name in ("devices", "slow"):
        assert [row["type"] for row in rows_of(opened, name)] == ["phone", "tablet"]
        kinds = [Identity.from_json(commit.metadata) for commit in opened.lake.log(name).commits()]
        assert [kind.kind for kind in kinds if kind is not None].count("data") == 1


def test_a_run_that_is_cancelled_while_the_spark_of_its_compute_waits_for_a_cluster_ends_at_once(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:  # takes calls, and never answers
        url = f"spark://127.0.0.1:{master.getsockname()[1]}"
        write_files(tmp_path, {"lakewright.toml": HEAVY.replace("local[1]", url), "pipelines/main.py": WAITING})
        land(tmp_path, "1.json", [{"type": "phone"}], folder="devices")
        run = start(tmp_path)
        try:
            master.settimeout(60)
            call, _ = master.accept()
            known = at_work_in(tmp_path)
            assert all(known.values())
            CliRunner().invoke(app, ["cancel", "--project", str(tmp_path)], catch_exceptions=False)
            said = "\n".join(run.communicate(timeout=15))  # Spark itself gives up after a minute
        finally:
            run.kill()
        call.close()
    assert run.returncode == 130, said
    assert "devices arrival-1: interrupted" in said
    refuse_left(tmp_path, known)


def test_whoever_waits_for_a_process_that_is_ended_is_told(tmp_path: Path) -> None:
    write_files(tmp_path, {"lakewright.toml": HEAVY, "pipelines/main.py": WAITING})
    run = Run("r", "main", datetime(2026, 1, 1, tzinfo=UTC))
    begin = Begin(load_settings(tmp_path, environ={}), run, owner_id="me", borrowed={}, parallel=1)
    process = ComputeProcess(begin, log=tmp_path / "compute.log")
    order = MakeSlice(process.next_number(), "devices", SliceState(WHOLE, "due", ""), attempt=1, code=None, places={})
    told: list[str] = []

    def make() -> None:
        with pytest.raises(ProcessEnded) as ended:
            process.make(order)
        told.append(str(ended.value))

    waiting = threading.Thread(target=make)
    waiting.start()
    process.retire()
    process.end(60)
    waiting.join(20)
    assert told == ["killed by SIGKILL"], "it was not given the time to start a Spark that nobody needs"
