from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakewright.model.receipts import Change, Receipt
from lakewright.store import ELSEWHERE, OWN, HeldSlice, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
DAY = "2026-01-04"


def commit(store: Store, dataset: str, version: int, *, at: datetime = NOW, **inputs: int) -> None:
    touched = {DAY: Change(1, 0)}
    store.receipts.add([Receipt(dataset, DAY, "data", version, None, 1, at, touched=touched, inputs=inputs)])


def test_a_dataset_that_moves_to_another_log_is_forgotten_and_its_readers_are_stale(store: Store) -> None:
    commit(store, "visits", 7)
    commit(store, "daily", 0, visits=7)
    store.receipts.hold([HeldSlice("daily", DAY, "visits", 9)])
    store.arrivals.record("visits", window={}, run_id=None, now=NOW)
    store.move(["visits"], "/prod/lake")
    assert store.origins.all() == {"visits": "/prod/lake"}
    assert store.receipts.last_version("visits") is None
    assert store.arrivals.count("visits") == 0
    assert store.receipts.held("daily") == {}
    assert store.receipts.live_slices("daily")[DAY].inputs == {"visits": ELSEWHERE}
    commit(store, "visits", 0)  # of the other log: lower than what was read before, and yet newer
    assert [one.slice_id for one in store.receipts.stale("daily", "visits", 10)] == [DAY]
    store.move(["visits"], None)
    assert store.origins.all() == {}


def test_what_a_run_has_claimed_stays_where_it_is(store: Store) -> None:
    store.origins.set(["visits"], OWN)
    commit(store, "visits", 0)
    store.move(["visits"], "/prod/lake")
    assert store.origins.all() == {"visits": OWN}
    assert store.receipts.last_version("visits") == 0


def test_readers_can_be_told_by_when_they_read(store: Store) -> None:
    commit(store, "daily", 0, at=NOW - timedelta(days=1), visits=7)
    commit(store, "weekly", 0, visits=0)
    store.receipts.unsettle("visits", before=NOW)
    assert store.receipts.live_slices("daily")[DAY].inputs == {"visits": ELSEWHERE}
    assert store.receipts.live_slices("weekly")[DAY].inputs == {"visits": 0}
