"""`lakewright demo --services --rate N`: what is typed reaches whoever sends the visits, and Ctrl-C everybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lakewright import demo_services, demo_world
from lakewright.cli.main import app
from lakewright.demo_services import RATE
from lakewright.errors import InterruptedRun
from lakewright.pipelines.accounts import Account


@pytest.mark.parametrize(("typed", "rate"), [(["--rate", "250"], 250), (["--rate", "0"], 0), ([], RATE)])
def test_the_visits_of_a_day_are_sent_at_the_rate_that_was_typed_and_late_ones_as_fast_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: list[str], rate: int
) -> None:
    sendings: list[tuple[str, float]] = []

    class Sending:
        def __init__(self, lines: Path, *, servers: str, topic: str, rate: float) -> None:
            sendings.append((topic, rate))
            self.sent, self.failure = 0, None

        def start(self) -> None: ...
        def join(self) -> None: ...
        def stop(self) -> None: ...
        def is_alive(self) -> bool:
            return False

    account = Account("raw_visits", "1", read=0, kept=0, rejected={}, duplicates=0, late=0)
    stream = SimpleNamespace(batches=lambda: [account], rows=0, behind=0, check=lambda: None)
    parts: dict[str, Any] = {"services.producer": SimpleNamespace(Sending=Sending, lines_below=lambda folder: folder)}
    monkeypatch.setattr(demo_world, "load_part", lambda name: parts.get(name, SimpleNamespace()))
    monkeypatch.setattr(demo_world.World, "begin", lambda self: None)

    @contextmanager
    def services(*_: object) -> Iterator[tuple[Any, ...]]:
        address = SimpleNamespace(address=SimpleNamespace(url="nowhere:1"))
        yield address, address, address

    @contextmanager
    def project(home: Path) -> Iterator[Any]:
        yield SimpleNamespace(folder=home)

    def live_through(project: Any, world: Any, *_: object) -> None:
        world.send_visits("2026-01-01", 0, stream)
        world.send_late("2026-01-01")
        # The demo ends here as where a run has failed: what follows is not asked for.

    capture = SimpleNamespace(begin=lambda: None)
    monkeypatch.setattr("lakewright.demo_capture.LegacyDatabase", lambda *_, **__: capture)
    for name, stand_in in {
        "_require_packages": lambda: None,
        "prepare": lambda folder, services: folder,
        "generate_visits": lambda *_: (None, None),
        "_services": services,
        "Project": project,
        "_live_through": live_through,
    }.items():
        monkeypatch.setattr(demo_services, name, stand_in)

    done = CliRunner().invoke(app, ["demo", "--services", "--folder", str(tmp_path / "demo"), *typed])
    assert done.exit_code == 1, done.output
    assert sendings == [("visits", rate), ("visits", 0.0)]


def test_an_interruption_ends_the_demo_wherever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    went_on: list[str] = []
    at = SimpleNamespace(recipe=SimpleNamespace(dates=["2026-01-01"]), deliveries={"2026-01-01": Mock(lines=1)})
    project = Mock()
    project.listen.return_value = SimpleNamespace(state="interrupted")
    project.run.return_value = SimpleNamespace(state="ok", errors=[])
    project.maintain.return_value = SimpleNamespace(interrupted=True, outcomes=[])
    world = Mock()
    world.change_users.return_value = 1
    monkeypatch.setattr("lakewright.demo_stream.ContinuousStream", Mock())
    monkeypatch.setattr("lakewright.demo_ways.show_ways", lambda *_: went_on.append("the ways"))
    monkeypatch.setattr(demo_services, "run_night", lambda *_: went_on.append("the night") or True)
    legacy, console = Mock(), Console(quiet=True)
    legacy.change.return_value = 1
    with pytest.raises(InterruptedRun):
        demo_services._live_through(project, world, legacy, Mock(), at, 0.0, console)
    with pytest.raises(InterruptedRun):
        demo_services._go_out(project, world, legacy, at, console)
    assert went_on == []
