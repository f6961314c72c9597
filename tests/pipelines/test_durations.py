"""How long a plan would take, by steps that are told by hand: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.model.policies import Fail
from lakewright.model.references import Previous
from lakewright.model.times import Interval, parse_time
from lakewright.pipelines.boundaries import boundary_warnings
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.durations import LAST, SlowBranch, forecast
from lakewright.pipelines.standing import blocked_by
from lakewright.store import Store, open_store
from tests.pipelines.lab import Lab, lab
from tests.pipelines.planned import planned, took


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def branches(**options: object) -> Pipeline:
    """A source, two branches, and what reads both."""
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    blog.sql("paris", "SELECT * FROM raw", event_time="at", **options)  # type: ignore[arg-type]
    blog.sql("warsaw", "SELECT * FROM raw", event_time="at")
    blog.sql("both", "SELECT * FROM paris JOIN warsaw", event_time="at", layer="gold")
    return blog


def three_days(store: Store, **options: object) -> Lab:
    bench = lab(store, branches(**options))
    bench.arrive("raw", "2026-01-05", "2026-01-06", "2026-01-07")
    return bench


def test_what_is_made_takes_the_median_of_past_slices_side_by_side(store: Store):
    bench = three_days(store)
    took(store, "paris", 2, 2, 50)
    took(store, "warsaw", 10, 10, 12)
    took(store, "both", 1)
    found = forecast(planned(bench), bench.graph, store, parallel=2)
    assert {name: (one.slices, one.seconds) for name, one in found.datasets.items()} == {
        "raw": (0, 0), "paris": (3, 4), "warsaw": (3, 20), "both": (3, 2),
    }  # fmt: skip
    assert (found.chain, found.chain_seconds) == (("warsaw", "both"), 22)
    # Two workers: the slices of paris, begun first, end at 2, 2 and 4 s, those of warsaw at 12, 14 and 22 s; then both.
    assert found.seconds == 24
    assert found.unknown == found.uncertain == ()


def test_the_slowest_branch_of_a_fan_in_is_told(store: Store):
    bench = three_days(store)
    took(store, "paris", 2)
    took(store, "warsaw", 10)
    took(store, "both", 1)
    found = forecast(planned(bench), bench.graph, store, parallel=3)
    assert found.slow_branches == (SlowBranch("both", "warsaw", 10, "paris", 2),)


def test_a_day_of_hours_tells_the_hour_that_took_longest_lately(store: Store):
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    blog.sql("hourly", "SELECT * FROM raw", event_time="at", grid="hour")
    blog.sql("daily", "SELECT * FROM hourly", event_time="at")
    bench = lab(store, blog)
    bench.arrive("raw", *(f"2026-01-05T{hour:02}" for hour in range(24)))
    took(store, "hourly", 2, 3)
    took(store, "hourly", 93, slice_id="2026-01-04T07")
    found = forecast(planned(bench), bench.graph, store, parallel=4)
    assert found.slow_branches == (SlowBranch("daily", "hourly 2026-01-04T07", 93, None, 3),)
    assert found.datasets["hourly"].seconds == 18
    assert found.unknown == ("daily",)


def test_steps_that_failed_or_made_no_slice_do_not_count_and_old_ones_are_forgotten(store: Store):
    bench = three_days(store)
    took(store, "warsaw", *[500] * 5, *[4] * LAST)
    took(store, "warsaw", 900, state="failed")
    took(store, "warsaw", 900, state="recovered")
    for reason in ("rollback to version 3", "held: late rows are captured", "repartition", "unmet: too few"):
        took(store, "warsaw", 900, reason=reason)
    past = forecast(planned(bench), bench.graph, store, parallel=2).datasets["warsaw"].past
    assert past is not None
    assert (past.steps, past.seconds, past.slowest_seconds) == (LAST, 4, 4)


def test_without_any_past_run_nothing_is_expected(store: Store):
    bench = three_days(store)
    found = forecast(planned(bench), bench.graph, store, parallel=2)
    assert (found.seconds, found.chain) == (None, ())
    assert found.unknown == ("paris", "warsaw", "both")


def test_where_all_is_fresh_it_takes_no_time(store: Store):
    bench = lab(store, branches())
    found = forecast(planned(bench), bench.graph, store, parallel=2)
    assert (found.seconds, found.chain, found.unknown) == (0, (), ())


def test_what_is_new_is_counted_and_what_it_touches_as_one_slice_each(store: Store):
    bench = lab(store, branches())
    for name in ("raw", "paris", "warsaw", "both"):
        took(store, name, 5)
    found = forecast(planned(bench, new={"raw": 4}), bench.graph, store, parallel=2)
    assert {name: one.slices for name, one in found.datasets.items()} == {"raw": 4, "paris": 1, "warsaw": 1, "both": 1}
    assert found.uncertain == ("paris", "warsaw", "both")
    assert found.seconds == 4 * 5 + 5 + 5  # arrivals of a source are taken in order


def test_what_cannot_succeed_and_what_is_below_it_takes_no_time(store: Store):
    bench = three_days(store, late=Fail())
    bench.commit("paris", "2026-01-05", {"2026-01-05": 3}, raw=0)
    bench.arrive("raw", "2026-01-05")
    for name in ("paris", "warsaw", "both"):
        took(store, name, 5)
    plan = planned(bench)
    assert blocked_by(plan, bench.graph) == {"both": "paris"}
    found = forecast(plan, bench.graph, store, parallel=2)
    assert {name: one.slices for name, one in found.datasets.items()} == {"raw": 0, "paris": 2, "warsaw": 3, "both": 0}


def test_slices_that_depend_on_each_other_are_not_side_by_side(store: Store):
    bench = three_days(store, depends_on_past=True)
    took(store, "paris", 5)
    span = Interval(parse_time("2026-01-05"), parse_time("2026-01-07"))
    found = forecast(planned(bench, backfill=span), bench.graph, store, parallel=4)
    assert found.datasets["paris"].seconds == 15


def test_slices_that_are_made_of_earlier_ones_follow_on_to_the_newest(store: Store):
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    blog.sql("clean", "SELECT * FROM raw", event_time="at")
    blog.add(lambda clean, running: clean, name="running", event_time="at", inputs={"running": Previous()})
    bench = lab(store, blog)
    days = ["2026-01-05", "2026-01-06", "2026-01-07"]
    bench.arrive("raw", *days)
    for version, day in enumerate(days):
        bench.commit("clean", day, {day: 3}, raw=0)
        before = {"running": version - 1} if version else {}
        bench.commit("running", day, {day: 3}, clean=version, **before)
    assert [one.to_make for one in planned(bench).datasets] == [(), (), ()]
    bench.arrive("raw", days[1])
    plan = planned(bench)
    found = {one.dataset.name: {state.slice.id: state.reason for state in one.to_make} for one in plan.datasets}
    assert list(found["clean"]) == days[1:2]
    assert found["running"] == {
        days[1]: "follows: the slice that it reads is made",
        days[2]: f"{days[1]} before it is made again",
    }


def test_very_many_tiny_steps_and_very_long_ones_are_told(store: Store):
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    for number in range(20):
        blog.sql(f"step_{number:02}", "SELECT * FROM raw", event_time="at")
        took(store, f"step_{number:02}", *[0.5 if number < 11 else 9.0] * 3)
    few = [*blog.datasets[:-1]]
    assert list(boundary_warnings(few, store)) == []
    (told,) = boundary_warnings(blog.datasets, store)
    assert "The pipeline blog has 20 steps, and 11 of them take less than 2 s a slice" in told
    took(store, "step_19", 2400, 2400)
    assert len(list(boundary_warnings(few, store))) == 0
    took(store, "step_18", *[2400] * 4)
    (told,) = boundary_warnings(few, store)
    assert "step_18 takes 40 minutes a slice" in told
