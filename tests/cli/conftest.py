from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakewright.cli.main import app

Lakewright = Callable[..., Result]

PIPELINE = """
from lakewright import JsonFiles, Merger, Pipeline, WindowedDeduplicator, DeadLetter

shop = Pipeline("shop", start="2026-01-01")
shop.source("raw_orders", JsonFiles("landing/orders"), schema="id string, at timestamp", event_time="at")
shop.source("raw_users", JsonFiles("landing/users"), schema="user string, at timestamp")
shop.sql("users", "SELECT * FROM raw_users", layer="silver", writer=Merger(keys=["user"]))


@shop.dataset(
    event_time="at",
    guards_in={"raw_orders": [DeadLetter(rules={"has_id": "id IS NOT NULL"}), WindowedDeduplicator(keys=["id"])]},
    tags=["trusted"],
)
def orders(raw_orders, users):
    print("this goes to standard error")
    return raw_orders


shop.sql("daily_orders", "SELECT to_date(at) AS day, count(*) AS n FROM orders GROUP BY ALL", event_time="day")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the commands are typed in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lakewright(folder: Path) -> Lakewright:
    """Type a command: ``lakewright("run", "--json")``; nobody is there to answer questions."""

    def type_in(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    return type_in


@pytest.fixture
def warm(spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that need Spark take the session of the tests, and leave it running when they end."""
    monkeypatch.setattr("lakewright.runtime.session.stop_session", lambda session: None)


@pytest.fixture
def shop(folder: Path) -> Path:
    """A project with five datasets and a file to take; nothing of it needs Spark until it runs."""
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "shop.py").write_text(PIPELINE)
    (folder / "lakewright.toml").write_text('name = "shop"\n')
    (folder / "landing" / "orders").mkdir(parents=True)
    (folder / "landing" / "users").mkdir()
    (folder / "landing" / "orders" / "1.json").write_text('{"id": "o1", "at": "2026-01-05T10:00:00Z"}\n')
    return folder
