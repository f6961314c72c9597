from __future__ import annotations

from datetime import UTC, datetime

from lakewright.model.receipts import Receipt
from lakewright.store import HeldSlice, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def held(slice_id: str, version: int, *, input: str = "raw", rows: int | None = 1, run: str = "r1") -> HeldSlice:
    return HeldSlice("visits", slice_id, input, version, rows, run)


def made(version: int, slice_id: str, raw_version: int) -> Receipt:
    return Receipt("visits", slice_id, "data", version, version - 1, version, NOW, inputs={"raw": raw_version})


def test_a_held_slice_is_shown_until_it_is_released(store: Store) -> None:
    store.receipts.hold([held("a", 3), held("b", 3, rows=None)])
    assert store.receipts.held("visits") == {"a": held("a", 3), "b": held("b", 3, rows=None)}
    store.receipts.release_held("visits", "a")
    assert list(store.receipts.held("visits")) == ["b"]
    assert store.receipts.held("users") == {}


def test_a_slice_held_again_keeps_the_run_that_began_it(store: Store) -> None:
    store.receipts.hold([held("a", 3, rows=1, run="r1")])
    store.receipts.hold([held("a", 5, rows=4, run="r2")])
    assert store.receipts.held("visits") == {"a": held("a", 5, rows=4, run="r1")}


def test_a_slice_made_from_the_held_version_or_a_later_one_is_no_longer_held(store: Store) -> None:
    store.receipts.hold([held("a", 3), held("b", 3), held("c", 3)])
    store.receipts.add([made(1, "a", 2), made(2, "b", 3), made(3, "c", 4)])
    assert list(store.receipts.held("visits")) == ["a"]


def test_what_is_held_can_be_asked_by_input(store: Store) -> None:
    store.receipts.hold([held("a", 3), held("a", 9, input="users")])
    assert store.receipts.held("visits", input="raw") == {"a": held("a", 3)}
    assert store.receipts.held("visits", input="users") == {"a": held("a", 9, input="users")}
