"""Late slices in pipelines: a fixed look-back (`Revisit`), and exactly what received late rows (`Repair`)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lakewright import (
    Capture,
    DataOverwrite,
    Fail,
    JsonFiles,
    Merger,
    Pipeline,
    PostgresTable,
    Previous,
    Repair,
    Revisit,
    Scd2,
    SingleRunner,
)
from lakewright.errors import DefinitionError, StoreError, TargetError
from lakewright.model.arrivals import FileVersion
from lakewright.model.runs import Run
from lakewright.model.slices import event_slice
from lakewright.model.times import Interval, cells_between, parse_time
from lakewright.patterns.error_management.static_late_data_integrator import slices_to_revisit
from lakewright.pipelines.decide import Decider, SliceState, Wish
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import notice, pin, refuse_lost_history
from lakewright.pipelines.make import call_step, set_aside
from lakewright.pipelines.progress import Outcome, SliceDone
from lakewright.pipelines.project import Project
from lakewright.pipelines.revisiting import is_before
from lakewright.pipelines.runner import Runner
from lakewright.store import HeldSlice, Store, open_store
from lakewright.store.owners import Owner
from tests.pipelines.lab import LOOKED_AT, Lab, lab
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def days(first: str, end: str) -> list[str]:
    return list(cells_between(parse_time(first), parse_time(end), "day"))


def stats(**options: Any) -> Pipeline:
    """Daily statistics of a source."""
    shop = Pipeline("shop", start="2024-01-01", runs=options.pop("runs", None) or SingleRunner())
    shop.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def daily(raw):  # type: ignore[no-untyped-def]
        return raw

    def chained(raw, chained):  # type: ignore[no-untyped-def]
        return raw

    if "inputs" in options:
        shop.add(chained, **{"event_time": "at", **options})
    else:
        shop.add(daily, **{"event_time": "at", **options})
    return shop


def made_once(store: Store, pipeline: Pipeline, first: str, end: str, name: str = "daily") -> Lab:
    """Every day has rows, and was made of them."""
    shop = lab(store, pipeline)
    shop.arrive("raw", *days(first, end))
    for day in days(first, end):
        shop.commit(name, day, {day: 3}, raw=0)
    return shop


def test_a_backfill_of_a_refused_slice_does_not_fail_for_another_one(store: Store) -> None:
    shop = made_once(store, stats(late=Fail()), "2024-12-01", "2024-12-10")
    shop.arrive("raw", "2024-12-05", "2024-12-09")
    asked = {"backfill": Interval(parse_time("2024-12-05"), parse_time("2024-12-06"))}
    states = shop.states("daily", "2024-12-10", **asked)
    found = {slice_id: (state.status, state.make) for slice_id, state in states.items()}
    assert found == {"2024-12-05": ("backfill", True), "2024-12-09": ("refused", False)}
    assert shop.turns("daily", "2024-12-10") == [(0, "2024-12-05"), (0, "2024-12-09")]  # a run is refused for both
    # Nor does a chain that begins with the backfill take the rows in that the policy refuses.
    merging = Lab(store, Graph(stats(late=Fail(), writer=Merger(keys=["user"])).datasets))
    assert merging.statuses("daily", "2024-12-10", **asked)["2024-12-09"] == "refused"


def test_a_held_slice_says_where_its_late_rows_are_not_copied(store: Store) -> None:
    pipeline = stats(late=Capture())
    pipeline.add(lambda daily: daily, name="below", event_time="at", late=Capture())
    shop = made_once(store, pipeline, "2024-12-01", "2024-12-02")
    shop.commit("below", "2024-12-01", {"2024-12-01": 3}, daily=0)
    shop.arrive("raw", "2024-12-01")
    shop.commit("daily", "2024-12-01", {"2024-12-01": 4}, raw=1)
    shop.arrive("raw", "2024-12-01")
    above, below = (shop.states(name, "2024-12-02")["2024-12-01"] for name in ("daily", "below"))
    assert (above.status, below.status) == ("held", "held")
    assert above.reason.endswith("a backfill takes them in")
    assert below.reason.endswith("a backfill takes them in (daily is not bronze: no copy is in late_rows)")


def test_late_rows_of_one_input_do_not_hide_those_of_another(store: Store) -> None:
    shop = Pipeline("shop", start="2024-01-01")
    for name in ("app", "web"):
        shop.source(name, JsonFiles(f"landing/{name}"), schema="at timestamp", event_time="at")

    def daily(app, web):  # type: ignore[no-untyped-def]
        return app.union(web)

    shop.add(daily, event_time="at", late=Capture())
    told = lab(store, shop)
    told.arrive("app", "2024-12-01")
    told.arrive("web", "2024-12-01")
    for day in days("2024-12-02", "2024-12-10"):
        told.arrive("web", day)
    told.commit("daily", "2024-12-01", {"2024-12-01": 6}, app=0, web=0)

    def captured() -> tuple[str, bool]:
        state = told.states("daily", "2024-12-02")["2024-12-01"]
        return state.status, state.make

    def capture(app: int, web: int) -> None:
        store.receipts.hold([HeldSlice("daily", "2024-12-01", n, v) for n, v in (("app", app), ("web", web))])

    told.arrive("app", "2024-12-01")
    assert captured() == ("held", True)
    capture(app=1, web=8)
    assert captured() == ("held", False)
    told.arrive("app", "2024-12-01")  # version 2, lower than that of the other input
    assert captured() == ("held", True)
    capture(app=2, web=8)
    told.arrive("web", "2024-12-01")  # the first input is stale and captured, the second one is not
    assert captured() == ("held", True)
    capture(app=2, web=9)
    assert captured() == ("held", False)


def finish_run(store: Store, run_id: str, time: str) -> None:
    store.leases.register(Owner(run_id, "here", 1, "now"), timedelta(hours=1), LOOKED_AT)
    store.runs.start(Run(run_id, "shop", parse_time(time)), owner_id=run_id, options={}, now=LOOKED_AT)


@pytest.mark.shows("03.static-late-data-integrator", 1, 5, 6, 7)
def test_the_look_back_is_made_with_each_new_slice_and_what_is_older_is_skipped_and_told(store: Store) -> None:
    shop = made_once(store, stats(late=Revisit("14 days")), "2024-12-10", "2024-12-31")
    # Of the rows that come, those of the 16th are just too old, and those of the 17th are just within.
    shop.arrive("raw", "2024-12-15", "2024-12-16", "2024-12-17", "2024-12-20", "2024-12-31")
    window = days("2024-12-17", "2024-12-31")
    states = shop.states("daily", "2025-01-01")
    assert [slice_id for slice_id, state in states.items() if state.status != "held"] == [*window, "2024-12-31"]
    with_rows = {"2024-12-17", "2024-12-20"}
    assert {state.status for day, state in states.items() if day in {*window} - with_rows} == {"revisit"}
    assert {states[day].status for day in with_rows} == {"late"}
    assert states["2024-12-31"].status == "due"
    skipped = {day for day, state in states.items() if state.status == "held"}
    assert skipped == {"2024-12-15", "2024-12-16"}
    for day in skipped:
        assert "skipped: before the look-back of 14 days from 2024-12-31" in states[day].reason

    # One of the dates fails: a further run makes that one, and no other. A slice that is made has no look-back itself.
    finish_run(store, "first", "2025-01-01")
    for day in (*window, "2024-12-31"):
        if day != "2024-12-20":
            shop.commit("daily", day, {day: 3}, run_id="first", raw=1)
    assert [day for _, day in shop.turns("daily", "2025-01-01T05:00") if day not in skipped] == ["2024-12-20"]
    asked = {"backfill": Interval(parse_time("2024-12-18"), parse_time("2024-12-19"))}
    assert set(shop.statuses("daily", "2025-01-02", **asked)) == {*skipped, "2024-12-18", "2024-12-20"}
    # The next day it begins anew; asked only for what is late, it has nothing to do.
    assert [day for _, day in shop.turns("daily", "2025-01-02")] == [
        *sorted(skipped),
        *days("2024-12-18", "2025-01-01"),
    ]
    careful = Lab(store, Graph(stats(late=Revisit("14 days", only_late=True)).datasets))
    shop.commit("daily", "2024-12-20", {"2024-12-20": 3}, run_id="first", raw=1)
    assert [day for _, day in careful.turns("daily", "2025-01-02")] == sorted(skipped)  # to be captured


def test_a_slice_that_is_merged_again_is_followed_by_all_later_ones(store: Store, tmp_path: Path) -> None:
    first, last = days("2024-12-01", "2024-12-04"), days("2024-12-02", "2024-12-04")
    shop = lab(store, stats(writer=Merger(keys=["user"])))
    shop.arrive("raw", *first)
    for day in first:
        shop.commit("daily", day, {day: 3}, raw=0)
    assert shop.turns("daily", "2024-12-04") == []
    shop.arrive("raw", "2024-12-01")
    assert [day for _, day in shop.turns("daily", "2024-12-04")] == first
    assert shop.states("daily", "2024-12-04")["2024-12-02"].reason == "2024-12-01 before it is made again"
    # A run that is killed between them goes on where it was.
    shop.commit("daily", "2024-12-01", {"2024-12-01": 1}, raw=1)
    assert [day for _, day in shop.turns("daily", "2024-12-04")] == last
    for day in last:
        shop.commit("daily", day, {day: 3}, raw=1)
    assert shop.turns("daily", "2024-12-04") == []
    asked = {"backfill": Interval(parse_time("2024-12-02"), parse_time("2024-12-03"))}
    assert [day for _, day in shop.turns("daily", "2024-12-04", **asked)] == last

    # One that was made before the dataset was cut by days is none of them.
    whole = lab(open_store(f"sqlite:///{tmp_path}/whole.db"), stats(writer=Merger(keys=["user"])))
    whole.arrive("raw", "2024-12-01")
    whole.commit("daily", "whole", {}, raw=0)
    whole.commit("daily", "2024-12-01", {"2024-12-01": 3}, raw=0)
    assert whole.turns("daily", "2024-12-04") == []
    whole.store.close()

    # Where nothing older can overwrite what came later, the slice is enough.
    shop.arrive("raw", "2024-12-01")
    in_the_lake = Merger(keys=["user"], sequence="at", deleted="gone")
    table = PostgresTable("db", "daily")
    enough: list[dict[str, Any]] = [
        {"writer": Merger(keys=["at", "user"])},
        {"writer": Merger(keys=["user"], history=Scd2(valid_from="at"))},
    ]
    # A table outside of the lake keeps what is newer, but not what is as new; nor does a history.
    followed: list[dict[str, Any]] = [
        {"writer": in_the_lake},
        {"writer": in_the_lake, "into": table},
        {"writer": Merger(keys=["user"], sequence="seq"), "into": table},
        {"writer": Merger(keys=["user"], sequence="seq", deleted="gone", delete="soft"), "into": table},
        {"writer": Merger(keys=["user"], history=Scd2(valid_from="since"))},
    ]
    for options in enough:
        assert Lab(store, Graph(stats(**options).datasets)).turns("daily", "2024-12-04") == [(0, "2024-12-01")]
    for options in followed:
        assert len(Lab(store, Graph(stats(**options).datasets)).turns("daily", "2024-12-04")) == 3


def test_an_arrival_that_is_merged_again_is_followed_by_all_later_ones(store: Store) -> None:
    shop = lab(store, stats(writer=Merger(keys=["user"]), event_time=None))
    file = FileVersion("f1.json", "1")
    for number, files in ((1, [file]), (2, [])):
        store.arrivals.record("raw", window={}, files=files, run_id=None, now=LOOKED_AT)
        shop.commit("raw", f"arrival-{number}", {"2024-12-01": 2})
        shop.commit("daily", f"arrival-{number}", {}, raw=number - 1)
    store.arrivals.record("raw", window={}, run_id=None, now=LOOKED_AT, supersedes=[(1, file)])
    shop.commit("raw", "arrival-3", {"2024-12-01": 1})
    assert [one for _, one in shop.turns("daily", "2024-12-04")] == ["arrival-1", "arrival-2", "arrival-3"]


def test_a_slice_that_reaches_into_the_look_back_belongs_to_it_with_late_rows_or_without(store: Store) -> None:
    cases = [
        ("month", "30 days", "2025-12", "2026-01", "2026-02"),
        ("day", "36 hours", "2026-02-07", "2026-02-08", "2026-02-10"),
        ("week", "10 days", "2026-W03", "2026-W04", "2026-W06"),
    ]
    for grid, last, before, edge, newest in cases:
        of_grid = slices_to_revisit(newest, lookback=last)
        assert (before in of_grid, of_grid[0]) == (False, edge)
        policy = Revisit(last)
        assert [is_before(policy, event_slice(one), newest) for one in (before, edge)] == [True, False], grid
    shop = lab(store, stats(late=Revisit("36 hours")))
    shop.arrive("raw", *days("2026-02-06", "2026-02-11"))
    for day in days("2026-02-06", "2026-02-11"):
        shop.commit("daily", day, {day: 3}, raw=0)
    shop.arrive("raw", "2026-02-07", "2026-02-08")
    told = shop.statuses("daily", "2026-02-11")
    assert told == {"2026-02-07": "held", "2026-02-08": "late", "2026-02-09": "revisit"}


def begun_in_a_run(chosen: Lab, name: str, at: str) -> list[tuple[int, str]]:
    """The slices that a run with a worker for each begins, in order, each with how many have ended by then."""
    begun: list[tuple[int, str]] = []
    ended: list[SliceDone] = []

    class Watched(Runner):
        def _decide(self, node: Any, wish: Wish) -> list[SliceState]:
            return [*self._decider.decide(node.dataset.name, wish).to_make]

        def _hand_out(self, pool: Any, dataset: Dataset, state: SliceState) -> Future[Outcome | None]:
            begun.append((len(ended), state.slice.id))
            outcome = Outcome(dataset.name, state.slice.id, "ok", state.reason, 0.0)
            return pool.submit(lambda: outcome)  # type: ignore[no-any-return]

    def listen(event: object) -> None:
        if isinstance(event, SliceDone):
            ended.append(event)

    shop: Any = SimpleNamespace(graph=chosen.graph, store=chosen.store, run=SimpleNamespace(run_id="r"))
    decider = Decider(chosen.graph, chosen.store, dict.fromkeys(chosen.graph.datasets, "code"))
    ok(Watched(shop, decider, parallel=3, listener=listen).run([name], Wish(parse_time(at))))
    return begun


@pytest.mark.parametrize("late", [Repair(), Repair("9 days"), Revisit("9 days")])
def test_late_rows_of_a_slice_that_its_destination_holds_read_only_are_held(store: Store, late: Any) -> None:
    shop = made_once(store, stats(late=late), "2024-12-20", "2024-12-23")
    shop.arrive("raw", "2024-12-20", "2024-12-21")
    asked: list[list[str]] = []

    def frozen(dataset: Dataset, slices: Iterable[str]) -> list[str]:
        asked.append(sorted(slices))
        return [one for one in asked[-1] if one == "2024-12-20"]

    decider = Decider(shop.graph, shop.store, dict.fromkeys(shop.graph.datasets, "code"), None, frozen)

    def states(**wish: Any) -> dict[str, SliceState]:
        found = decider.decide("daily", Wish(parse_time("2024-12-23"), **wish)).states
        return {one.slice.id: one for one in found if one.slice.id < "2024-12-22"}

    held, made_again = states().values()
    assert (held.status, held.make, made_again.status, made_again.make) == ("held", True, "late", True)
    assert "read-only" in held.reason
    assert asked == [["2024-12-20", "2024-12-21"]]
    again = states(again={"daily": frozenset(["2024-12-20"])})["2024-12-20"]
    assert (again.status, again.make) == ("again", True), "who asks for it is told why not"


@pytest.mark.shows("03.static-late-data-integrator", 3, 8)
def test_the_look_back_comes_before_beside_or_after_the_newest_slice(store: Store) -> None:
    shop = made_once(store, stats(late=Revisit("2 days")), "2024-12-20", "2024-12-31")
    shop.arrive("raw", "2024-12-31")
    orders, runs = {}, {}
    for placement in ("before", "parallel", "after"):
        chosen = Lab(store, Graph(stats(late=Revisit("2 days", placement=placement)).datasets))  # type: ignore[arg-type]
        orders[placement] = chosen.turns("daily", "2025-01-01")
        runs[placement] = begun_in_a_run(chosen, "daily", "2025-01-01")
    # A run begins what belongs together at once, and what comes after it when all of that has ended.
    assert runs == {
        "before": [(0, "2024-12-29"), (0, "2024-12-30"), (2, "2024-12-31")],
        "parallel": [(0, "2024-12-29"), (0, "2024-12-30"), (0, "2024-12-31")],
        "after": [(0, "2024-12-31"), (1, "2024-12-29"), (1, "2024-12-30")],
    }
    assert orders == {
        "before": [(0, "2024-12-29"), (0, "2024-12-30"), (1, "2024-12-31")],
        "parallel": [(0, "2024-12-29"), (0, "2024-12-30"), (0, "2024-12-31")],
        "after": [(0, "2024-12-31"), (1, "2024-12-29"), (1, "2024-12-30")],
    }
    from lakewright import WindowedDeduplicator

    stateful: list[dict[str, Any]] = [
        {"inputs": {"chained": Previous(schema="at timestamp")}},
        {"guards_in": {"raw": [WindowedDeduplicator(keys=["at"], window="1 day")]}},
        {"writer": Merger(keys=["at"])},
        {"runs": SingleRunner(depends_on_past=True)},
    ]
    for options in stateful:
        for placement in ("parallel", "after"):
            with pytest.raises(DefinitionError, match="depends on those before it"):
                Graph(stats(late=Revisit("2 days", placement=placement), **options).datasets)  # type: ignore[arg-type]
        Graph(stats(late=Revisit("2 days"), writer=options.pop("writer", DataOverwrite()), **options).datasets)
    with pytest.raises(DefinitionError, match="no event_time"):
        stats(late=Revisit("2 days"), event_time=None)


@pytest.mark.shows("03.dynamic-late-data-integrator", 5, 7)
def test_rows_that_come_while_a_slice_is_made_again_are_selected_next_time_and_a_chain_goes_on(store: Store) -> None:
    options: dict[str, Any] = {"inputs": {"chained": Previous(schema="at timestamp")}, "late": Repair(within="30 days")}
    shop = lab(store, stats(**options))
    version = -1

    def make(first: str, end: str, raw: int) -> None:
        nonlocal version
        for day in days(first, end):
            shop.commit("chained", day, {day: 3}, raw=raw, **({} if version < 0 else {"chained": version}))
            version += 1

    shop.arrive("raw", *days("2024-09-20", "2024-10-21"))
    make("2024-09-20", "2024-10-21", raw=0)
    assert shop.turns("chained", "2024-10-21") == []
    shop.arrive("raw", "2024-09-25")
    expected = [(0, day) for day in days("2024-09-25", "2024-10-21")]
    assert shop.turns("chained", "2024-10-21") == expected
    # While the 25th is made of version 1, version 2 comes: the receipt tells which one was read.
    shop.arrive("raw", "2024-09-25")
    make("2024-09-25", "2024-10-21", raw=1)
    assert shop.turns("chained", "2024-10-21") == expected
    # A chain that is cut short goes on where it was.
    make("2024-09-25", "2024-10-01", raw=2)
    assert shop.turns("chained", "2024-10-21") == [(0, day) for day in days("2024-10-01", "2024-10-21")]
    make("2024-10-01", "2024-10-21", raw=2)
    assert shop.turns("chained", "2024-10-21") == []
    # Beyond the cap nothing is made again, the later ones neither: the rows are told, and kept aside.
    shop.arrive("raw", "2024-09-20")
    states = shop.states("chained", "2024-12-01")
    assert {slice_id: state.status for slice_id, state in states.items()} == {"2024-09-20": "held"}
    assert "older than 30 days" in states["2024-09-20"].reason


def test_a_log_that_was_cut_off_before_anybody_looked_is_refused(store: Store) -> None:
    shop = made_once(store, stats(), "2024-12-20", "2024-12-22")
    for earliest in (0, 1):
        refuse_lost_history(store, "raw", earliest)
    with pytest.raises(TargetError, match="versions 1 to 4 are gone from the log"):
        refuse_lost_history(store, "raw", 5)
    assert shop.turns("daily", "2024-12-22") == []


DAYS = ("2026-01-01", "2026-02-08", "2026-02-09", "2026-02-10")


def both_policies() -> dict[str, str]:
    """The silver dataset repairs what is late, the gold one has a look-back of sixty days."""
    (name, text) = next(iter(orders_project('rows="preserve", late=Repair()').items()))
    look_back = 'late=Revisit("60 days", placement="after", only_late=True)'
    text = text.replace("Repair, Scd2", "ConcurrentRunner, Repair, Revisit, Scd2")
    text = text.replace('start="2026-01-01")', 'start="2026-01-01", runs=ConcurrentRunner(limit=4))')
    return {name: text.replace('rows="reduce"', f'rows="reduce", {look_back}')}


def four_days(shop) -> None:
    land(shop.folder, "d.json", [order(f"{day}-{n}", f"{day}T1{n}:00:00Z", n) for day in DAYS for n in (1, 2)])
    ok(shop.run(at="2026-02-11"))


@pytest.fixture
def shop(prepared):
    """A shop of four days, one of them forty days old."""
    return prepared("four days", both_policies(), four_days)


def files_of(shop, name: str) -> dict[str, set[str]]:
    folder = Path(shop.lake.resolve(name))
    return {day: {file.name for file in folder.glob(f"_lw_event={day}/*.parquet")} for day in DAYS}


@pytest.mark.shows("03.dynamic-late-data-integrator", 2, 3, 4, 6)
@pytest.mark.shows("03.static-late-data-integrator", 2, 5)
def test_late_rows_of_an_old_day_make_that_day_again_once_and_no_other(shop, project, spark):
    # Compaction and VACUUM are no news.
    bronze, log, session = shop.lake.resolve("orders"), shop.lake.log("orders"), shop.lake.session()
    rows = session.read.format("delta").load(bronze)
    small = rows.write.format("delta").mode("overwrite").option("dataChange", "false").option("maxRecordsPerFile", 1)
    small.save(bronze)  # the same rows, a file for each
    session.sql(f"OPTIMIZE delta.`{bronze}`")
    compacted = log.commit(log.latest())
    assert (compacted.operation, compacted.metrics["numRemovedFiles"]) == ("OPTIMIZE", 2 * len(DAYS))
    session.sql(f"VACUUM delta.`{bronze}`")
    assert log.latest() > compacted.version
    assert log.commit(log.latest()).operation == "VACUUM END"
    assert [s for s in shop.plan(at="2026-02-11")["clean"].states if s.make] == []

    land(shop.folder, "late.json", [order("late", "2026-01-01T20:00:00Z", 100), order("l2", "2026-02-08T20:00:00Z", 7)])
    ok(shop.run(["orders"], at="2026-02-11"))
    assert {s.slice.id for s in shop.plan(at="2026-02-11")["daily"].states} == {"2026-01-01", "2026-02-08"}
    before = {name: files_of(shop, name) for name in ("clean", "daily")}
    # Somebody claimed the oldest and died: the claim is found, and the slice is made all the same.
    dead = Owner("dead", "here", 999_999_999, "long ago")
    shop.store.leases.register(dead, timedelta(seconds=-1), shop._now())
    shop.store.begin_step("clean", "2026-01-01", lease="2026-01-01", owner_id="dead", run_id="died", attempt=1,
                          reason="late", outputs=["clean"], now=shop._now(), rewrites=True)  # fmt: skip
    # Four runs at once: each late slice is made by one of them, and the others take its work as done. None claims
    # anything before all of them have planned the same.
    done: list[Any] = []
    all_have_planned = threading.Barrier(4)

    def run() -> None:
        with Project(shop.folder, spark=spark) as one:
            begin_step, first, waits = one.store.begin_step, iter([True]), threading.Lock()

            def after_the_others(*words: Any, **more: Any) -> Any:
                with waits:  # each of the run's threads
                    if next(first, False):
                        all_have_planned.wait(60)
                return begin_step(*words, **more)

            with patch.object(one.store, "begin_step", after_the_others):
                done.append(one.run(at="2026-02-11"))

    read: dict[tuple[str, str], set[str]] = {}

    def call_and_note(current: Any, inputs: Any) -> Any:
        files = [file for one in inputs for file in one.frame.inputFiles()]  # what the optimiser leaves of them
        read[current.dataset.name, current.slice.id] = {f.split("_lw_event=")[1].split("/")[0] for f in files}
        return call_step(current, inputs)

    threads = [threading.Thread(target=run) for _ in range(4)]
    with patch("lakewright.pipelines.make.call_step", call_and_note):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    late = [(name, day) for name in ("clean", "daily") for day in ("2026-01-01", "2026-02-08")]
    assert len(done) == 4
    outcomes = [outcome for summary in done for outcome in ok(summary).outcomes]
    assert sorted((one.dataset, one.slice_id) for one in outcomes if one.state == "ok") == sorted(late)
    assert any(one.state == "recovered" for one in outcomes), "nobody contested a claim"
    assert shop.store.leases.held(shop._now()) == []

    # Only those days were read and written, each by itself; the others are, byte for byte, what they were.
    assert read == {(name, day): {day} for name, day in late}
    for name in ("clean", "daily"):
        after = files_of(shop, name)
        assert all(after[day] == before[name][day] for day in DAYS if (name, day) not in late)
        assert all(after[day] > before[name][day] for day in DAYS if (name, day) in late)
        *new, _, _, _, _ = [one for one in shop.store.receipts.history(name) if one.kind == "data"]
        assert len(new) == 2
        assert {cell for one in new for cell in one.touched} == {"2026-01-01", "2026-02-08"}
    fresh = project(both_policies(), folder="from_scratch")
    for file in (shop.folder / "landing" / "orders").iterdir():
        land(fresh.folder, file.name, file.read_text().splitlines())
    ok(fresh.run(at="2026-02-11"))
    assert rows_of(fresh, "daily") == rows_of(shop, "daily")
    assert not ok(shop.run(at="2026-02-11")).outcomes


LOOKS_BACK = """
    from pathlib import Path

    from lakewright import JsonFiles, Pipeline, Revisit

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", rows="preserve", late=Revisit("2 days"))
    def clean(orders):
        amount = "IF(amount < 0, raise_error('broken'), amount)" if Path("FOLDER/broken").exists() else "amount"
        return orders.selectExpr("order_id", "at", "customer", f"{amount} AS amount")
