from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.model.receipts import Change, Receipt, ReceiptKind
from lakewright.store import CellHead, StaleSlice, Store, open_store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MONDAY, TUESDAY, WEDNESDAY = "2026-01-05", "2026-01-06", "2026-01-07"
DAY, MONTH, HOUR = 10, 7, 13


def raw(version: int, kind: ReceiptKind = "data", **cells: int | None) -> Receipt:
    """A commit of the input: rows added per cell, named like d5 for the fifth."""
    touched: dict[str | None, Change] = {f"2026-01-{int(name[1:]):02}": Change(rows, 0) for name, rows in cells.items()}
    return commit("raw", f"arrival-{version}", version, touched, kind=kind)


def visits(version: int, slice_id: str, raw_version: int, kind: ReceiptKind = "data") -> Receipt:
    return commit("visits", slice_id, version, {}, inputs={"raw": raw_version}, kind=kind)


def commit(
    dataset: str,
    slice_id: str,
    version: int,
    touched: Mapping[str | None, Change],
    *,
    inputs: Mapping[str, int] | None = None,
    kind: ReceiptKind = "data",
) -> Receipt:
    return Receipt(dataset, slice_id, kind, version, version - 1, version, NOW, touched=touched, inputs=inputs or {})


def test_a_late_row_makes_exactly_its_slice_stale(store: Store) -> None:
    store.receipts.add([raw(1, d5=10, d6=10), visits(1, MONDAY, 1), visits(2, TUESDAY, 1)])
    assert store.receipts.stale("visits", "raw", DAY) == []
    store.receipts.add([raw(2, d5=1)])
    assert store.receipts.stale("visits", "raw", DAY) == [StaleSlice(MONDAY, 1, 1, 2)]
    store.receipts.add([visits(3, MONDAY, 2)])
    assert store.receipts.stale("visits", "raw", DAY) == []


def test_compaction_and_schema_changes_make_nothing_stale(store: Store) -> None:
    store.receipts.add([raw(1, d5=10), visits(1, MONDAY, 1)])
    store.receipts.add([raw(2, "maintenance", d5=0), raw(3, "schema", d5=0)])
    assert store.receipts.stale("visits", "raw", DAY) == []
    assert store.receipts.cells("raw")[MONDAY] == CellHead(1, 10)


def test_rows_that_leave_make_stale_too(store: Store) -> None:
    store.receipts.add([raw(1, d5=10), visits(1, MONDAY, 1)])
    store.receipts.add([commit("raw", "whole", 2, {MONDAY: Change(0, 4)}, kind="erase")])
    assert [one.slice_id for one in store.receipts.stale("visits", "raw", DAY)] == [MONDAY]


def test_grids_meet_by_overlap(store: Store) -> None:
    store.receipts.add([commit("raw", "arrival-1", 1, {f"{MONDAY}T07": Change(3, 0)})])
    store.receipts.add([visits(1, MONDAY, 0), visits(2, "2026-01", 0), visits(3, f"{MONDAY}T08", 0)])
    assert [one.slice_id for one in store.receipts.stale("visits", "raw", MONTH)] == [
        "2026-01",
        MONDAY,
        f"{MONDAY}T08",
    ]
    assert [one.slice_id for one in store.receipts.stale("visits", "raw", DAY)] == [MONDAY, f"{MONDAY}T08"]
    assert store.receipts.stale("visits", "raw", HOUR) == []


