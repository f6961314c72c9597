"""How long a plan would take, by steps that are told by hand: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.connectors.files import JsonFiles
from lakewright.model.policies import Fail
from lakewright.model.times import Interval, parse_time
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
