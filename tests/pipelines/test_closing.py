"""When a slice closes, and when its rows should have come. Most needs no Spark: receipts alone decide."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.errors import DefinitionError, InputError
from lakewright.model.receipts import Receipt
from lakewright.model.references import Lookback, Whole
from lakewright.model.times import Interval, parse_time
from lakewright.pipelines.code import code_hash
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.graph import Graph
from lakewright.store import Store, open_store
from tests.pipelines.lab import LOOKED_AT, lab
from tests.pipelines.shop import land, made, ok, order, orders_project


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def pipeline(start: str = "2026-01-01", **options: Any) -> Pipeline:
    """Two sources and a step that reads both."""
    shop = Pipeline("shop", start=start)
    for name in ("a", "b"):
        shop.source(name, JsonFiles(f"landing/{name}"), schema="at timestamp", event_time="at")

    def both(a, b):  # type: ignore[no-untyped-def]
        return a.union(b)

    shop.add(both, **{"event_time": "at", **options})
    return shop


def test_a_slice_closes_when_every_input_has_seen_later_event_times(store: Store) -> None:
    shop = lab(store, pipeline(closes="watermark"))
    shop.arrive("a", "2026-01-01", "2026-01-02", "2026-01-03")
    assert shop.states("both", "2026-02-01")["2026-01-01"].reason == (
        "not closed yet: nothing has arrived in b yet (2026-01-01 closes when it reaches 2026-01-02 00:00 UTC)"
    )
    shop.arrive("b", "2026-01-01", "2026-01-02")
    # The run time does not matter, whether it is long past or not yet there.
    for at in ("2026-02-01", "2026-01-01"):
        assert shop.statuses("both", at) == {"2026-01-01": "due", "2026-01-02": "waiting", "2026-01-03": "waiting"}
    assert shop.states("both", "2026-02-01")["2026-01-02"].reason == (
        "not closed yet: b has seen event times up to 2026-01-02 "
        "(2026-01-02 closes when it reaches 2026-01-03 00:00 UTC)"
    )
    # Neither a backfill nor `again` opens what is not closed.
    asked = {"backfill": Interval(parse_time("2026-01-01"), parse_time("2026-02-01"))}
    assert shop.statuses("both", "2026-02-01", **asked)["2026-01-02"] == "waiting"
    again = {"again": {"both": frozenset({"2026-01-02"})}}
    assert shop.statuses("both", "2026-02-01", **again)["2026-01-02"] == "waiting"
    # What comes after it was made is late.
    shop.commit("both", "2026-01-01", {"2026-01-01": 6}, a=0, b=0)
    shop.arrive("b", "2026-01-01", "2026-01-03")
    assert shop.statuses("both", "2026-02-01") == {"2026-01-01": "late", "2026-01-02": "due", "2026-01-03": "waiting"}
    # The rows of a replaced file count no more.
    shop.commit("b", "arrival-4", {"2026-01-03": -3})
    assert shop.statuses("both", "2026-02-01")["2026-01-02"] == "waiting"
    # The index made anew from the same commits answers the same.
    before = shop.states("both", "2026-02-01")
    for name in ("a", "b", "both"):
        store.receipts.forget(name)
    store.receipts.add(shop.told)
    assert shop.states("both", "2026-02-01") == before


def test_wait_is_slack_in_event_time_and_a_finer_input_closes_a_day_by_its_hours(store: Store) -> None:
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    shop.sql("hourly", "SELECT * FROM raw", event_time="at", grid="hour", closes="watermark")
    shop.sql("days", "SELECT * FROM raw", event_time="at", closes="watermark", wait="2 hours")
    shop.sql("daily", "SELECT * FROM hourly", event_time="at", closes="watermark")
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-01T22", "2026-01-01T23", "2026-01-02T01")
    assert bench.statuses("hourly", "2026-01-02") == {
        "2026-01-01T22": "missing", "2026-01-01T23": "due", "2026-01-02T01": "waiting",
    }  # fmt: skip
    assert bench.statuses("days", "2026-02-01") == {"2026-01-01": "waiting", "2026-01-02": "waiting"}
    # A made hour counts to its end, so that the day need not wait for the first hour of the next.
    bench.commit("hourly", "2026-01-01T22", {"2026-01-01T22": 1}, raw=0)
    assert bench.states("daily", "2026-02-01")["2026-01-01"].reason == (
        "not closed yet: hourly is made up to 2026-01-01T22 (2026-01-01 closes when it reaches 2026-01-02 00:00 UTC)"
    )
    bench.commit("hourly", "2026-01-01T23", {"2026-01-01T23": 1}, raw=0)
    assert bench.statuses("daily", "2026-02-01") == {"2026-01-01": "due"}
    bench.arrive("raw", "2026-01-02T02")
    assert bench.statuses("days", "2026-01-02") == {"2026-01-01": "due", "2026-01-02": "waiting"}


def test_a_silent_input_is_left_out_and_where_all_are_silent_the_run_time_decides(store: Store) -> None:
    shop = lab(store, pipeline(closes="watermark", idle="2 hours"))
    shop.arrive("a", "2026-01-01", "2026-01-02", "2026-01-03", at=LOOKED_AT)
    shop.arrive("b", "2026-01-01", at=LOOKED_AT - timedelta(hours=1))
    assert shop.statuses("both", "2026-01-03T12:30")["2026-01-01"] == "waiting"
    assert shop.statuses("both", "2026-01-03T13:30") == {
        "2026-01-01": "due", "2026-01-02": "due", "2026-01-03": "waiting",
    }  # fmt: skip
    assert "a has seen" in shop.states("both", "2026-01-03T13:30")["2026-01-03"].reason
    assert shop.states("both", "2026-01-03T14:30")["2026-01-03"].reason == "not over yet: due at 2026-01-04 00:00 UTC"
    assert shop.statuses("both", "2026-01-04")["2026-01-03"] == "due"


def hours(start: str = "2026-01-01T21:00", **options: Any) -> Pipeline:
    """A day of hours, each of which is expected an hour after its end."""
    shop = Pipeline("shop", start=start)
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    shop.sql("hourly", "SELECT * FROM raw", event_time="at", grid="hour", **{"expect_within": "1 hour", **options})
    shop.sql("daily", "SELECT * FROM hourly", event_time="at")
    return shop


def test_an_hour_without_rows_waits_then_fails_and_the_day_above_it_is_not_made(store: Store) -> None:
    shop = lab(store, hours())
    # There need not be a table: nothing at all has arrived.
    nothing = shop.states("hourly", "2026-01-01T23:30")
    assert {slice_id: state.status for slice_id, state in nothing.items()} == {
        "2026-01-01T21": "overdue", "2026-01-01T22": "waiting", "2026-01-01T23": "waiting",
    }  # fmt: skip
    assert nothing["2026-01-01T22"].reason == "nothing has arrived in raw yet; fails at 2026-01-02 00:00 UTC"
    assert nothing["2026-01-01T21"].cure == "Deliver it and run again."

    shop.arrive("raw", "2026-01-01T21", "2026-01-01T23")
    for hour in ("2026-01-01T21", "2026-01-01T23"):
        shop.commit("hourly", hour, {hour: 3}, raw=0)
    (hour,) = (state for state in shop.states("hourly", "2026-01-02T00:30").values() if state.status == "overdue")
    assert (hour.slice.id, hour.make) == ("2026-01-01T22", True)
    assert hour.reason == "nothing has arrived in raw for 2026-01-01, hour 22; it was expected by 2026-01-02 00:00 UTC"
    assert "backfill --from 2026-01-01T22:00 --to 2026-01-01T23:00 --select hourly" in str(hour.cure)
    # Asked for alone, the day knows that it is not whole: before the limit, and after it.
    for at in ("2026-01-02T00:00", "2026-01-02T00:30"):
        assert shop.states("daily", at)["2026-01-01"].reason == "not whole yet: hourly lacks 2026-01-01T22"

    # A backfill of this hour makes it; what it was not asked for does not make it fail.
    asked = {"backfill": Interval(parse_time("2026-01-01T22:00"), parse_time("2026-01-01T23:00"))}
    wanted = shop.states("hourly", "2026-01-02T02:00", **asked)
    assert [(s, state.status, state.make) for s, state in sorted(wanted.items()) if state.status != "waiting"] == [
        ("2026-01-01T22", "backfill", True), ("2026-01-02T00", "overdue", False),
    ]  # fmt: skip
    assert "made empty" in wanted["2026-01-01T22"].reason
    early = {"backfill": Interval(parse_time("2026-01-02T01:00"), parse_time("2026-01-02T02:00"))}
    assert shop.statuses("hourly", "2026-01-02T02:00", **early)["2026-01-02T01"] == "waiting"

    # Made empty, it is expected no more, and the day is whole; rows that come later are late as always.
    shop.commit("hourly", "2026-01-01T22", {}, raw=0)
    assert "overdue" not in shop.statuses("hourly", "2026-01-02T00:30").values()
    assert shop.statuses("daily", "2026-01-02T00:30") == {"2026-01-01": "due"}
    shop.arrive("raw", "2026-01-01T22")
    assert shop.statuses("hourly", "2026-01-02T00:30")["2026-01-01T22"] == "late"


def test_after_a_long_silence_the_oldest_slices_stand_for_all_and_what_was_rolled_back_is_left_alone(
    store: Store,
) -> None:
    shop = lab(store, hours(start="2026-01-01T00:30"))
    shop.arrive("raw", "2026-01-01T01")
    found = shop.states("hourly", "2026-02-01")
    overdue = sorted(slice_id for slice_id, state in found.items() if state.status == "overdue")
    # 31 days of hours, without the one cut by the start, the one that came and the one that still may come.
    assert (len(overdue), overdue[0]) == (50, "2026-01-01T02")
    assert found[overdue[-1]].reason.endswith(f"; so were {31 * 24 - 3 - 50} more, the last 2026-01-31T22")
    whole = {"backfill": Interval(parse_time("2026-01-01"), parse_time("2026-02-01"))}
    asked = [one for one in shop.states("hourly", "2026-02-01", **whole).values() if one.status == "backfill"]
    assert len(asked) == 31 * 24 - 2

    shop.commit("hourly", "2026-01-01T01", {"2026-01-01T01": 3}, raw=0)
    shop.commit("hourly", "2026-01-01T02", {}, raw=0)
    shop.store.receipts.add([Receipt("hourly", "*", "restore", 2, 1, 3, LOOKED_AT, inputs={"raw": 0})])
    shop.store.receipts.rolled_back("hourly", above_version=0, restored_to=2)
    assert "2026-01-01T02" not in shop.states("hourly", "2026-01-02")


def test_a_slice_of_many_inputs_waits_for_the_parts_of_each(store: Store) -> None:
    shop = Pipeline("shop", start="2026-01-01")
    for name in ("a", "b"):
        shop.source(name, JsonFiles(f"landing/{name}"), schema="at timestamp", event_time="at")
        shop.sql(f"{name}_hours", f"SELECT * FROM {name}", event_time="at", grid="hour")
    shop.sql("daily", "SELECT * FROM a_hours UNION ALL SELECT * FROM b_hours", inputs=None, event_time="at")
    bench = lab(store, shop)
    bench.arrive("a", "2026-01-01T05")
    bench.arrive("b", "2026-01-01T07")
    bench.commit("a_hours", "2026-01-01T05", {"2026-01-01T05": 3}, a=0)
    assert bench.states("daily", "2026-01-02")["2026-01-01"].reason == "not whole yet: b_hours lacks 2026-01-01T07"


def test_when_slices_close_makes_nothing_outdated() -> None:
    plain, closing = pipeline(), pipeline(closes="watermark", idle="1 hour", expect_within="1 hour", wait="1 hour")
    assert code_hash(plain.datasets[-1]) == code_hash(closing.datasets[-1])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"closes": "watermarks"}, "closes is 'schedule' or 'watermark', not 'watermarks'. Did you mean 'watermark'?"),
        ({"closes": "watermark", "event_time": None}, 'has closes="watermark", but no event_time'),
        ({"expect_within": "1 hour", "event_time": None}, "has expect_within, but no event_time"),
        ({"idle": "1 hour"}, "Add closes="),
        ({"expect_within": "soon"}, "expect_within: 'soon' is not a length of time"),
        ({"expect_within": 3600}, "expect_within is a length of time such as '30 minutes', not 3600"),
        ({"expect_within": "1 hour", "start": "1970-01-01"}, 'Pipeline("shop", start='),
        ({"closes": "watermark", "inputs": {"a": Whole(), "b": Whole()}}, "reads no input slice by slice"),
        (
            {"expect_within": "1 hour", "inputs": {"a": Lookback("1 hour"), "b": Whole()}},
            "reads no input by SameSlice",
        ),
    ],
)
def test_options_that_cannot_mean_anything_are_refused_with_their_place(options: dict[str, Any], word: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Graph(pipeline(**options).datasets)
    assert word in str(caught.value)
    assert (caught.value.file, type(caught.value.line)) == (__file__, int)


def test_a_slice_closes_by_what_has_arrived_and_a_rebuilt_store_says_the_same(project) -> None:  # type: ignore[no-untyped-def]
    shop = project(orders_project('closes="watermark", idle="2 hours"'), now=lambda: LOOKED_AT)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    assert made(ok(shop.run(at="2026-01-03T12:00"))) == {("orders", "arrival-1")}
    land(shop.folder, "d2.json", [order("b", "2026-01-02T10:00:00Z")])
    summary = ok(shop.run(at="2026-01-03T12:00"))
    assert made(summary) == {("orders", "arrival-2"), ("clean", "2026-01-01"), ("daily", "2026-01-01")}

    def told() -> list[tuple[str, str, str]]:
        times = ("2026-01-03T12:00", "2026-01-03T14:30")
        return [(s.slice.id, s.status, s.reason) for at in times for s in shop.plan(["clean"], at=at)["clean"].states]

    before = told()
    assert [status for _, status, _ in before] == ["waiting", "due"]
    for name in ("orders", "clean", "daily"):
        shop.store.receipts.forget(name)
    shop.store.arrivals.forget("orders")
    shop.rebuild_store()
    assert told() == before


def test_where_nothing_has_ever_arrived_the_run_fails_too(project) -> None:  # type: ignore[no-untyped-def]
    shop = project(orders_project('expect_within="6 hours"'))
    (shop.folder / "landing" / "orders").mkdir(parents=True)
    assert ok(shop.run(at="2026-01-02T05:59")).fresh == ["orders", "clean", "daily"]
    summary = shop.run(at="2026-01-02T06:00")
    assert (summary.failed, summary.skipped, summary.exit_code) == (["clean"], ["daily"], 3)
    assert isinstance(summary.errors[0], InputError)
    assert "nothing has arrived in orders for 2026-01-01; it was expected by 2026-01-02 06:00" in str(summary.errors[0])
    assert "shop.py:" in str(summary.errors[0])
