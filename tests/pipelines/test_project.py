"""The session of a project: made when it is first needed, and once. Without Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from lakewright.pipelines.project import Project


def test_threads_that_ask_first_at_once_get_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lakewright.toml").write_text('name = "shop"\n[targets.dev]\nmaster = "sc://127.0.0.1:1"\n')
    started: list[object] = []
    stopped: list[object] = []
    together = threading.Barrier(2)

    def start(target: object, name: str) -> object:
        started.append(object())
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # where a second one is started meanwhile, both come here
        return started[-1]

    monkeypatch.setattr("lakewright.runtime.session.spark_session", start)
    monkeypatch.setattr("lakewright.runtime.session.stop_session", stopped.append)
    found: list[object] = []
    with Project(tmp_path) as project:
        threads = [threading.Thread(target=lambda: found.append(project.spark())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [project.spark()] * 2
    assert len(started) == 1
    assert stopped == started
