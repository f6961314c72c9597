"""The commands that need only the store: status, cancel, unlock, store upgrade."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewright.model.receipts import Receipt
from lakewright.model.runs import Run
from lakewright.store import Owner, Store, open_store, this_process
from lakewright.store.opening import HEAD

from .conftest import Lakewright

NOW = datetime(2026, 1, 8, tzinfo=UTC)


@pytest.fixture
def store(shop: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{shop}/.lakewright/store.db") as opened:
        yield opened


def begin(store: Store, run_id: str, owner: Owner) -> None:
    now = datetime.now(UTC)  # whether an owner lives is judged by the real clock
    store.leases.register(owner, timedelta(minutes=1), now)
    store.leases.acquire("pipeline:shop", "*", owner_id=owner.owner_id, run_id=run_id, now=now)
    store.runs.start(Run(run_id, "shop", now), owner_id=owner.owner_id, options={}, now=now)


def gone() -> Owner:
    """A process that has ended on this machine."""
    here = this_process()
    return Owner("gone", here.host, here.pid, f"1@{here.process_started.rpartition('@')[2]}")


def test_before_the_first_run_status_says_so_and_makes_no_store(lakewright: Lakewright, shop: Path):
    result = lakewright("status")
    assert result.exit_code == 0
    assert "Nothing has run here yet." in result.stderr
    assert not (shop / ".lakewright").exists()
    assert json.loads(lakewright("status", "--json").stdout)["datasets"] == []


def test_status_shows_datasets_and_the_last_runs(lakewright: Lakewright, store: Store):
    store.runs.start(Run("20260108-000000-abc", "shop", NOW), owner_id=None, options={}, now=NOW)
    store.receipts.add([Receipt("orders", "2026-01-05", "data", 3, 2, 1, NOW, rows=3389)])
    store.runs.finish("20260108-000000-abc", "failed", now=NOW + timedelta(seconds=2), error="it broke\nat line 3")
    result = lakewright("status")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:4] == ["dataset", "state", "slices", "last"]
    assert lines[2][:4] == ["orders", "ok", "1", "2026-01-05"]
    assert lines[2][-1] == "3,389"
    assert lines[-1][:4] == ["20260108-000000-abc", "shop", "manual", "failed"]
    assert lines[-1][-3:] == ["2.0", "it", "broke"]


def test_status_as_json_has_stable_keys(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", this_process())
    found = json.loads(lakewright("status", "--json").stdout)
    assert set(found) == {"datasets", "runs", "leases", "open_steps", "findings", "paused", "error"}
    assert found["runs"][0]["state"] == "running"
    assert found["leases"][0]["alive"] is True


def test_cancel_asks_the_only_running_run_to_stop(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", this_process())
    result = lakewright("cancel")
    assert result.exit_code == 0
    assert "Asked run 20260108-000000-abc to stop" in result.stderr
    assert store.runs.cancel_requested("20260108-000000-abc")


def test_cancel_says_when_the_process_is_gone(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", gone())
    assert "is gone; the next `lakewright run` settles" in lakewright("cancel").stderr


def test_cancel_without_a_run_ends_with_2(lakewright: Lakewright, shop: Path):
    result = lakewright("cancel", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"] == "No run is running."


def test_cancel_of_an_unknown_run_offers_the_nearest(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", this_process())
    result = lakewright("cancel", "20260108-000000-abd")
    assert result.exit_code == 2
    assert "Did you mean '20260108-000000-abc'?" in result.stderr
    assert not store.runs.cancel_requested("20260108-000000-abc")


def test_cancel_asks_which_one_where_several_run(lakewright: Lakewright, store: Store):
    for run_id in ("one", "two"):
        store.runs.start(Run(run_id, "shop", NOW), owner_id=None, options={}, now=NOW)
    result = lakewright("cancel")
    assert result.exit_code == 2
    assert "2 runs are running: one, two." in result.stderr


@pytest.mark.parametrize("name", ["pipeline:shop", "shop"])
def test_unlock_takes_the_lease_of_a_process_that_is_gone(lakewright: Lakewright, store: Store, name: str):
    begin(store, "20260108-000000-abc", gone())
    result = lakewright("unlock", name)
    assert result.exit_code == 0
    assert "Unlocked pipeline:shop; it was held by process" in result.stderr
    assert "(run 20260108-000000-abc)" in result.stderr
    assert store.leases.held(NOW) == []


def test_unlock_refuses_a_process_at_work_on_this_machine_unless_forced(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", this_process())
    result = lakewright("unlock", "pipeline:shop")
    assert result.exit_code == 1
    assert "Nothing was unlocked." in result.stderr
    assert "hint: `lakewright cancel` stops it cleanly" in result.stderr
    assert len(store.leases.held(NOW)) == 1
    forced = lakewright("unlock", "pipeline:shop", "--force", "--json")
    assert forced.exit_code == 0
    assert json.loads(forced.stdout)["unlocked"][0]["name"] == "pipeline:shop"
    assert store.leases.held(NOW) == []


def test_unlock_of_a_pipeline_with_several_runs_takes_the_places_of_those_that_are_gone_alone(
    lakewright: Lakewright, store: Store
):
    now = datetime.now(UTC)

    def take(place: str, owner: Owner) -> None:
        store.leases.register(owner, timedelta(minutes=1), now)
        store.leases.acquire("pipeline:shop", place, owner_id=owner.owner_id, run_id=place, now=now)

    def elsewhere(name: str) -> Owner:
        return Owner(name, "another-machine", 1, "1@1")

    for place, owner in (("run 1", gone()), ("run 2", this_process()), ("run 3", elsewhere("far"))):
        take(place, owner)
    done = json.loads(lakewright("unlock", "shop", "--json").stdout)
    assert [one["slice"] for one in done["unlocked"]] == ["run 1"]
    assert [one["slice"] for one in done["kept"]] == ["run 2", "run 3"]
    assert [lease.slice_id for lease in store.leases.held(now)] == ["run 2", "run 3"]

    # Nobody is gone: neither those here nor those elsewhere, which tell that they are at work, lose theirs unasked.
    assert lakewright("unlock", "shop").exit_code == 1
    store.leases.break_lease("pipeline:shop", "run 2")
    take("run 1", elsewhere("farther"))
    refused = lakewright("unlock", "shop")
    assert refused.exit_code == 1
    assert "and by 1 more, which tell that they are at work. Nothing was unlocked." in refused.stderr
    assert "Unlocked pipeline:shop run 3" in lakewright("unlock", "shop", "--force").stderr
    assert store.leases.held(now) == []


def test_unlock_of_an_unknown_name_offers_the_nearest(lakewright: Lakewright, store: Store):
    begin(store, "20260108-000000-abc", gone())
    result = lakewright("unlock", "pipeline:shp")
    assert result.exit_code == 2
    assert "Did you mean 'pipeline:shop'?" in result.stderr


def test_unlock_where_nothing_is_locked_ends_with_2(lakewright: Lakewright, shop: Path):
    result = lakewright("unlock", "orders")
    assert result.exit_code == 2
    assert "Nothing is locked" in result.stderr


def test_store_upgrade_tells_the_schema(lakewright: Lakewright, shop: Path):
    found = json.loads(lakewright("store", "upgrade", "--json").stdout)
    assert found["schema"] == HEAD
    assert (shop / ".lakewright" / "store.db").exists()


def test_a_newer_store_is_refused_kindly(lakewright: Lakewright, store: Store, shop: Path):
    import sqlite3

    with sqlite3.connect(shop / ".lakewright" / "store.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    result = lakewright("status")
    assert result.exit_code == 2
    assert "hint: Upgrade Lakewright" in result.stderr
