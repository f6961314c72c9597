from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakewright.errors import StoreError
from lakewright.model.runs import Run
from lakewright.store import RunRecord, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def start(store: Store, run_id: str, *, pipeline: str = "blog", minute: int = 0, attempt: int = 1) -> None:
    run = Run(run_id, pipeline, NOW, reason="backfill", attempt=attempt)
    store.runs.start(run, owner_id="o1", options={"again": True}, now=NOW + minute * MINUTE)


def test_a_run_is_recorded_from_start_to_end(store: Store) -> None:
    start(store, "r1")
    running = RunRecord("r1", "blog", "backfill", NOW, 1, "running", NOW, None, "o1", {"again": True})
    assert store.runs.get("r1") == running
    store.runs.finish("r1", "failed", now=NOW + MINUTE, error="no such column", summary={"ok": 6, "failed": 1})
    ended = store.runs.get("r1")
    assert ended is not None
    assert (ended.state, ended.ended_at, ended.error, ended.summary) == (
        "failed",
        NOW + MINUTE,
        "no such column",
        {"ok": 6, "failed": 1},
    )


def test_a_further_attempt_takes_over_the_row_of_its_run(store: Store) -> None:
    start(store, "r1")
    store.runs.request_cancel("r1")
    store.runs.finish("r1", "interrupted", now=NOW, error="cancelled")
    start(store, "r1", attempt=2)
    again = store.runs.get("r1")
    assert again is not None
    assert (again.attempt, again.state, again.error, again.cancel_requested) == (2, "running", None, False)


def test_the_latest_runs_come_newest_first(store: Store) -> None:
    for minute in range(4):
        start(store, f"r{minute}", minute=minute, pipeline="blog" if minute else "shop")
    assert [run.run_id for run in store.runs.latest(limit=2)] == ["r3", "r2"]
    assert [run.run_id for run in store.runs.latest("shop")] == ["r0"]


def test_unfinished_runs_are_those_without_an_end(store: Store) -> None:
    start(store, "r1")
    start(store, "r2", pipeline="shop", minute=1)
    start(store, "r3", minute=2)
    store.runs.finish("r3", "ok", now=NOW)
    assert [run.run_id for run in store.runs.unfinished()] == ["r1", "r2"]
    assert [run.run_id for run in store.runs.unfinished("shop")] == ["r2"]


def test_only_a_running_run_can_be_asked_to_stop(store: Store) -> None:
    start(store, "r1")
    assert not store.runs.cancel_requested("r1")
    assert store.runs.request_cancel("r1")
    assert store.runs.cancel_requested("r1")
    store.runs.finish("r1", "interrupted", now=NOW)
    assert not store.runs.request_cancel("r1")
    assert not store.runs.request_cancel("nothing")
    assert not store.runs.cancel_requested("nothing")


def test_a_lost_run_is_closed_and_an_ended_one_left_alone(store: Store) -> None:
    start(store, "r1")
    start(store, "r2")
    store.runs.finish("r2", "ok", now=NOW)
    assert store.runs.mark_lost(["r1", "r2"], NOW + MINUTE) == 1
    assert store.runs.mark_lost([], NOW) == 0
    found = {run.run_id: (run.state, run.ended_at) for run in store.runs.latest()}
    assert found == {"r1": ("lost", NOW + MINUTE), "r2": ("ok", NOW)}


def test_a_run_that_nobody_started_cannot_end(store: Store) -> None:
    with pytest.raises(StoreError, match="no run 'r9'"):
        store.runs.finish("r9", "ok", now=NOW)
    assert store.runs.get("r9") is None
