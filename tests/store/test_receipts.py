from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConfigurationError
from lakewright.model.receipts import Change, Counters, Receipt, ReceiptKind
from lakewright.store import LiveSlice, Store, open_store

NOW = datetime(2026, 1, 5, 12, 30, 0, 123456, tzinfo=UTC)


def receipt(version: int, slice_id: str, kind: ReceiptKind = "data", dataset: str = "visits") -> Receipt:
    return Receipt(dataset, slice_id, kind, version, version - 1, version, NOW)


def live(store: Store, dataset: str = "visits") -> dict[str, int]:
    return {slice_id: found.version for slice_id, found in store.receipts.live_slices(dataset).items()}


def states(store: Store, dataset: str = "visits") -> dict[int, str]:
    return {one.version: one.state for one in store.receipts.history(dataset)}


def test_a_receipt_comes_back_as_it_was_given(store: Store) -> None:
    given = Receipt(
        dataset="visits",
        slice_id="2026-01-04",
        kind="data",
        version=7,
        version_before=6,
        number=12,
        committed_at=NOW,
        run_id="r1",
        attempt=2,
        rows=90,
        bytes=4096,
        counters=Counters(read=100, rejected={"has_id": 7}, duplicates=3, late=0, written=90),
        touched={"2026-01-04": Change(90, None), None: Change(None, 2)},
        inputs={"raw": 3, "users": 9},
        code="abc",
        valid_from=NOW - timedelta(days=400),
        recovered=True,
    )
    store.receipts.add([given])
    assert store.receipts.get("visits", 7) == given
    assert store.receipts.live("visits", "2026-01-04") == given
    assert store.receipts.history("visits") == [given]


def test_where_the_last_run_began_is_known_however_many_commits_it_made(store: Store) -> None:
    store.receipts.add([replace(receipt(version, f"arrival-{version}"), run_id="before") for version in range(3)])
    worker = [replace(receipt(version, f"arrival-{version}"), run_id="worker") for version in range(3, 1503)]
    store.receipts.add(worker)
    assert store.receipts.first_of_last_run("visits") == 3
    store.receipts.add([receipt(1503, "whole", "restore")])
    store.receipts.rolled_back("visits", 2, 1503)
    assert store.receipts.first_of_last_run("visits") == 0


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.receipts.get("visits", 1) is None
    assert store.receipts.live("visits", "whole") is None
    assert store.receipts.first("visits", "whole") is None
    assert store.receipts.first_of_last_run("visits") is None
    assert store.receipts.last_version("visits") is None
    assert store.receipts.history("visits") == []
    store.receipts.add([])


def test_a_new_receipt_supersedes_the_earlier_one_of_its_slice(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "b")])
    store.receipts.add([receipt(3, "a")])
    assert states(store) == {3: "live", 2: "live", 1: "superseded"}
    first = store.receipts.first("visits", "a")
    assert first is not None
    assert first.version == 1


def test_adding_a_receipt_twice_is_adding_it_once(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a")])
    store.receipts.add([receipt(1, "a"), replace(receipt(2, "a"), rows=5)])
    assert states(store) == {2: "live", 1: "superseded"}
    again = store.receipts.get("visits", 2)
    assert again is not None
    assert again.rows is None


def test_a_receipt_that_is_recovered_late_does_not_supersede_a_newer_one(store: Store) -> None:
    store.receipts.add([receipt(5, "a")])
    store.receipts.add([receipt(4, "a"), receipt(3, "b")])
    assert live(store) == {"a": 5, "b": 3}
    assert states(store) == {5: "live", 4: "superseded", 3: "live"}


@pytest.mark.parametrize("kind", ["fence", "maintenance", "schema", "foreign", "restore", "erase"])
def test_only_data_supersedes_data(store: Store, kind: ReceiptKind) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a", kind)])
    assert live(store) == {"a": 1}
    assert store.receipts.last_version("visits") == 2
    store.receipts.add([receipt(3, "a")])
    assert states(store) == {3: "live", 2: "live", 1: "superseded"}


def test_one_add_may_hold_receipts_of_several_datasets(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(1, "a", dataset="rejected")])
    assert (live(store), live(store, "rejected")) == ({"a": 1}, {"a": 1})


def test_the_newest_receipts_of_several_datasets_each_tell_their_own_inputs_and_cells(store: Store) -> None:
    first = replace(receipt(4, "a"), inputs={"raw": 3}, touched={"2026-01-04": Change(4, 0)})
    other = replace(receipt(7, "b", dataset="rejected"), inputs={"visits": 4}, touched={"2026-01-05": Change(1, 0)})
    earlier = [replace(one, version=one.version - 1, committed_at=NOW - timedelta(hours=1)) for one in (first, other)]
    store.receipts.add([*earlier, first, other])
    assert store.receipts.newest() == {"visits": first, "rejected": other}
    assert store.receipts.last_indexed() == {"visits": (4, NOW), "rejected": (7, NOW)}


def test_live_slices_tell_versions_inputs_and_code(store: Store) -> None:
    made = replace(receipt(1, "a"), inputs={"raw": 3, "users": 4}, code="abc")
    store.receipts.add([made, receipt(2, "b")])
    assert store.receipts.live_slices("visits") == {
        "a": LiveSlice(1, {"raw": 3, "users": 4}, "abc"),
        "b": LiveSlice(2, {}, None),
    }


