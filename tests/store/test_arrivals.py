from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.model.arrivals import Arrival, FileVersion
from lakewright.store import Store, open_store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MONDAY = FileVersion("monday.json", "v1", 10)
TUESDAY = FileVersion("tuesday.json", "v1", 20)
CORRECTED = FileVersion("monday.json", "v2", 11)


def record(store: Store, *files: FileVersion, key: str | None = None, source: str = "raw") -> Arrival:
    arrival, _ = store.arrivals.record(
        source, window={"files": [file.path for file in files]}, files=files, key=key, run_id="r1", now=NOW
    )
    return arrival


def test_an_arrival_comes_back_as_it_was_recorded(store: Store) -> None:
    arrival, created = store.arrivals.record(
        "raw",
        window={"offsets": {"0": [1, 5]}, "note": "é"},
        files=[TUESDAY, MONDAY],
        key="event-1",
        run_id="r1",
        now=NOW,
    )
    assert created
    assert arrival == Arrival(
        "raw", 1, {"offsets": {"0": [1, 5]}, "note": "é"}, NOW, "r1", "event-1", (MONDAY, TUESDAY)
    )
    assert store.arrivals.get("raw", 1) == arrival
    assert store.arrivals.last("raw") == arrival


def test_numbers_rise_by_one_per_source(store: Store) -> None:
    assert [record(store, source=source).number for source in ("raw", "raw", "users", "raw")] == [1, 2, 1, 3]
    assert (store.arrivals.count("raw"), store.arrivals.count("nothing")) == (3, 0)
    assert [arrival.number for arrival in store.arrivals.all("raw")] == [1, 2, 3]


def test_the_same_key_is_the_same_arrival(store: Store) -> None:
    first = record(store, MONDAY, key="event-1")
    second, created = store.arrivals.record(
        "raw", window={"other": 1}, files=[TUESDAY], key="event-1", run_id="r2", now=NOW
    )
    assert (second, created) == (first, False)
    assert list(store.arrivals.known_files("raw")) == ["monday.json"]
    assert record(store, key="event-1", source="users").number == 1


def test_a_number_that_the_log_knows_is_recorded_once(store: Store) -> None:
    _, created = store.arrivals.record("raw", window={}, run_id=None, now=NOW, number=7)
    _, again = store.arrivals.record("raw", window={}, run_id=None, now=NOW, number=7)
    assert (created, again) == (True, False)
    assert record(store).number == 8


def test_pending_arrivals_wait_in_order_until_they_are_committed(store: Store) -> None:
    for _ in range(3):
        record(store)
    store.arrivals.commit("raw", 2)
    assert [arrival.number for arrival in store.arrivals.pending("raw")] == [1, 3]


def test_what_is_left_of_an_arrival_stands_in_its_place_until_it_is_committed(store: Store) -> None:
    record(store)
    whole = record(store)
    store.arrivals.narrow("raw", 2, {"left": 1})
    store.arrivals.commit("raw", 2)
    store.arrivals.narrow("raw", 2, {"left": 0})
    assert store.arrivals.get("raw", 2) == replace(whole, window={"left": 1})
    assert [arrival.window for arrival in store.arrivals.all("raw")] == [{"files": []}, {"left": 1}]


def test_a_file_replaced_under_its_name_supersedes_the_old_version(store: Store) -> None:
    record(store, MONDAY, TUESDAY)
    arrival, _ = store.arrivals.record(
        "raw", window={}, files=[CORRECTED], supersedes=[(1, MONDAY)], run_id="r2", now=NOW
    )
    assert arrival.supersedes == ((1, MONDAY),)
    assert store.arrivals.get("raw", 2) == arrival
    assert store.arrivals.known_files("raw") == {"monday.json": ("v2", 2), "tuesday.json": ("v1", 1)}
    first = store.arrivals.get("raw", 1)
    assert first is not None
    assert first.files == (MONDAY, TUESDAY)


def test_files_that_are_given_up_leave_the_chain_of_versions_as_if_they_had_never_been_taken(store: Store) -> None:
    record(store, MONDAY, TUESDAY)
    again = FileVersion("monday.json", "v3", 30)
    for number, file, old in ((1, CORRECTED, MONDAY), (2, again, CORRECTED)):
        store.arrivals.record("raw", window={}, files=[file], supersedes=[(number, old)], run_id="r", now=NOW)
    store.arrivals.narrow("raw", 2, {"files": []})
    third = store.arrivals.get("raw", 3)
    assert third is not None
    assert third.supersedes == ((1, MONDAY),)
    store.arrivals.narrow("raw", 3, {"files": []})
    assert store.arrivals.known_files("raw") == {"monday.json": ("v1", 1), "tuesday.json": ("v1", 1)}
    store.arrivals.commit("raw", 1)
    store.arrivals.narrow("raw", 1, {"files": []})
    assert len(store.arrivals.known_files("raw")) == 2


def test_a_file_may_return_to_an_earlier_version(store: Store) -> None:
    record(store, MONDAY)
    for number, file, old in ((1, CORRECTED, MONDAY), (2, MONDAY, CORRECTED)):
        store.arrivals.record("raw", window={}, files=[file], supersedes=[(number, old)], run_id="r", now=NOW)
    assert store.arrivals.known_files("raw") == {"monday.json": ("v1", 3)}


def test_a_source_without_arrivals_has_nothing(store: Store) -> None:
    assert store.arrivals.get("raw", 1) is None
    assert store.arrivals.last("raw") is None
    assert store.arrivals.pending("raw") == []
    assert store.arrivals.known_files("raw") == {}


def test_a_forgotten_source_begins_anew(store: Store) -> None:
    record(store, MONDAY)
    record(store, MONDAY, source="users")
    store.arrivals.forget("raw")
    assert store.arrivals.known_files("raw") == {}
    assert record(store).number == 1
    assert store.arrivals.count("users") == 1


@settings(deadline=None, max_examples=25)
@given(keys=st.lists(st.none() | st.sampled_from(["k1", "k2"]), max_size=8))
def test_each_key_is_recorded_once_and_numbers_have_no_gap(keys: list[str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        for key in keys:
            record(store, key=key)
        found = store.arrivals.all("raw")
        assert [arrival.number for arrival in found] == list(range(1, len(found) + 1))
        assert len(found) == keys.count(None) + len({key for key in keys if key is not None})
