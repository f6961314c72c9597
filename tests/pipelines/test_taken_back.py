"""Arrivals that a source has taken back, by a rewind or a rollback: what follows them goes before it comes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from lakewright import DataOverwrite, KafkaTopic, Lookback, Merger, Pipeline, SameSlice, StatefulMerger
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit
from lakewright.model.streams import batch_number
from lakewright.pipelines.settle import set_unusable_aside
from lakewright.store import Store, open_store
from tests.pipelines.lab import LOOKED_AT, Lab, lab

NOW = "2026-01-03"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def batch(generation: int, place: int) -> str:
    return f"arrival-{batch_number(generation, place)}"


def followed(store: Store, *, mode: str = "stream", **options: Any) -> Lab:
    """A dataset that has taken three arrivals of a source: versions 0, 1 and 2 of both."""
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "visits"), schema="id string", mode=mode)

    def taken(raw):  # type: ignore[no-untyped-def]
        return raw

    visits.add(taken, **options)
    shop = lab(store, visits)
    for place in range(3):
        shop.commit("raw", batch(1, place), {"any": 1})
        shop.commit("taken", batch(1, place), {"any": 1}, raw=place)
    return shop


def undo(shop: Lab, name: str, kind: str, slice_id: str = "whole", **inputs: int) -> int:
    """A commit that takes slices back; gives its version."""
    shop.commit(name, slice_id, {}, **inputs)
    told = shop.told.pop()
    shop.store.receipts.forget(name)
    kinds: Any = kind
    shop.told.append(replace(told, kind=kinds))
    shop.store.receipts.add([one for one in shop.told if one.dataset == name])
    return told.version


def made(shop: Lab) -> list[tuple[int, str, bool]]:
    states = shop.states("taken", NOW).items()
    return sorted((one.turn, slice_id, one.takes_back) for slice_id, one in states)


def test_what_a_rewind_took_back_goes_in_one_commit_before_what_is_read_again(store: Store) -> None:
    shop = followed(store, writer=DataOverwrite())
    assert shop.states("taken", NOW) == {}
    undo(shop, "raw", "rewind", batch(1, 1))
    shop.commit("raw", batch(2, 0), {"any": 2})

    assert made(shop) == [(0, batch(1, 1), True), (1, batch(2, 0), False)]
    reason = shop.states("taken", NOW)[batch(1, 1)].reason
    assert reason == f"raw took {batch(1, 1)} and 1 after it back; they go before what came since is taken"
    # Asked for again, what is not there any more is not made of nothing.
    again = {"taken": frozenset({batch(1, 0), batch(1, 1), batch(1, 2)})}
    asked = shop.states("taken", NOW, again=again)
    assert {slice_id: (one.turn, one.takes_back) for slice_id, one in asked.items()} == {
        batch(1, 0): (1, False), batch(1, 1): (0, True), batch(2, 0): (1, False),
    }  # fmt: skip

    # Taken away, as its own receipt tells, and then made; killed between the two, nothing else is left to do.
    undo(shop, "taken", "rewind", batch(1, 1), raw=4)
    assert set(store.receipts.live_slices("taken")) == {batch(1, 0)}
    assert made(shop) == [(0, batch(2, 0), False)]
    shop.commit("taken", batch(2, 0), {"any": 2}, raw=4)
    assert shop.states("taken", NOW) == {}


def test_what_was_taken_back_with_its_successors_is_made_again_from_the_first_of_it_on(store: Store) -> None:
    """A release that knew of no rewinds had made what was read again beside what was there."""
    shop = followed(store, writer=DataOverwrite())
    undo(shop, "raw", "rewind", batch(1, 1))
    shop.commit("raw", batch(2, 0), {"any": 2})
    shop.commit("taken", batch(2, 0), {"any": 2}, raw=4)
    assert made(shop) == [(0, batch(1, 1), True), (1, batch(2, 0), False)]


def test_a_stateful_merger_makes_the_slices_again_and_rows_merged_by_key_stay(store: Store) -> None:
    shop = followed(store, writer=StatefulMerger(keys=["id"]))
    undo(shop, "raw", "rewind", batch(1, 1))
    assert made(shop) == [(0, batch(1, 1), False), (0, batch(1, 2), False)]
    for place in (1, 2):
        shop.commit("taken", batch(1, place), {}, raw=3)
    assert shop.states("taken", NOW) == {}


def test_rows_merged_by_key_stay_where_they_are_merged_again(store: Store) -> None:
    shop = followed(store, writer=Merger(keys=["id"]))
    undo(shop, "raw", "rewind", batch(1, 1))
    assert shop.states("taken", NOW) == {}


def test_a_rollback_of_a_source_takes_its_arrivals_back_as_well(store: Store) -> None:
    shop = followed(store, mode="batch", writer=DataOverwrite())
    version = undo(shop, "raw", "restore")
    store.receipts.rolled_back("raw", 1, version)
    assert made(shop) == [(0, batch(1, 2), True)]


def test_a_dataset_that_was_rolled_back_to_before_a_rewind_is_left_as_it_is(store: Store) -> None:
    shop = followed(store, writer=DataOverwrite())
    undo(shop, "raw", "rewind", batch(1, 1))
    undo(shop, "taken", "rewind", batch(1, 1), raw=3)
    version = undo(shop, "taken", "restore", raw=3)
    store.receipts.rolled_back("taken", 2, version)
    assert {*store.receipts.live_slices("taken")} == {batch(1, place) for place in range(3)}
    assert shop.states("taken", NOW) == {}
    undo(shop, "raw", "rewind", batch(1, 1))
    assert made(shop) == [(0, batch(1, 1), True)]


@pytest.mark.parametrize("reference", [SameSlice(), Lookback("1 day")], ids=["the day", "the day and the one before"])
def test_what_was_rolled_back_does_not_come_back_by_itself_whatever_it_reads(store: Store, reference: object) -> None:
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "visits"), schema="at timestamp", event_time="at")

    def daily(raw):  # type: ignore[no-untyped-def]
        return raw

    visits.add(daily, event_time="at", inputs={"raw": reference})
    shop = lab(store, visits)
    days = ["2026-01-01", "2026-01-02"]
    shop.arrive("raw", *days)
    for day in days:
        shop.commit("daily", day, {day: 3}, raw=0)
    shop.arrive("raw", days[0])
    for day in days:
        shop.commit("daily", day, {day: 1}, raw=1)
    version = undo(shop, "daily", "restore", raw=1)
    store.receipts.rolled_back("daily", 1, version)
    assert shop.states("daily", NOW) == {}

    shop.arrive("raw", days[0])
    late = {*days} if isinstance(reference, Lookback) else {days[0]}
    assert {slice_id for slice_id, state in shop.states("daily", NOW).items() if state.status == "late"} == late


@pytest.mark.parametrize("writer", [DataOverwrite(), Merger(keys=["id"])], ids=["replaced", "merged"])
def test_arrivals_that_were_rolled_back_stay_away_until_they_are_read_again(store: Store, writer: object) -> None:
    shop = followed(store, mode="batch", writer=writer)
    shop.commit("raw", batch(1, 3), {"any": 1})  # not taken yet when the others were rolled back
    version = undo(shop, "taken", "restore", raw=3)
    store.receipts.rolled_back("taken", 0, version)
    assert made(shop) == [(0, batch(1, 3), False)]
    assert {*shop.states("taken", NOW, again={"taken": frozenset({batch(1, 1)})})} == {batch(1, 3), batch(1, 1)}

    shop.commit("raw", batch(1, 4), {"any": 1})
    shop.commit("raw", batch(1, 2), {"any": 1})
    assert made(shop) == [(0, batch(1, place), False) for place in (2, 3, 4)]


@pytest.mark.parametrize("sliced", ["by arrival", "by day"])
def test_what_was_rolled_back_stays_away_where_a_stateful_merger_goes_back_by_itself(store: Store, sliced: str) -> None:
    visits = Pipeline("visits", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "visits"), schema="id string, at timestamp", event_time="at")

    def taken(raw):  # type: ignore[no-untyped-def]
        return raw

    visits.add(taken, event_time="at" if sliced == "by day" else None, writer=StatefulMerger(keys=["id"]))
    shop = lab(store, visits)
    days = [f"2026-01-0{number}" for number in (1, 2, 3, 4)]
    slices = days if sliced == "by day" else [batch(1, place) for place in range(4)]
    for place, day in enumerate(days):
        shop.commit("raw", batch(1, place), {day: 1})
        shop.commit("taken", slices[place], {day: 1}, raw=place)

    def states() -> list[str]:
        return sorted(shop.states("taken", "2026-01-05"))

    rolled_back = undo(shop, "taken", "restore", raw=3)
    store.receipts.rolled_back("taken", 1, rolled_back)
    assert states() == []
    shop.commit("raw", batch(1, 0), {days[0]: 1})
    assert states() == slices[:2]
    # Its table is emptied before the first slice is merged again; killed there, what it had taken with it comes back.
    went_back = undo(shop, "taken", "restore")
    store.receipts.rolled_back("taken", 1, rolled_back)
    store.receipts.rolled_back("taken", -1, went_back)
    assert states() == slices[:2]
    for slice_id in slices[:2]:
        shop.commit("taken", slice_id, {}, raw=4)
    assert states() == []


def test_a_letter_that_a_recovery_tells_goes_with_the_receipt_of_its_commit(spark: Any) -> None:
    dead = Identity("raw", "arrival-2", 7, "dead")
    commit = Commit(3, LOOKED_AT, "WRITE", dead.to_json(), {}, {None: Change(1, 0)})
    shop, dataset = MagicMock(), SimpleNamespace(name="raw", is_source=False, event_time=None)
    shop.lake.read.return_value = spark.createDataFrame([], "id string, _lw_arrival bigint, _lw_event string")
    settle = "lakewright.pipelines.settle"
    with (
        patch(f"{settle}.dead_letter_rows") as letters,
        patch(f"{settle}.write_side_rows") as written,
        patch(f"{settle}.rows_per_rule", return_value={}),
    ):
        set_unusable_aside(shop, dataset, replace(dead, number=9, run_id="recovers"), commit)  # type: ignore[arg-type]
    # Delta takes them as the newer attempt's; what a rollback takes back is told by the number of the commit.
    assert written.call_args.args[3].number == 9
    assert (letters.call_args.kwargs["identity"].number, letters.call_args.kwargs["identity"].run_id) == (7, "recovers")
