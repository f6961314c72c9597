"""A run that lost its lease and wakes later: after a successor, after a rollback, by overwrite or by RESTORE."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from sqlalchemy import update

from lakewright.model.identity import Identity
from lakewright.model.slices import Slice
from lakewright.pipelines.keeper import Keeper
from lakewright.pipelines.workshop import Attempt
from lakewright.store import Grant, Owner
from lakewright.store.tables import owners
from tests.pipelines.shop import land, ok, order, orders_project, rows_of
from tests.pipelines.streaming import until

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


def test_after_a_rollback_its_overwrite_is_skipped_on_the_same_slice_and_on_another(shop):
    asleep = {slice_id: fall_asleep(shop, slice_id) for slice_id in ("2026-01-01", "2026-01-02")}
    shop.rollback("clean", to=0)
    for slice_id, number in asleep.items():
        assert wake_up(shop, number, slice_id) is None
        assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]


def test_a_take_over_fences_every_table_that_an_attempt_writes():
    class Fenced(list):
        def fence(self, tables, identity, parts):
            told = (identity.slice_id, identity.number)
            self.extend((table, *told, part) for table, part in zip(tables, parts, strict=True))

        def session(self):
            return None

    lake = Fenced()
    store = SimpleNamespace(steps=SimpleNamespace(open_steps=lambda name: []))
    shop = SimpleNamespace(lake=lake, store=store, run=SimpleNamespace(run_id="next"))
    dataset = SimpleNamespace(name="clean", outputs={"private": None}, is_stream=False)
    grant = Grant("clean", "2026-01-01", "next", 9, fence=8)
    Attempt(shop, dataset, Slice.parse("2026-01-01"), "2026-01-01", grant, 1, 1).fence_predecessors()
    assert {(table, part) for table, _, _, part in lake} == {
        ("private", "private"),
        ("clean", "main"),
        ("_lakewright/dead_letters", "dead_letters"),
        ("_lakewright/late_rows", "late_rows"),
        ("_lakewright/repeats", "repeats"),
    }
    assert {(slice_id, number) for _, slice_id, number, _ in lake} == {("2026-01-01", 8)}


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


HANGS = """
    from pathlib import Path
    from lakewright import JsonFiles, Pipeline
    HERE = Path(__file__).parent.parent

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp", event_time="at")

    @shop.dataset(event_time="at", retries=0, timeout="60 seconds")
    def clean(orders):
        if not (HERE / "hangs").exists():
            (HERE / "hangs").touch()
            # A condition that Spark cannot see through: nothing but its timeout ends this by itself.
            orders.sparkSession.range(0, 10**15, 1, 2).where("md5(string(id)) = 'none'").count()
        return orders
"""


def is_at_work(spark) -> bool:
    """Whether a job runs; a Connect server does not tell."""
    try:
        return bool(spark.sparkContext.statusTracker().getActiveJobsIds())
    except PySparkException:
        return True


def test_what_it_still_runs_on_the_same_spark_is_interrupted_by_whoever_takes_over(project, spark, monkeypatch):
    shop, successor = project({"pipelines/shop.py": HANGS}), project()
    land(shop.folder, "d1.json", [{"order_id": "a", "at": "2026-01-01T10:00:00Z"}])
    with monkeypatch.context() as silent:
        # Its heart does not beat, as if its process were stopped: nobody tells it to end.
        silent.setattr(Keeper, "_beat", lambda keeper: keeper._ended.wait())
        done = []
        hanging = threading.Thread(target=lambda: done.append(shop.run(at="2026-01-02")))
        hanging.start()
        until(lambda: (shop.folder / "hangs").exists() and is_at_work(spark))
    (step,) = successor.store.steps.open_steps()
    with successor.store.transaction() as conn:
        conn.execute(update(owners).values(expires_at=successor._now() - timedelta(hours=1)))

    ok(successor.run(at="2026-01-02"))

    hanging.join(60)
    (summary,) = done
    assert summary.run_id == step.run_id
    assert summary.state == "failed"
    assert "timeout" not in str(summary.errors[0])
    assert [row["order_id"] for row in rows_of(successor, "clean")] == ["a"]
    kinds = [Identity.from_json(commit.metadata).kind for commit in successor.lake.log("clean").commits()]
    assert kinds.count("data") == 1
    assert successor.store.steps.open_steps() == []
    assert successor.store.leases.held(successor._now()) == []


def test_its_restore_is_undone_by_the_next_run(shop):
    stale = Identity("clean", "whole", 1, "asleep", kind="restore", details={"restored_to": 0})
    shop.lake.open("clean", stale).restore(0)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    summary = ok(shop.run(at="2026-01-03"))
    assert any("was undone" in note.message for note in summary.notes)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    assert not ok(shop.run(at="2026-01-03")).outcomes