def test_since_gives_what_makes_stale_after_one_version_up_to_another(store: Store) -> None:
    kinds: list[ReceiptKind] = ["data", "maintenance", "schema", "erase", "fence", "foreign", "data"]
    store.receipts.add([receipt(version, "a", kind) for version, kind in enumerate(kinds)])
    assert [one.version for one in store.receipts.since("visits", 0, 5)] == [3, 5]
    assert [one.version for one in store.receipts.since("visits", 0, 6, kinds=["data"])] == [6]


def test_history_is_newest_first_and_limited(store: Store) -> None:
    store.receipts.add([receipt(version, "a") for version in range(5)])
    assert [one.version for one in store.receipts.history("visits", 2)] == [4, 3]


def test_a_forgotten_dataset_can_be_built_again(store: Store) -> None:
    made = replace(receipt(1, "a"), inputs={"raw": 3}, touched={"2026-01-04": Change(1, 0)})
    store.receipts.add([made, receipt(2, "a"), receipt(1, "a", dataset="other")])
    store.receipts.rolled_back("visits", 1, 3)
    store.receipts.forget("visits")
    assert store.receipts.history("visits") == []
    assert store.receipts.cells("visits") == {}
    assert live(store, "other") == {"a": 1}
    store.receipts.add([made, receipt(2, "a")])
    assert live(store) == {"a": 2}


def test_a_rollback_brings_back_what_was_live_then(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "b"), receipt(3, "a"), receipt(4, "c")])
    store.receipts.add([receipt(5, "*", "restore")])
    store.receipts.rolled_back("visits", above_version=2, restored_to=5)
    assert states(store) == {5: "live", 4: "rolled back", 3: "rolled back", 2: "live", 1: "live"}


def test_work_after_a_rollback_stays_though_the_rollback_is_told_later(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a"), receipt(4, "a")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    assert states(store) == {4: "live", 2: "rolled back", 1: "superseded"}


def test_a_rollback_can_be_rolled_back(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    store.receipts.rolled_back("visits", above_version=2, restored_to=4)
    assert states(store) == {2: "live", 1: "superseded"}


def test_a_rollback_to_just_after_another_keeps_that_one(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    store.receipts.add([receipt(4, "a")])
    store.receipts.rolled_back("visits", above_version=3, restored_to=5)
    assert states(store) == {4: "rolled back", 2: "rolled back", 1: "live"}


def test_a_commit_recovered_from_before_a_rollback_is_rolled_back_too(store: Store) -> None:
    store.receipts.add([receipt(1, "a")])
    store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    store.receipts.add([receipt(3, "*", "restore")])
    store.receipts.add([receipt(2, "a")])
    assert states(store) == {3: "live", 2: "rolled back", 1: "live"}


def test_a_rollback_told_twice_is_one(store: Store) -> None:
    store.receipts.add([receipt(1, "a"), receipt(2, "a")])
    for _ in range(2):
        store.receipts.rolled_back("visits", above_version=1, restored_to=3)
    assert states(store) == {2: "rolled back", 1: "live"}


def test_a_restore_cannot_come_before_what_it_restores(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="must come after"):
        store.receipts.rolled_back("visits", above_version=3, restored_to=3)


@settings(deadline=None, max_examples=50)
@given(
    log=st.lists(st.sampled_from(["a", "b", "maintenance"]) | st.integers(0, 9), max_size=12),
    random=st.randoms(use_true_random=False),
)
def test_what_is_live_follows_the_log_in_whatever_order_it_is_told(log: list[str | int], random: Random) -> None:
    """A table as the list of its states: a write changes one slice, a restore (a number) repeats a state."""
    table: list[dict[str, int]] = [{}]
    told: list[Receipt | tuple[int, int]] = []
    for version, entry in enumerate(log, start=1):
        if isinstance(entry, int):
            target = entry % version
            table.append(table[target])
            told.append((target, version))
        elif entry == "maintenance":
            table.append(table[-1])
            told.append(receipt(version, "*", "maintenance"))
        else:
            table.append({**table[-1], entry: version})
            told.append(receipt(version, entry))
    random.shuffle(told)
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        for one in told:
            if isinstance(one, tuple):
                store.receipts.rolled_back("visits", above_version=one[0], restored_to=one[1])
            else:
                store.receipts.add([one])
        counting = [one for one in store.receipts.history("visits") if one.kind == "data" and one.state == "live"]
        assert len({one.slice_id for one in counting}) == len(counting)
        assert live(store) == table[-1]


@settings(deadline=None, max_examples=20)
@given(slices=st.lists(st.sampled_from(["a", "b", "c"]), max_size=10))
def test_adding_at_once_is_adding_one_by_one(slices: list[str]) -> None:
    new = [receipt(version, slice_id) for version, slice_id in enumerate(slices)]
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        store.receipts.add(new)
        store.receipts.add([replace(one, dataset="other") for one in reversed(new)])
        for one in new:
            store.receipts.add([replace(one, dataset="third")])
        assert states(store) == states(store, "other") == states(store, "third")
