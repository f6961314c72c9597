"""What is due, decided from plain facts: no Spark, no store, no sleeping."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright import OnDatasets, Pipeline
from lakewright.errors import DefinitionError
from lakewright.pipelines.scheduling import MOST, Facts, decide, retry_at, scheduled_run_id, share_out
from lakewright.pipelines.timetables import Timetable, check_upstreams, timetables_of
from lakewright.store import Tried, Upstream

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def daily(**options: Any) -> Timetable:
    return Timetable("visits", "@daily", **{"start": day(1), **options})


def tried(run_time: datetime, state: str = "failed", attempt: int = 1, ended: datetime | None = NOON) -> Tried:
    return Tried("visits", run_time, state, attempt, NOON - timedelta(minutes=5), ended, "owner")  # type: ignore[arg-type]


def days(table: Timetable, facts: Facts, now: datetime = NOON) -> list[int]:
    return [time.day for time in decide(table, facts, now).times]


def test_each_time_since_the_last_good_one_is_due_in_order():
    assert days(daily(), Facts()) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    found = decide(daily(), Facts(last_good={"visits": day(8)}), NOON)
    assert [time.day for time in found.times] == [9, 10]
    assert found.again == day(11)
    assert days(daily(), Facts(last_good={"visits": day(10)})) == []
    assert days(Timetable("visits"), Facts()) == []


def test_the_first_time_comes_after_the_start_or_is_the_newest_one():
    assert days(daily(start=day(9)), Facts()) == [10]
    assert days(daily(start=day(10)), Facts()) == []
    assert days(daily(start=day(20)), Facts()) == []
    assert days(daily(start=None), Facts()) == [10]


def test_what_was_missed_is_caught_up_as_the_policy_says():
    missed = Facts(last_good={"visits": day(5)})
    assert days(daily(catch_up="all"), missed) == [6, 7, 8, 9, 10]
    assert days(daily(catch_up="newest"), missed) == [10]
    assert days(daily(catch_up="none"), missed) == []
    assert days(daily(catch_up="none"), missed, now=day(10) + timedelta(minutes=9)) == [10]
    # It was begun in time, and failed: that is not missed.
    failed = Facts(last_good={"visits": day(5)}, tried={"visits": {day(10): tried(day(10))}})
    assert days(daily(catch_up="none"), failed, now=NOON + timedelta(minutes=1)) == [10]


def test_a_clock_that_goes_back_or_ahead_makes_nothing_twice_and_skips_nothing():
    good = Facts(last_good={"visits": day(10)})
    assert days(daily(), good, now=day(3)) == []
    assert days(daily(), good, now=day(12)) == [11, 12]
    # It went a month ahead, and back: what was made then is not made again.
    ahead = Facts(last_good={"visits": datetime(2026, 2, 10, tzinfo=UTC)})
    assert days(daily(), ahead) == []
    # A failure that lies in the future holds nothing up.
    later = Facts(tried={"visits": {day(10): tried(day(10), ended=NOON + timedelta(days=300))}})
    assert days(daily(start=day(9)), later) == [10]


def test_a_time_that_failed_is_tried_again_after_a_pause_that_grows():
    for attempt, minutes in ((1, 1), (2, 2), (4, 8), (9, 60), (500, 60)):
        assert retry_at(tried(day(9), attempt=attempt), NOON) == NOON + timedelta(minutes=minutes)
    # One that was lost for the first time costs no pause; a step that ends the process each time does.
    assert retry_at(tried(day(9), "lost"), NOON) == NOON
    assert retry_at(tried(day(9), "running", ended=None), NOON) == NOON
    assert retry_at(tried(day(9), "lost", attempt=3), NOON) == NOON + timedelta(minutes=2)


def test_a_failed_time_holds_the_later_ones_only_where_they_depend_on_it():
    facts = Facts(last_good={"visits": day(8)}, tried={"visits": {day(9): tried(day(9))}})
    held = decide(daily(depends_on_past=True), facts, NOON)
    assert held.times == ()
    assert "2026-01-09 00:00 did not succeed" in held.waits
    assert held.again == NOON + timedelta(minutes=1)
    assert days(daily(), facts) == [10]
    assert days(daily(depends_on_past=True), facts, now=NOON + timedelta(minutes=1)) == [9, 10]


def test_nothing_starts_while_it_is_paused_or_at_work():
    assert decide(daily(), Facts(paused={"visits"}), NOON).waits == "paused"
    assert decide(daily(), Facts(running={"visits": 1}), NOON).waits == "a run of it is at work"
    assert decide(daily(), Facts(running={"visits": 1}, paused={"visits"}), NOON).times == ()
    assert days(daily(), Facts(running={"other": 1})) != []
    # Nothing is due: nothing waits.
    assert decide(daily(), Facts(last_good={"visits": day(10)}, paused={"visits"}), NOON).waits == ""


def test_side_by_side_each_time_needs_its_own_good_run():
    table = daily(concurrency=3)
    good = {"visits": {day(2), day(3), day(5), day(10)}}
    facts = Facts(last_good={"visits": day(10)}, good=good, taken={"visits": {day(6)}}, running={"visits": 1})
    found = decide(table, facts, NOON)
    assert [time.day for time in found.times] == [4, 7, 8, 9]
    assert found.settled == day(3)
    again = Facts(last_good={"visits": day(10)}, good=good, settled={"visits": day(3)})
    assert days(table, again) == [4, 6, 7, 8, 9]
    assert days(daily(concurrency=3, start=None), Facts(last_good={"visits": day(10)}, good=good)) == [4, 6, 7, 8, 9]
    assert decide(table, Facts(running={"visits": 3}), NOON).times == ()


def test_times_are_shared_out_in_order():
    times = [day(number) for number in range(1, 8)]
    assert share_out(times, room=1) == [times]
    assert share_out(times, room=3) == [times[:3], times[3:6], times[6:]]
    assert share_out(times, room=1, most=2) == [times[:2]]
    assert share_out(times[:1], room=5) == [times[:1]]


def test_a_year_of_minutes_is_looked_at_a_part_at_a_time():
    table = Timetable("visits", "* * * * *", start=datetime(2025, 1, 1, tzinfo=UTC))
    assert len(decide(table, Facts(), NOON).times) == MOST


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(st.tuples(st.integers(-40, 60), st.booleans()), max_size=25),
    policy=st.sampled_from(["all", "newest", "none"]),
)
def test_whatever_the_clock_does_no_time_is_good_twice_and_with_all_none_is_left_out(
    steps: list[tuple[int, bool]], policy: str
):
    """A clock that jumps by hours either way, and runs that succeed or fail."""
    now, table = NOON, Timetable("visits", "0 */6 * * *", start=day(9), catch_up=policy)  # type: ignore[arg-type]
    good: list[datetime] = []
    failures: dict[datetime, Tried] = {}
    for hours, succeeds in [*steps, *[(100, True)] * 3]:
        now += timedelta(hours=hours)
        facts = Facts(last_good={"visits": max(good)} if good else {}, tried={"visits": failures})
        for time in decide(table, facts, now).times:
            assert time <= now
            if not succeeds:
                failures[time] = tried(time, ended=now)
                break
            good.append(time)
    assert good == sorted(set(good))
    if policy == "all" and not failures:
        assert all(b - a == timedelta(hours=6) for a, b in pairwise(good))


UPSTREAM = Timetable("below", upstream=("visits", "users"), makers=("above",))


def heads(**versions: int) -> dict[str, Upstream]:
    return {name: Upstream(version, day(version)) for name, version in versions.items()}


def test_a_pipeline_is_due_when_its_upstream_has_something_new():
    assert decide(UPSTREAM, Facts(), NOON).times == ()
    first = decide(UPSTREAM, Facts(heads=heads(visits=3)), NOON)
    assert (first.times, first.seen) == ((day(3),), {"visits": 3})
    seen = {"below": {"visits": 3}}
    assert decide(UPSTREAM, Facts(heads=heads(visits=3), seen=seen), NOON).times == ()
    both = Facts(heads=heads(visits=3, users=2), seen=seen, last_good={"below": day(3)})
    # The other change is older by its own clock, and later by ours.
    assert decide(UPSTREAM, both, NOON).times == (day(3) + timedelta(microseconds=1),)
    assert decide(UPSTREAM, Facts(heads=heads(visits=4), running={"above": 1}), NOON).times == ()
    assert decide(UPSTREAM, Facts(heads=heads(visits=4), paused={"below"}), NOON).waits == "paused"


def test_with_all_each_of_them_must_have_something_new():
    table = Timetable("below", upstream=("visits", "users"), rule="all")
    seen = {"below": {"visits": 3, "users": 2}}
    assert decide(table, Facts(heads=heads(visits=4)), NOON).times == ()
    assert decide(table, Facts(heads=heads(visits=4, users=2), seen=seen), NOON).times == ()
    found = decide(table, Facts(heads=heads(visits=4, users=5), seen=seen), NOON)
    assert (found.times, found.seen) == ((day(5),), {"visits": 4, "users": 5})


def test_a_run_has_one_id_for_its_time_or_for_what_was_new():
    ids = {
        scheduled_run_id("visits", day(1)),
        scheduled_run_id("visits", day(2)),
        scheduled_run_id("users", day(1)),
        scheduled_run_id("visits", day(1), {"a": 1}),
        scheduled_run_id("visits", day(1), {"a": 2}),
    }
    assert len(ids) == 5
    assert scheduled_run_id("visits", day(1)) in ids


def declared() -> list[Pipeline]:
    above = Pipeline("above", schedule="0 6 * * *", timezone="Europe/Warsaw", catch_up="newest", start="2026-01-01")
    above.sql("visits", "SELECT * FROM raw", layer="silver")
    below = Pipeline("below", schedule=OnDatasets())
    below.sql("figures", "SELECT * FROM visits JOIN own USING (id)")
    below.sql("own", "SELECT * FROM visits")
    return [above, below]


def test_timetables_come_from_the_pipelines_and_pass_between_processes():
    above, below = timetables_of(declared())
    assert (above.schedule, above.timezone, above.catch_up, above.start) == (
        "0 6 * * *",
        "Europe/Warsaw",
        "newest",
        day(1),
    )
    assert (below.upstream, below.makers, below.words) == (("visits",), ("above",), "new in visits")
    assert [Timetable.from_json(one.as_json()) for one in (above, below)] == [above, below]


@pytest.mark.parametrize(
    ("schedule", "word"),
    [
        (OnDatasets("vists"), "no pipeline of this project makes"),
        (OnDatasets("alone"), "would start itself"),
        (OnDatasets(), "nothing would start it"),
    ],
)
def test_datasets_that_could_never_start_it_are_refused_with_the_place(schedule: OnDatasets, word: str):
    lonely = Pipeline("lonely", schedule=schedule)
    lonely.sql("alone", "SELECT * FROM elsewhere")
    with pytest.raises(DefinitionError, match=word) as caught:
        check_upstreams([*declared(), lonely])
    assert "test_scheduling.py" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "0 0 30 2 *"},
        {"timezone": "Europe/Warsav"},
        {"catch_up": "latest"},
        {"schedule": None, "timezone": "Europe/Warsaw"},
        {"schedule": 5},
    ],
)
def test_a_wrong_schedule_fails_when_the_file_is_loaded(options: dict[str, Any]):
    with pytest.raises(DefinitionError, match=r"test_scheduling\.py"):
        Pipeline("visits", **options)
