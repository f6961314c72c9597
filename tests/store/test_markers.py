from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.store import EVERY_SLICE, Marker, Owner, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def test_a_marker_is_set_and_withdrawn(store: Store) -> None:
    assert store.markers.of("visits", "2026-01-04") is None
    store.markers.set("visits", "2026-01-04", run_id="r1", now=NOW)
    assert store.markers.get("visits", "2026-01-04") == Marker("visits", "2026-01-04", NOW, "r1")
    store.markers.withdraw("visits", "2026-01-04", run_id="r2", now=LATER)
    assert store.markers.get("visits", "2026-01-04") is None
    assert store.markers.of("visits", "2026-01-04") == Marker("visits", "2026-01-04", LATER, "r2", "withdrawn")
    assert [one.slice_id for one in store.markers.withdrawn("visits")] == ["2026-01-04"]


def test_setting_a_marker_again_moves_it(store: Store) -> None:
    store.markers.set("visits", "whole", run_id="r1", now=NOW)
    store.markers.set("visits", "whole", run_id="r2", now=LATER)
    assert store.markers.list() == [Marker("visits", "whole", LATER, "r2")]


def test_markers_are_listed_by_dataset_and_slice(store: Store) -> None:
    for dataset, slice_id in [("visits", "2026-01-05"), ("users", "whole"), ("visits", "2026-01-04")]:
        store.markers.set(dataset, slice_id, run_id=None, now=NOW)
    assert [marker.slice_id for marker in store.markers.list()] == ["whole", "2026-01-04", "2026-01-05"]
    assert [marker.slice_id for marker in store.markers.list("users")] == ["whole"]


def test_what_is_withdrawn_for_every_slice_wins_until_it_is_forgotten(store: Store) -> None:
    store.markers.set("visits", "2026-01-04", run_id="r1", now=NOW)
    store.markers.withdraw("visits", EVERY_SLICE, run_id="r2", now=NOW)
    assert store.markers.get("visits", "2026-01-04") is None
    store.markers.forget("visits")
    assert store.markers.of("visits", "2026-01-04") is None


def test_what_is_waited_for_keeps_the_time_when_it_was_first_seen(store: Store) -> None:
    assert store.markers.first_seen("source:a", ["x", "y"], NOW) == {"x": NOW, "y": NOW}
    assert store.markers.first_seen("source:a", ["y", "z"], LATER) == {"y": NOW, "z": LATER}
    assert store.markers.first_seen("source:a", ["x"], LATER) == {"x": LATER}, "it was gone in between"
    assert store.markers.first_seen("source:a", [], LATER) == {}
    assert store.markers.list() == []


def begin(store: Store, owner: str, now: datetime, **options: object):
    return store.begin_step(
        "visits",
        "2026-01-04",
        owner_id=owner,
        run_id=f"run of {owner}",
        attempt=1,
        reason="due",
        outputs=["private", "visits"],
        now=now,
        **{"rewrites": True, **options},  # type: ignore[arg-type]
    )


def data(dataset: str, version: int, run_id: str = "r1") -> Receipt:
    return Receipt(dataset, "2026-01-04", "data", version, version - 1, version, NOW, run_id)


def state(store: Store, dataset: str = "visits") -> str | None:
    found = store.markers.of(dataset, "2026-01-04")
    return None if found is None else found.state


def test_a_step_withdraws_the_marker_and_sets_it_with_its_receipt(store: Store) -> None:
    store.leases.register(Owner("a", "h", 1, "x"), timedelta(minutes=1), NOW)
    grant, step = begin(store, "a", NOW)
    assert (state(store), state(store, "private")) == ("withdrawn", "withdrawn")
    store.finish_step(step, "failed", grant=grant, receipts=(), now=NOW)
    assert state(store) == "withdrawn"
    grant, step = begin(store, "a", NOW)
    notices = [Finding("visits", "changed", "it has changed")]
    store.finish_step(
        step, "ok", grant=grant, receipts=[data("private", 1), data("visits", 1)], now=NOW, notices=notices
    )
    assert (state(store), state(store, "private")) == ("ready", "ready")
    assert [one.message for one in store.findings.waiting("changed")] == ["it has changed"]
    store.findings.told(store.findings.waiting("changed")[0], run_id="r1")
    assert store.findings.waiting("changed") == []
    # One that leaves the rows as they are does not touch it.
    grant, step = begin(store, "a", NOW, rewrites=False)
    assert state(store) == "ready"
    store.finish_step(step, "ok", grant=grant, receipts=(), now=NOW)


def test_a_process_that_lost_its_lease_declares_nothing_ready(store: Store) -> None:
    store.leases.register(Owner("a", "h", 1, "x"), timedelta(minutes=1), NOW)
    grant, step = begin(store, "a", NOW)
    store.leases.register(Owner("b", "h", 2, "y"), timedelta(minutes=1), LATER)
    begin(store, "b", LATER)  # it is silent for an hour: its slice is made by another one now
    assert not store.finish_step(step, "ok", grant=grant, receipts=[data("visits", 1)], now=LATER)
    assert state(store) == "withdrawn"