"""


@pytest.mark.shows("03.static-late-data-integrator", 3, 5)
def test_the_newest_slice_waits_for_its_look_back_and_a_date_that_failed_is_made_alone(project, tmp_path):
    shop = project({"pipelines/shop.py": LOOKS_BACK.replace("FOLDER", str(tmp_path))})
    amounts = {"2026-02-08": 1, "2026-02-09": 2, "2026-02-10": -3}
    land(shop.folder, "d1.json", [order(day, f"{day}T10:00:00Z", amount) for day, amount in amounts.items()])
    ok(shop.run(at="2026-02-11"))
    land(shop.folder, "d2.json", [order("2026-02-11", "2026-02-11T10:00:00Z")])

    # One of the look-back fails: the newest slice is not made of a history that is not valid.
    (tmp_path / "broken").touch()
    failed = shop.run(at="2026-02-12")
    assert failed.state == "failed"
    states = {outcome.slice_id: outcome.state for outcome in failed.outcomes if outcome.dataset == "clean"}
    assert (states["2026-02-09"], states["2026-02-10"]) == ("ok", "failed")
    assert states.get("2026-02-11") != "ok"
    assert "2026-02-11" not in shop.store.receipts.live_slices("clean")

    # The next run makes that one, and then the one that waited for it.
    (tmp_path / "broken").unlink()
    again = ok(shop.run(at="2026-02-12"))
    assert made(again) == {("clean", "2026-02-10"), ("clean", "2026-02-11")}
    versions = [shop.store.receipts.live("clean", day).version for day in ("2026-02-09", "2026-02-10", "2026-02-11")]
    assert versions == sorted(versions)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == [*amounts, "2026-02-11"]


@pytest.mark.shows("03.static-late-data-integrator", 1)
def test_late_rows_before_the_look_back_are_left_out_of_a_run_and_lie_in_the_late_table(project, tmp_path):
    shop = project({"pipelines/shop.py": LOOKS_BACK.replace("FOLDER", str(tmp_path))})
    past = ("2026-02-07", "2026-02-08", "2026-02-09", "2026-02-10")
    land(shop.folder, "d1.json", [order(day, f"{day}T10:00:00Z") for day in past])
    ok(shop.run(at="2026-02-11"))
    before = {day: shop.store.receipts.live("clean", day).version for day in past}
    # The look-back of the 11th begins with the 9th: of both days at its edge there are late rows.
    late = [order(f"late {day}", f"{day}T23:59:59Z") for day in past[1:3]]
    land(shop.folder, "d2.json", [*late, order("2026-02-11", "2026-02-11T10:00:00Z")])
    told = ok(shop.run(at="2026-02-12"))

    assert {day for name, day in made(told) if name == "clean"} >= {"2026-02-09", "2026-02-10", "2026-02-11"}
    after = {day: shop.store.receipts.live("clean", day).version for day in past}
    assert {day for day in past if after[day] != before[day]} == {"2026-02-09", "2026-02-10"}
    ids = [row["order_id"] for row in rows_of(shop, "clean", "order_id")]
    assert ids == [*past, "2026-02-11", "late 2026-02-09"]
    (skipped,) = shop.lake.read("_lakewright/late_rows", system_columns=True).collect()
    assert (skipped["dataset"], f"{skipped['event_time']:%Y-%m-%d %H:%M}") == ("clean", "2026-02-08 23:59")
    assert '"order_id":"late 2026-02-08"' in skipped["record"]
    reasons = [step.reason for step in shop.store.steps.of_run(told.run_id) if step.slice_id == "2026-02-08"]
    assert any("skipped: before the look-back of 2 days from 2026-02-11" in reason for reason in reasons)


@pytest.mark.shows("03.dynamic-late-data-integrator", 5)
def test_rows_that_come_while_their_slice_is_made_are_selected_by_the_next_run(shop, spark):
    land(shop.folder, "late1.json", [order("first", "2026-02-08T20:00:00Z", 10)])
    ok(shop.run(["orders"], at="2026-02-11"))
    pinned = shop.lake.log("orders").latest()
    came = threading.Event()

    def meanwhile(current: Any, inputs: Any) -> Any:
        """Between the reading of its input and its commit, another run takes a row of the same day."""
        if current.dataset.name == "clean" and not came.is_set():
            came.set()
            land(shop.folder, "late2.json", [order("second", "2026-02-08T21:00:00Z", 100)])
            with Project(shop.folder, spark=spark) as other:
                ok(other.run(["orders"], at="2026-02-11"))
        return set_aside(current, inputs)

    with patch("lakewright.pipelines.make.set_aside", meanwhile):
        ok(shop.run(["clean"], at="2026-02-11"))
    assert came.is_set()
    assert shop.lake.log("orders").latest() > pinned
    assert shop.store.receipts.live("clean", "2026-02-08").inputs["orders"] == pinned
    assert "second" not in [row["order_id"] for row in rows_of(shop, "clean", "order_id")]

    assert [s.slice.id for s in shop.plan(at="2026-02-11")["clean"].states if s.make] == ["2026-02-08"]
    ok(shop.run(at="2026-02-11"))
    assert [row["amount"] for row in sorted(rows_of(shop, "daily"))] == [3, 113, 3, 3]
    assert not ok(shop.run(at="2026-02-11")).outcomes


CHAINED = """
    from lakewright import JsonFiles, Pipeline, Previous, Repair
    from pyspark.sql import functions as F

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="day", late=Repair(within="30 days"),
                  inputs={"totals": Previous(schema="day date, total bigint")})
    def totals(orders, totals):
        before = totals.agg(F.coalesce(F.max("total"), F.lit(0)).alias("before"))
        of_day = orders.groupBy(F.to_date("at").alias("day")).agg(F.sum("amount").alias("amount"))
        return of_day.crossJoin(before).selectExpr("day", "before + amount AS total")
