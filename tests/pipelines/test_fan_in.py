"""When a slice is made of some of its parts. Receipts and step records decide: nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakewright.cli.plan import plan_as_json
from lakewright.cli.plan_tree import plan_tree
from lakewright.connectors.files import JsonFiles
from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.model.completeness import Completeness
from lakewright.model.policies import Capture
from lakewright.model.receipts import NO_TABLE, Counters
from lakewright.model.slices import Slice
from lakewright.model.times import parse_time
from lakewright.patterns.data_flow.unaligned_fan_in import AtLeast, UnalignedFanIn
from lakewright.patterns.idempotency.merger import Merger
from lakewright.patterns.ingestion.readiness_marker import ReadinessMarker
from lakewright.pipelines.cascade import cascade
from lakewright.pipelines.decide import Decider, Wish
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.fan_in import completeness_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.store import Store, open_store
from tests.pipelines.lab import LOOKED_AT, Lab, lab

HOURS = [f"2026-01-01T{hour:02d}" for hour in range(24)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def hours(fan_in: UnalignedFanIn | None = None, hour_limit: str | None = None, **options: Any) -> Pipeline:
    """A source, its hours, and the days made of them."""
    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def hourly(raw):  # type: ignore[no-untyped-def]
        return raw

    def daily(hourly):  # type: ignore[no-untyped-def]
        return hourly

    trend.add(hourly, event_time="at", grid="hour", expect_within=hour_limit)
    trend.add(daily, event_time="at", fan_in=fan_in or UnalignedFanIn(), **options)
    return trend


def made(bench: Lab, *cells: str, rows: int = 1) -> None:
    for cell in cells:
        bench.commit("hourly", cell, {cell: rows} if rows else {}, raw=0)


def tried(store: Store, *cells: str, state: Any = "failed") -> None:
    for cell in cells:
        step = store.steps.open(
            run_id="r", dataset="hourly", slice_id=cell, number=1, attempt=1, reason="", outputs=(), now=LOOKED_AT
        )
        store.steps.close(step, state, now=LOOKED_AT)


def test_a_day_waits_until_every_hour_was_tried_and_then_goes_on_without_those_that_failed(store: Store) -> None:
    bench = lab(store, hours())
    bench.arrive("raw", *HOURS)
    made(bench, *HOURS[:18])
    # The day is not over; then six hours of it were never begun; then they have failed.
    assert bench.statuses("daily", "2026-01-01T20:00") == {"2026-01-01": "waiting"}
    state = bench.states("daily", "2026-01-02")["2026-01-01"]
    assert (state.status, state.make) == ("waiting", False)
    assert state.reason == "not all parts were tried yet: hourly 2026-01-01T18 is to come"
    tried(store, *HOURS[18:23])
    assert bench.statuses("daily", "2026-01-02") == {"2026-01-01": "waiting"}
    tried(store, HOURS[23], state="interrupted")
    assert bench.statuses("daily", "2026-01-02") == {"2026-01-01": "waiting"}
    tried(store, HOURS[23])
    state = bench.states("daily", "2026-01-02")["2026-01-01"]
    assert (state.status, state.make) == ("due", True)
    assert "18 of 24 parts are there (75 %), without 2026-01-01T18, 2026-01-01T19, 2026-01-01T20 and 3 more" in (
        state.reason
    )


def test_within_a_run_what_the_run_could_not_make_counts_as_tried(store: Store) -> None:
    bench = lab(store, hours())
    bench.arrive("raw", *HOURS)
    made(bench, *HOURS[:18])
    assert bench.statuses("daily", "2026-01-02", ended=frozenset({"hourly"})) == {"2026-01-01": "due"}


def test_the_rule_any_does_not_wait(store: Store) -> None:
    bench = lab(store, hours(UnalignedFanIn(rule="any")))
    bench.arrive("raw", *HOURS)
    assert bench.statuses("daily", "2026-01-02") == {}
    made(bench, HOURS[3])
    assert bench.statuses("daily", "2026-01-02") == {"2026-01-01": "due"}


@pytest.mark.parametrize(
    ("rule", "present", "met"),
    [
        ("all", 24, True), ("all", 23, False),
        ("all_done", 1, True), ("all_done", 0, False),
        ("any", 1, True), ("any", 0, False),
        (AtLeast(18), 18, True), (AtLeast(18), 17, False),
        (AtLeast(share=0.75), 18, True), (AtLeast(share=0.75), 17, False),
    ],
)  # fmt: skip
def test_a_rule_lets_the_slice_be_made_or_the_fallback_run(store: Store, rule: Any, present: int, met: bool) -> None:
    bench = lab(store, hours(UnalignedFanIn(rule=rule)))
    bench.arrive("raw", *HOURS)
    made(bench, *HOURS[:present])
    tried(store, *HOURS[present:])
    state = bench.states("daily", "2026-01-02")["2026-01-01"]
    assert (state.status, state.make) == ("due" if met else "unmet", True)


def test_an_unmet_rule_is_told_once_for_each_state_of_the_parts(store: Store) -> None:
    bench = lab(store, hours(UnalignedFanIn(rule=AtLeast(18))))
    bench.arrive("raw", *HOURS)
    made(bench, *HOURS[:2])
    tried(store, *HOURS[2:])
    first = bench.states("daily", "2026-01-02")["2026-01-01"]
    assert first.reason == (
        "2 of 24 parts are there (8 %), without 2026-01-01T02, 2026-01-01T03, 2026-01-01T04 and 19 more; "
        "the rule is: at least 18 parts"
    )
    reason = f"{first.status}: {first.reason}"
    store.steps.leave_out(run_id="r", dataset="daily", slice_id="2026-01-01", reason=reason, now=LOOKED_AT)
    assert not bench.states("daily", "2026-01-02")["2026-01-01"].make
    made(bench, HOURS[5])
    assert bench.states("daily", "2026-01-02")["2026-01-01"].make


def test_hours_that_never_came_are_waited_for_until_their_own_limit(store: Store) -> None:
    bench = lab(store, hours(hour_limit="2 hours"))
    bench.arrive("raw", *HOURS[:23])
    made(bench, *HOURS[:23])
    assert bench.states("daily", "2026-01-02T01:00")["2026-01-01"].reason == (
        "not all parts were tried yet: hourly 2026-01-01T23 is to come"
    )
    assert bench.statuses("hourly", "2026-01-02T03:00") == {
        "2026-01-01T23": "overdue", "2026-01-02T00": "overdue", "2026-01-02T01": "waiting", "2026-01-02T02": "waiting",
    }  # fmt: skip
    assert bench.statuses("daily", "2026-01-02T03:00")["2026-01-01"] == "due"


def test_a_day_of_which_nothing_came_has_no_part_when_its_limit_has_passed(store: Store) -> None:
    bench = lab(store, hours(expect_within="1 hour"))
    bench.arrive("raw", *HOURS)
    made(bench, *HOURS)
    bench.commit("daily", "2026-01-01", {"2026-01-01": 1}, hourly=23)
    assert bench.statuses("daily", "2026-01-03T00:00")["2026-01-02"] == "waiting"
    assert bench.statuses("daily", "2026-01-03T02:00")["2026-01-02"] == "unmet"


@pytest.mark.shows("06.unaligned-fan-in", 7)
def test_what_lies_outside_the_day_is_not_counted(store: Store) -> None:
    bench = lab(store, hours(UnalignedFanIn(parts="hour")))
    # Of the source: cells of other days, one of an hour that there is not, and rows without a time.
    bench.commit("raw", "arrival-1", {"2025-12-31T23": 5, "2026-01-01T05": 1, "2026-01-01T24": 9, "2026-01-02T00": 5})
    made(bench, "2026-01-01T05", "2025-12-31T23", "2026-01-02T00")
    day = bench.graph["daily"]
    found = completeness_of(bench.graph, store, day, Slice.parse("2026-01-01"))
    assert found is not None
    assert (found.present, found.expected) == (1, 24)
    assert found.missing == tuple(hour for hour in HOURS if hour != "2026-01-01T05")
    # An input that is a source counts by its cells with rows.
    direct = Graph(_of_source().datasets)
    counted = completeness_of(direct, store, direct["cube"], Slice.parse("2026-01-01"))
    assert counted is not None
    assert (counted.present, counted.expected) == (1, 24)


def _of_source() -> Pipeline:
    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def cube(raw):  # type: ignore[no-untyped-def]
        return raw

    trend.add(cube, event_time="at", fan_in=UnalignedFanIn(parts="hour"))
    return trend


def test_branches_are_parts_too_and_one_that_never_had_a_table_makes_the_slice_anew_when_it_comes(store: Store) -> None:
    sites = Pipeline("sites", start="2026-01-01")

    def step(raw):  # type: ignore[no-untyped-def]
        return raw

    def both(paris, warsaw):  # type: ignore[no-untyped-def]
        return paris

    sites.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    for name in ("paris", "warsaw"):
        sites.add(step, name=name, event_time="at")
    sites.add(both, event_time="at", fan_in=UnalignedFanIn())
    bench = lab(store, sites)
    bench.arrive("raw", "2026-01-01")
    bench.commit("paris", "2026-01-01", {"2026-01-01": 1}, raw=0)
    # Beside its own grid nothing is finer: the other branch is waited for until it was tried.
    assert bench.statuses("both", "2026-01-02") == {"2026-01-01": "waiting"}
    ended = {"ended": frozenset({"paris", "warsaw"})}
    assert "1 of 2 parts are there (50 %), without warsaw 2026-01-01" in (
        bench.states("both", "2026-01-02", **ended)["2026-01-01"].reason
    )
    bench.commit("both", "2026-01-01", {"2026-01-01": 1}, paris=0, warsaw=NO_TABLE)
    assert bench.statuses("both", "2026-01-02") == {}
    bench.commit("warsaw", "2026-01-01", {"2026-01-01": 1}, raw=0)
    assert bench.statuses("both", "2026-01-02") == {"2026-01-01": "late"}


def test_hours_before_the_start_are_not_expected(store: Store) -> None:
    trend = Pipeline("trend", start="2026-01-01T20:00")
    trend.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")

    def cube(raw):  # type: ignore[no-untyped-def]
        return raw

    trend.add(cube, event_time="at", fan_in=UnalignedFanIn(rule="all", parts="hour"))
    bench = lab(store, trend)
    bench.arrive("raw", *HOURS[20:])
    assert bench.statuses("cube", "2026-01-02") == {"2026-01-01": "due"}


def test_a_part_that_turns_out_empty_is_there_and_the_flag_is_lifted(store: Store) -> None:
    bench = lab(store, hours())
    bench.arrive("raw", *HOURS[:23])
    made(bench, *HOURS[:23])
    bench.commit("daily", "2026-01-01", {"2026-01-01": 1}, hourly=22)
    store.receipts.recount("daily", 0, Counters(completeness=Completeness(24, 23, (HOURS[23],))))
    assert bench.statuses("daily", "2026-01-02") == {}
    made(bench, HOURS[23], rows=0)
    state = bench.states("daily", "2026-01-02")["2026-01-01"]
    assert (state.status, state.reason) == (
        "stale", "it was made when 23 of 24 parts are there (96 %), without 2026-01-01T23",
    )  # fmt: skip


@pytest.mark.shows("06.unaligned-fan-in", 8)
def test_a_plan_shows_every_rule_that_is_not_the_default(store: Store) -> None:
    trend = hours(UnalignedFanIn(rule=AtLeast(18), publish="private", fallback=print))
    bench = lab(store, trend)
    bench.arrive("raw", *HOURS)
    wish = Wish(parse_time("2026-01-02"))
    decider = Decider(bench.graph, store, dict.fromkeys(bench.graph.datasets, "c"))
    plans = cascade(bench.graph, decider.decide_all(bench.graph.order, wish), store.receipts.live_slices)
    plan = Plan(tuple(plans), wish.run_time)
    labels = _labels(plan_tree(plan, bench.graph))
    day = next(line for line in labels if line.startswith("daily"))
    assert "[fan-in: at least 18 parts; partial slices are kept private]" in day
    assert not any("fan-in" in line for line in labels if line.startswith("hourly"))
    as_json = {one["name"]: one["fan_in"] for one in plan_as_json(plan, bench.graph)["datasets"]}
    assert as_json == {
        "raw": None,
        "hourly": None,
        "daily": {"rule": "at least 18 parts", "flag": "is_approximate", "publish": "private", "fallback": "print"},
    }
    # Before anything is made, the plan tells that the day follows its hours.
    assert plan["daily"].to_make[0].reason == "follows: the slice that it reads is made"


def _labels(tree: Any) -> list[str]:
    return [str(child.label) for child in tree.children] + [line for child in tree.children for line in _labels(child)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"event_time": None}, "no event_time"),
        ({"mode": "stream"}, "a stream has no slices"),
        ({"late": Capture()}, "fill a gap"),
        ({"marker": ReadinessMarker(closed="immutable")}, "fill a gap"),
        ({"writer": Merger(keys=["at"])}, "Merger keeps no slices apart"),
        ({"grid": "hour"}, "one part each"),
        ({"fan_in": UnalignedFanIn(rule=AtLeast(25))}, "at least 25 parts are wanted, but a day of it has at most 24"),
        ({"fan_in": "any"}, "fan_in is an UnalignedFanIn"),
    ],
)
def test_what_cannot_be_is_refused_when_the_file_is_loaded(options: dict[str, Any], words: str) -> None:
    trend = hours()
    trend.datasets.pop()

    def daily(hourly):  # type: ignore[no-untyped-def]
        return hourly

    def declare() -> None:
        trend.add(daily, **{"event_time": "at", "fan_in": UnalignedFanIn(), **options})
        Graph(trend.datasets)

    with pytest.raises(DefinitionError, match=words):
        declare()


def test_wrong_values_of_the_option_are_refused() -> None:
    for wrong in ({"rule": "most"}, {"flag": "_hidden"}, {"publish": "maybe"}, {"fallback": 1}, {"parts": "minute"}):
        with pytest.raises(ConfigurationError, match="Unaligned Fan-In"):
            UnalignedFanIn(**wrong)  # type: ignore[arg-type]
    for given in ({}, {"parts": 0}, {"share": 0.0}, {"share": 1.5}, {"parts": 3, "share": 0.5}):
        with pytest.raises(ConfigurationError, match="AtLeast"):
            AtLeast(**given)  # type: ignore[arg-type]