def test_cells_that_were_days_before_they_were_hours_meet_the_hours_within_them(store: Store) -> None:
    seven, eight = f"{MONDAY}T07", f"{MONDAY}T08"
    store.receipts.add([raw(1, d5=10), visits(1, seven, 1), visits(2, eight, 1)])
    assert store.receipts.missing("visits", "raw", HOUR) == [
        f"{MONDAY}T{hour:02}" for hour in range(24) if hour not in (7, 8)
    ]
    # A late row in an hour makes that hour stale, one in the day each hour of it.
    store.receipts.add([commit("raw", "arrival-2", 2, {seven: Change(1, 0)})])
    assert store.receipts.stale("visits", "raw", HOUR, [DAY]) == [StaleSlice(seven, 1, 1, 2)]
    store.receipts.add([raw(3, d5=1)])
    assert store.receipts.stale("visits", "raw", HOUR, [DAY]) == [
        StaleSlice(seven, 1, 1, 3),
        StaleSlice(eight, 2, 1, 3),
    ]
    # Rolled back on purpose, the hours of the day stay away until there is something new in it.
    store.receipts.add([visits(3, "*", 3, kind="restore")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    assert eight not in store.receipts.missing("visits", "raw", HOUR)
    assert store.receipts.stale("visits", "raw", HOUR, [DAY]) == []
    store.receipts.add([raw(4, d5=1)])
    assert eight in store.receipts.missing("visits", "raw", HOUR)


def test_rows_without_a_time_and_slices_without_one_are_never_stale(store: Store) -> None:
    store.receipts.add([commit("raw", "arrival-1", 2, {None: Change(3, 0)})])
    store.receipts.add([visits(1, "whole", 1), visits(2, "arrival-1", 1), visits(3, "key-eu", 1)])
    assert store.receipts.stale("visits", "raw", DAY) == []
    assert store.receipts.missing("visits", "raw", DAY) == []


def test_an_input_that_the_slice_did_not_read_does_not_make_it_stale(store: Store) -> None:
    store.receipts.add([raw(1, d5=10), commit("visits", MONDAY, 1, {}, inputs={"users": 0})])
    assert store.receipts.stale("visits", "raw", DAY) == []


def test_missing_slices_have_rows_and_no_live_receipt(store: Store) -> None:
    store.receipts.add([raw(1, d5=10, d6=10, d7=10), visits(1, TUESDAY, 1)])
    assert store.receipts.missing("visits", "raw", DAY) == [MONDAY, WEDNESDAY]
    assert store.receipts.missing("visits", "raw", MONTH) == []
    assert store.receipts.missing("nobody", "raw", MONTH) == ["2026-01"]


def test_a_cell_that_was_emptied_is_not_missing_and_an_unknown_one_is(store: Store) -> None:
    store.receipts.add([raw(1, d5=10, d6=None), commit("raw", "whole", 2, {MONDAY: Change(0, 10)})])
    assert store.receipts.missing("visits", "raw", DAY) == [TUESDAY]


def test_what_was_rolled_back_comes_back_only_with_something_new(store: Store) -> None:
    store.receipts.add([raw(1, d5=10), visits(1, MONDAY, 1)])
    store.receipts.add([raw(2, d5=1, d6=10), visits(2, MONDAY, 2), visits(3, TUESDAY, 2)])
    store.receipts.add([raw(3, d7=10)])
    store.receipts.add([visits(4, "*", 3, kind="restore")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=4)
    assert store.receipts.stale("visits", "raw", DAY) == []
    assert store.receipts.missing("visits", "raw", DAY) == [WEDNESDAY]
    store.receipts.add([raw(4, d5=1, d6=1)])
    assert store.receipts.stale("visits", "raw", DAY) == [StaleSlice(MONDAY, 1, 3, 4)]
    assert store.receipts.missing("visits", "raw", DAY) == [TUESDAY, WEDNESDAY]


def test_a_slice_made_after_a_rollback_is_judged_by_its_own_receipt(store: Store) -> None:
    store.receipts.add([raw(1, d5=10), visits(1, MONDAY, 1), visits(2, MONDAY, 1), raw(2, d5=1)])
    store.receipts.add([visits(3, "*", 2, kind="restore")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    store.receipts.add([visits(4, MONDAY, 1)])
    assert [one.slice_id for one in store.receipts.stale("visits", "raw", DAY)] == [MONDAY]


def test_cells_tell_their_last_version_and_their_rows(store: Store) -> None:
    store.receipts.add([raw(1, d5=10, d6=5), raw(2, d6=None)])
    store.receipts.add([commit("raw", "arrival-3", 3, {MONDAY: Change(4, 6), None: Change(1, 0)})])
    assert store.receipts.cells("raw") == {
        None: CellHead(3, 1),
        MONDAY: CellHead(3, 8),
        TUESDAY: CellHead(2, None),
    }
    assert store.receipts.cells("raw", upto=1) == {MONDAY: CellHead(1, 10), TUESDAY: CellHead(1, 5)}


def test_rows_are_counted_by_cells_and_versions(store: Store) -> None:
    store.receipts.add([raw(1, d5=10, d6=5), raw(2, d5=1), raw(3, d7=None)])
    store.receipts.add([commit("raw", "arrival-4", 4, {None: Change(2, 0)})])
    # A log that was cut off, and read anew: how many rows there were at its beginning, nobody knows.
    assert not store.receipts.is_whole("raw")
    assert store.receipts.rows_between("raw", MONDAY, WEDNESDAY, upto=4) is None
    assert store.receipts.rows_in("raw", [MONDAY], upto=4) is None
    assert store.receipts.rows_between("raw", MONDAY, WEDNESDAY, upto=4, after=1) == 1
    assert store.receipts.rows_total("raw", upto=2) is None
    store.receipts.add([raw(0)])
    assert store.receipts.is_whole("raw")
    assert store.receipts.rows_between("raw", MONDAY, WEDNESDAY, upto=4) == 16
    assert store.receipts.rows_between("raw", MONDAY, TUESDAY, upto=1) == 10
    assert store.receipts.rows_in("raw", [MONDAY, TUESDAY], upto=4) == 16
    assert store.receipts.rows_in("raw", [MONDAY, TUESDAY], upto=4, after=1) == 1
    assert store.receipts.rows_in("raw", [TUESDAY, WEDNESDAY], upto=4) is None
    assert store.receipts.rows_between("raw", MONDAY, WEDNESDAY, upto=4, after=1) == 1
    assert store.receipts.rows_between("raw", WEDNESDAY, "2026-01-08", upto=2) == 0
    assert store.receipts.rows_between("raw", MONDAY, "2026-02", upto=4) is None
    assert store.receipts.rows_total("raw", upto=2) == 16
    assert store.receipts.rows_total("raw", upto=4) is None
    assert store.receipts.rows_total("nothing", upto=4) == 0


HOURS = [f"2026-0{month}-0{day}T0{hour}" for month in (1, 2) for day in (1, 2) for hour in (1, 2)]
CHANGE = st.builds(Change, st.none() | st.integers(0, 3), st.integers(0, 3))


@settings(deadline=None, max_examples=60)
@given(
    log=st.lists(
        st.tuples(st.sampled_from(["data", "maintenance", "erase"]), st.dictionaries(st.sampled_from(HOURS), CHANGE)),
        max_size=6,
    ),
    made=st.dictionaries(st.sampled_from(HOURS), st.integers(0, 6)),
    width=st.sampled_from([HOUR, DAY, MONTH]),
)
def test_stale_and_missing_are_what_going_through_all_commits_gives(
    log: list[tuple[ReceiptKind, dict[str | None, Change]]], made: dict[str, int], width: int
) -> None:
    heads: dict[str, int] = {}
    rows: dict[str, list[int | None]] = {}
    for version, (kind, touched) in enumerate(log, start=1):
        for cell, change in touched.items():
            assert cell is not None
            if kind != "maintenance":
                heads[cell[:width]] = version
            net = None if change.added is None or change.removed is None else change.added - change.removed
            rows.setdefault(cell[:width], []).append(net)
    stale = [one for one in sorted(made) if heads.get(one[:width], 0) > made[one]]
    filled = {cell for cell in heads if None in rows[cell] or sum(net for net in rows[cell] if net is not None) > 0}
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        store.receipts.add(
            [
                commit("raw", "whole", version, touched, kind=kind)
                for version, (kind, touched) in enumerate(log, start=1)
            ]
            + [visits(version, *one) for version, one in enumerate(made.items(), start=1)]
        )
        assert [one.slice_id for one in store.receipts.stale("visits", "raw", width)] == stale
        assert store.receipts.missing("visits", "raw", width) == sorted(filled - {one[:width] for one in made})