"""


@pytest.mark.shows("03.dynamic-late-data-integrator", 7)
def test_late_rows_of_a_chain_make_all_later_slices_anew_one_after_the_other(project):
    shop = project({"pipelines/shop.py": CHAINED})
    four_days(shop)
    capped = shop.store.receipts.live("totals", DAYS[0]).version
    assert [row["total"] for row in sorted(rows_of(shop, "totals"))] == [3, 6, 9, 12]
    late = [order("old", "2026-01-01T20:00:00Z", 1000), order("new", "2026-02-08T20:00:00Z", 10)]
    land(shop.folder, "late.json", late)

    told = ok(shop.run(at="2026-02-11", parallel=4))
    oldest, *again = [outcome.slice_id for outcome in told.made if outcome.dataset == "totals"]
    assert (oldest, again) == (DAYS[0], [*DAYS[1:]])
    assert [row["total"] for row in sorted(rows_of(shop, "totals"))] == [3, 16, 19, 22]
    # Each was made of the one before it: its receipt names the version that this one left.
    receipts = [shop.store.receipts.live("totals", day) for day in again]
    assert [one.inputs["totals"] for one in receipts[1:]] == [one.version for one in receipts[:-1]]
    # What lies beyond the cap is told, and kept aside; its slice, and what follows from it, is as it was.
    assert shop.store.receipts.live("totals", oldest).version == capped
    (skipped,) = shop.lake.read("_lakewright/late_rows", system_columns=True).collect()
    assert (skipped["dataset"], '"order_id":"old"' in skipped["record"]) == ("totals", True)
    states = {s.slice.id: s for s in shop.plan(at="2026-02-11")["totals"].states}
    assert not any(state.make for state in states.values())


@pytest.mark.shows("03.dynamic-late-data-integrator", 8)
def test_a_store_that_was_lost_is_told_and_not_taken_for_nothing_to_do(shop, project):
    shop.close()
    kept = list((shop.folder / ".lakewright").glob("store.db*"))
    for file in kept:
        file.unlink()
    forgetful = project(folder=shop.folder.name)
    for ask in (forgetful.plan, forgetful.run):
        with pytest.raises(StoreError, match="The store is empty, but the lake holds"):
            ask(at="2026-02-11")
    forgetful.close()
    (shop.folder / ".lakewright" / "store.db").write_bytes(b"this is no database, only some bytes" * 100)
    broken = project(folder=shop.folder.name)
    with pytest.raises(StoreError, match="store rebuild"):
        broken.plan(at="2026-02-11")


@pytest.mark.shows("03.dynamic-late-data-integrator", 8)
def test_commits_that_were_lost_from_the_log_before_anybody_looked_are_told_though_others_follow(shop):
    bronze = f"delta.`{shop.lake.resolve('orders')}`"
    spark, last = shop.lake.session(), shop.lake.log("orders").latest()
    # Somebody deletes an order of the oldest day; a checkpoint of the table follows, and one more change after it.
    spark.sql(f"ALTER TABLE {bronze} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"DELETE FROM {bronze} WHERE order_id = '2026-01-01-1'")
    spark.sql(f"DELETE FROM {bronze} WHERE order_id = '2026-02-08-1'")
    # The log is cut off before the next run, as its retention would do.
    log = Path(shop.lake.resolve("orders")) / "_delta_log"
    assert (log / f"{last + 2:020d}.checkpoint.parquet").exists()
    for version in range(last + 3):
        (log / f"{version:020d}.json").unlink()
    assert shop.lake.log("orders").bounds() == (last + 3, last + 3)

    words = f"orders: its versions {last + 1} to {last + 2} are gone from the log, and nobody had looked at them"
    for ask in (shop.plan, shop.run):
        with pytest.raises(TargetError, match=words) as refused:
            ask(at="2026-02-11")
        assert "store rebuild" in str(refused.value.hint)
    # What comes to be known of later commits does not hide it, also where a step reads the table.
    notice(shop.lake, shop.store, ["orders"])
    assert shop.store.receipts.last_version("orders") == last + 3
    for ask in (shop.plan, shop.run):
        with pytest.raises(TargetError, match=words):
            ask(at="2026-02-11")
    with pytest.raises(TargetError, match=words):
        pin(shop.lake, shop.store, "orders")

    # Begun again with what is left, what nothing tells of is taken and made anew. How many rows there were is not
    # known any more, and nothing is refused because of a wrong sum.
    shop.rebuild_store()
    assert shop.store.receipts.rows_total("orders", last + 3) is None
    ok(shop.run(at="2026-02-11"))
    assert [row["orders"] for row in rows_of(shop, "daily")] == [2, 2, 2, 2]
    assert shop.store.receipts.live("clean", "2026-01-01").counters.read is None
