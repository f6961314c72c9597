"""A run that lost its lease and wakes later: after a successor, after a rollback, by overwrite or by RESTORE."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakewright.model.identity import Identity
from lakewright.store import Owner
from tests.pipelines.shop import land, ok, order, orders_project, rows_of

ELSEWHERE = Owner("elsewhere:1", "elsewhere", 1, "long ago")


def two_days(shop):
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("b", "2026-01-02T10:00:00Z", 1)])
    ok(shop.run(at="2026-01-03"))


@pytest.fixture
def shop(prepared):
    return prepared("two days", orders_project(), two_days)


def fall_asleep(shop, slice_id: str) -> int:
    """A run on another machine takes a slice, and is not heard of for an hour; returns its number."""
    an_hour_ago = shop._now() - timedelta(hours=1)
    shop.store.leases.register(ELSEWHERE, timedelta(minutes=1), an_hour_ago)
    grant, _ = shop.store.begin_step(
        "clean", slice_id, owner_id=ELSEWHERE.owner_id, run_id="asleep", attempt=1, reason="due", outputs=["clean"],
        now=an_hour_ago,
    )  # fmt: skip
    return grant.number


def wake_up(shop, number: int, slice_id: str) -> object:
    """It goes on where it was, and overwrites its slice by nothing."""
    table = shop.lake.open("clean", Identity("clean", slice_id, number, "asleep"))
    return table.replace(table.read().limit(0), where=f"_lw_event = '{slice_id}'", partition_by=["_lw_event"])


@pytest.mark.parametrize("slice_id", ["2026-01-01", "2026-01-02"])
def test_after_a_rollback_its_overwrite_is_skipped_on_the_same_slice_and_on_another(shop, slice_id):
    number = fall_asleep(shop, slice_id)
    shop.rollback("clean", to=0)
    assert wake_up(shop, number, slice_id) is None
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]


def test_after_a_successor_its_overwrite_is_skipped(shop):
    number = fall_asleep(shop, "2026-01-02")
    ok(shop.run(at="2026-01-03", again=True, slices=["2026-01-02"]))
    assert wake_up(shop, number, "2026-01-02") is None
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]


def test_once_the_next_run_has_settled_its_step_its_overwrite_is_skipped(shop):
    number = fall_asleep(shop, "2026-01-02")
    ok(shop.run(at="2026-01-03"))
    assert shop.store.leases.held(shop._now()) == []
    assert wake_up(shop, number, "2026-01-02") is None
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]


def test_its_restore_is_undone_by_the_next_run(shop):
    stale = Identity("clean", "whole", 1, "asleep", kind="restore", details={"restored_to": 0})
    shop.lake.open("clean", stale).restore(0)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    summary = ok(shop.run(at="2026-01-03"))
    assert any("was undone" in note.message for note in summary.notes)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    assert not ok(shop.run(at="2026-01-03")).outcomes
