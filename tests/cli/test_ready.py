"""`lakewright ready`: what another team's scheduler polls. None of it needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakewright.model.receipts import Receipt
from lakewright.runtime.settings import load_settings
from lakewright.store import Store, open_store

from .conftest import Lakewright
from .test_starting import loaded_by

NOW = datetime(2026, 1, 6, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
def store(shop: Path) -> Iterator[Store]:
    """The shop's store, with one day of `orders` made."""
    with open_store(load_settings(shop).target.reveal_store()) as opened:
        opened.receipts.add([Receipt("orders", "2026-01-05", "data", 0, None, 1, NOW, "r1", rows=12)])
        opened.markers.set("orders", "2026-01-05", run_id="r1", now=NOW)
        yield opened


def test_a_ready_slice_ends_with_0_and_one_that_is_made_again_with_4(lakewright: Lakewright, store: Store, shop: Path):
    asked = ("ready", "orders", "--slice", "2026-01-05")
    done = lakewright(*asked)
    assert (done.exit_code, done.stdout) == (0, "orders 2026-01-05 is ready since 2026-01-06 01:02:03 UTC, 12 rows\n")
    told = json.loads(lakewright(*asked, "--json").stdout)
    assert told == {
        "dataset": "orders", "slice": "2026-01-05", "ready": True, "reason": "its newest commit is complete",
        "since": "2026-01-06 01:02:03+00:00", "run": "r1", "rows": 12, "version": 0, "error": None,
    }  # fmt: skip
    store.markers.withdraw("orders", "2026-01-05", run_id="r2", now=NOW)
    done = lakewright(*asked)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "orders 2026-01-05 is not ready: run r2 began to make it at 2026-01-06 01:02:03 UTC" in done.stderr
    done = lakewright(*asked, "--json")
    assert (done.exit_code, json.loads(done.stdout)["ready"]) == (4, False)
    # A dataset that no run has made yet is known by the project alone.
    done = lakewright("ready", "daily_orders", "--slice", "2026-01-05")
    assert (done.exit_code, "it was not made yet" in done.stderr) == (4, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ordres", "--slice", "2026-01-05"], "Did you mean 'orders'?"),
        (["orders", "--slice", "yesterday"], "is not a slice"),
        (["orders", "--slice", "2026-01-05T07"], "made by event day"),
        (["daily_orders", "--slice", "whole"], "Write it as 2026-01-05"),
        (["orders", "--slice", "2026-01-05", "--wait", "soon"], "30m"),
    ],
)
def test_what_there_is_not_ends_with_2(lakewright: Lakewright, store: Store, words: list[str], told: str):
    done = lakewright("ready", *words)
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.shows("02.readiness-marker", 2)
def test_waiting_asks_again_and_ends(lakewright: Lakewright, store: Store, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds
        if clock[0] > 80:
            store.markers.set("orders", "2026-01-05", run_id="r2", now=NOW)

    monkeypatch.setattr("lakewright.cli.ready.sleep", sleep)
    monkeypatch.setattr("lakewright.cli.ready.monotonic", lambda: clock[0])
    store.markers.withdraw("orders", "2026-01-05", run_id="r2", now=NOW)
    asked = ("ready", "orders", "--slice", "2026-01-05", "--every", "30s")
    done = lakewright(*asked, "--wait", "45s")
    assert (done.exit_code, pauses) == (4, [30.0, 15.0])
    assert done.stderr.strip().endswith("It was waited for 45s.")
    assert lakewright(*asked, "--wait", "2h").exit_code == 0
    assert len(pauses) == 4


def test_a_poll_loads_neither_spark_nor_the_project(shop: Path, store: Store):
    (shop / "pipelines" / "shop.py").write_text("raise SystemExit('the project was loaded')")
    assert loaded_by("ready", "orders", "--slice", "2026-01-05", folder=shop) == {"sqlalchemy"}
