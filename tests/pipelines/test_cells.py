"""Cells that were cut in another way: consumers of a source have come and gone, a grid was declared anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.connectors.kafka import KafkaTopic
from lakewright.model.receipts import Receipt
from lakewright.model.references import Lookback
from lakewright.model.times import Grid, Interval, parse_time
from lakewright.patterns.data_flow.unaligned_fan_in import AtLeast, UnalignedFanIn
from lakewright.pipelines.declare import Pipeline
from lakewright.store import Store, open_store
from tests.pipelines.lab import LOOKED_AT, lab
from tests.pipelines.shop import land, ok, order, orders_project, rows_of

HOURLY = """
    @shop.dataset(event_time="at", grid="hour", rows="preserve")
    def hourly(orders):
        '''Orders by the hour.'''
        return orders
"""
DAY, HOUR_22, HOUR_23 = "2026-01-05", "2026-01-05T22", "2026-01-05T23"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def raw() -> Pipeline:
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    return shop


def shop_with(project, more=""):
    """A shop that opened two hours before midnight, so that an hourly consumer has two hours to make."""
    (text,) = orders_project().values()
    return project({"pipelines/shop.py": text.replace('start="2026-01-01"', f'start="{HOUR_22}:00"') + more})


def test_slices_hold_all_their_rows_while_an_hourly_consumer_comes_and_goes(project):
    shop = shop_with(project)
    land(shop.folder, "a.json", [order("a", f"{HOUR_22}:10:00Z"), order("b", f"{HOUR_23}:10:00Z")])
    ok(shop.run(["+clean"], at="2026-01-07"))

    # It comes: what is there stays in the cell of its day, and its hours are found by looking at each row's time.
    shop = shop_with(project, HOURLY)
    ok(shop.run(["+clean", "hourly"], at="2026-01-07"))
    assert [row["order_id"] for row in rows_of(shop, "hourly")] == ["a", "b"]
    assert shop.store.receipts.live("hourly", HOUR_22).counters.read is None, "nobody has counted an hour of a day"
    land(shop.folder, "b.json", [order("c", f"{HOUR_22}:30:00Z")])
    ok(shop.run(["+clean", "hourly"], at="2026-01-07"))
    for name in ("clean", "hourly"):
        assert [row["order_id"] for row in rows_of(shop, name)] == ["a", "b", "c"]
    counted = shop.store.receipts.live("clean", DAY).counters
    assert (counted.read, counted.late) == (3, 1)

    # It goes: the cell of the day beside one of its hours.
    shop = shop_with(project)
    land(shop.folder, "c.json", [order("d", f"{HOUR_23}:30:00Z")])
    ok(shop.run(["+clean"], at="2026-01-07"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b", "c", "d"]

    # It comes back: what arrived meanwhile makes its hours late.
    shop = shop_with(project, HOURLY)
    ok(shop.run(["+clean", "hourly"], at="2026-01-07"))
    assert [row["order_id"] for row in rows_of(shop, "hourly")] == ["a", "b", "c", "d"]

    # Its own slices are not cut anew under its name.
    shop = shop_with(project, HOURLY.replace('grid="hour"', 'grid="day"'))
    refused = shop.run(["hourly"], at="2026-01-07", again=True)
    assert "hourly: it was cut by hours until now, and declares days" in str(refused.errors[0])
    assert 'Let hourly have grid="hour" again' in refused.errors[0].hint
    assert [row["order_id"] for row in rows_of(shop, "hourly")] == ["a", "b", "c", "d"]


def test_a_change_in_the_cell_of_a_day_reaches_each_hour_of_it_and_the_look_back_of_others(store: Store) -> None:
    shop = raw()
    shop.sql("hourly", "SELECT * FROM raw", event_time="at", grid="hour")
    shop.sql("back", "SELECT * FROM raw", event_time="at", grid="hour", inputs={"raw": Lookback("3 hours")})
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-01", f"{DAY}T07")
    for name in ("hourly", "back"):
        for hour in ("2026-01-01T07", "2026-01-02T02", "2026-01-02T03", f"{DAY}T07"):
            bench.commit(name, hour, {hour: 1}, raw=0)
    late = "2026-01-07"
    assert set(bench.statuses("hourly", late).values()) == {"missing"}, "the other hours of the day"
    bench.arrive("raw", "2026-01-01")
    stale = {one: state for one, state in bench.states("hourly", late).items() if state.status == "late"}
    assert stale.keys() == {"2026-01-01T07"}
    assert stale["2026-01-01T07"].reason == "raw was changed since version 0", "nobody counts the hours of a day"
    stale = {one for one, status in bench.statuses("back", late).items() if status == "late"}
    assert stale == {"2026-01-01T07", "2026-01-02T02"}

    # Hours that were rolled back on purpose do not come back because their day cannot tell them.
    store.receipts.add([Receipt("hourly", "*", "restore", 4, 3, 5, LOOKED_AT, inputs={"raw": 1})])
    store.receipts.rolled_back("hourly", above_version=0, restored_to=4)
    assert not {"2026-01-02T02", f"{DAY}T07", "2026-01-01T07"} & bench.statuses("hourly", late).keys()


def test_a_part_is_there_whatever_the_cells_were_when_it_came(store: Store) -> None:
    shop = raw()
    parts = UnalignedFanIn(AtLeast(parts=20), parts="hour")
    shop.sql("parted", "SELECT * FROM raw", event_time="at", fan_in=parts)
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-01", "2026-01-02T07")
    assert bench.statuses("parted", "2026-01-07") == {"2026-01-01": "missing", "2026-01-02": "unmet"}


@pytest.mark.parametrize(("made", "declared"), [("2026-01-14", "month"), ("2026-01", "day"), ("2026-01-14", "hour")])
def test_a_grid_that_was_declared_anew_is_refused_with_all_that_reads_it(
    store: Store, made: str, declared: Grid
) -> None:
    shop = raw()
    shop.sql("figures", "SELECT * FROM raw", event_time="at", grid=declared)
    shop.sql("below", "SELECT * FROM figures", event_time="at", grid=declared)
    shop.sql("beside", "SELECT * FROM raw", event_time="at")
    bench = lab(store, shop)
    bench.arrive("raw", "2026-01-14", "2026-01-20", "2026-02-03")
    assert made not in bench.states("figures", "2026-03-02"), "what was never made is cut as it is declared"
    bench.commit("figures", made, {made: 3}, raw=0)
    everything = {"backfill": Interval(parse_time("2026-01-01"), parse_time("2026-03-01"))}
    for asked in ({}, everything):
        ((slice_id, own),) = bench.states("figures", "2026-03-02", **asked).items()
        assert (slice_id, own.status, own.make) == (made, "refused", True)
        assert f"and declares {declared}s" in own.reason
        (below,) = bench.states("below", "2026-03-02", **asked).values()
        assert below.reason.startswith("its input figures was cut by ")
    assert "refused" not in bench.statuses("beside", "2026-03-02").values()


def test_a_source_that_names_its_event_time_after_rows_have_arrived_is_told_of_and_taken_again(store: Store) -> None:
    shop = raw()
    shop.sql("daily", "SELECT * FROM raw", event_time="at")
    shop.sql("back", "SELECT * FROM raw", event_time="at", grid="hour", inputs={"raw": Lookback("3 hours")})
    shop.sql("all_of_it", "SELECT * FROM raw")
    bench, late = lab(store, shop), "2026-01-07"
    for _ in range(2):
        bench.arrive("raw", "any")
    for name, grid in (("daily", "day"), ("back", "hour")):
        (told,) = bench.states(name, late).values()
        assert (told.status, told.make) == ("refused", True)
        assert told.reason == f"its input raw took 6 rows before it named its event_time 'at': they lie in no {grid}"
        assert "`lakewright backfill --from 2026-01-01 --to 2026-01-02 --sources --select raw`" in str(told.cure)
    assert set(bench.statuses("all_of_it", late).values()) == {"due"}, "who follows arrivals reads them"
    shop.source("live", KafkaTopic("broker", "t"), schema="at timestamp", event_time="at", mode="stream")
    shop.sql("of_live", "SELECT * FROM live", event_time="at")
    streamed = lab(store, shop)
    streamed.commit("live", "arrival-1000000000", {"any": 4})
    assert "`lakewright stream rewind live --all`" in str(streamed.states("of_live", late)["2026-01-01"].cure)
    # Where all of it is about to be read again, nothing has to be told.
    again = {"raw": frozenset({"arrival-1", "arrival-2"})}
    assert bench.statuses("daily", late, again=again) == {}
    assert bench.statuses("daily", late, again={"raw": frozenset({"arrival-1"})}) == {"2026-01-01": "refused"}
    bench.commit("raw", "arrival-1", {"any": -3, "2026-01-02": 3})
    assert bench.statuses("daily", late) == {"2026-01-01": "refused"}
    bench.commit("raw", "arrival-2", {"any": -3, "2026-01-02": 2, "2026-01-06": 1})
    assert bench.statuses("daily", late) == {"2026-01-02": "missing", "2026-01-06": "due"}


def test_rows_that_came_before_their_source_named_an_event_time_are_read_again_into_their_days(project):
    (text,) = orders_project().values()
    before = text[: text.index("    @shop.dataset")].replace('event_time="at")', ")")
    shop = project({"pipelines/shop.py": before})
    land(shop.folder, "a.json", [order("a", f"{DAY}T10:00:00Z"), order("b", "2026-01-06T10:00:00Z")])
    ok(shop.run(at="2026-01-07"))

    shop = project({"pipelines/shop.py": text})
    refused = shop.run(["clean"], at="2026-01-07")
    assert "its input orders took 2 rows before it named its event_time 'at'" in str(refused.errors[0])
    assert "backfill --from 2026-01-01 --to 2026-01-02 --sources --select orders" in refused.errors[0].hint
    ok(shop.backfill("2026-01-01", "2026-01-02", select=["orders"], sources=True, at="2026-01-07"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]


RECUT = """
    from lakewright import JsonFiles, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp"{times})
    shop.sql("{name}", "SELECT * FROM orders"{times})
"""


def test_a_dataset_that_was_cut_by_arrivals_until_now_is_told_so_and_a_new_name_is_the_way_on(project):
    def shop_with(name: str, times: str = ', event_time="at"'):
        return project({"pipelines/shop.py": RECUT.format(name=name, times=times)})

    shop = shop_with("clean", times="")
    land(shop.folder, "a.json", [order("a", f"{DAY}T10:00:00Z")])
    ok(shop.run(at="2026-01-07"))
    shop = shop_with("clean")
    refused = shop.backfill("2026-01-01", "2026-01-02", select=["orders"], sources=True, at="2026-01-07")
    (error,) = refused.errors
    assert "clean was cut by what arrives until now, and is cut by event time" in str(error)
    assert "repartition" not in error.hint
    assert len(rows_of(shop, "clean")) == 1
    shop = shop_with("clean_orders")
    ok(shop.run(["clean_orders"], at="2026-01-07"))
    assert len(rows_of(shop, "clean_orders")) == 1
