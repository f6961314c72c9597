"""Schedules: times in UTC from cron text and a zone, each once, whatever the clock of the zone does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConfigurationError
from lakewright.model.schedules import OnDatasets, check_catch_up, check_cron, newest_time, next_time, times_between


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(schedule: str, first: str, last: str, timezone: str | None = "Europe/Warsaw") -> list[str]:
    found = times_between(schedule, after=at(first), until=at(last), timezone=timezone)
    return [f"{time:%d %H:%M}" for time in found]


def test_a_schedule_follows_the_clock_of_its_zone():
    assert times("0 6 * * *", "2026-01-05T12:00", "2026-01-06T12:00") == ["06 05:00"]
    assert times("0 6 * * *", "2026-07-05T12:00", "2026-07-06T12:00") == ["06 04:00"]
    assert times("0 6 * * *", "2026-07-05T12:00", "2026-07-06T12:00", timezone=None) == ["06 06:00"]


def test_a_time_that_the_clock_leaves_out_is_due_directly_after_the_change_and_once():
    # On 29 March the clock goes from 02:00 to 03:00, at 01:00 UTC.
    assert times("30 2 * * *", "2026-03-28T02:00", "2026-03-30T02:00") == ["29 01:00", "30 00:30"]
    assert times("*/30 2,3 * * *", "2026-03-28T12:00", "2026-03-29T12:00") == ["29 01:00", "29 01:30"]
    assert times("0 * * * *", "2026-03-28T23:30", "2026-03-29T02:30") == ["29 00:00", "29 01:00", "29 02:00"]
    # A whole day was left out on Samoa: 30 December 2011.
    assert times("0 6 * * *", "2011-12-29T12:00", "2011-12-31T00:00", "Pacific/Apia") == [
        "29 16:00",
        "30 10:00",
        "30 16:00",
    ]


def test_a_time_that_the_clock_shows_twice_is_due_once_at_the_first():
    # On 25 October the clock goes from 03:00 to 02:00, at 01:00 UTC.
    assert times("30 2 * * *", "2026-10-24T12:00", "2026-10-26T12:00") == ["25 00:30", "26 01:30"]
    assert times("0 * * * *", "2026-10-24T23:30", "2026-10-25T03:30") == ["25 00:00", "25 02:00", "25 03:00"]
    # Looked at between the two, it is over.
    assert times("30 2 * * *", "2026-10-25T01:10", "2026-10-25T23:00") == []
    newest = newest_time("30 2 * * *", until=at("2026-10-25T01:10"), timezone="Europe/Warsaw")
    assert newest == at("2026-10-25T00:30")


@settings(deadline=None, max_examples=25)
@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    zone=st.sampled_from([None, "Europe/Warsaw", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"]),
    cut=st.integers(1, 300 * 24 * 60),
)
def test_times_rise_are_one_a_day_and_go_on_where_they_were_cut(minute: int, hour: int, zone: str | None, cut: int):
    schedule, first, last = f"{minute} {hour} * * *", at("2026-01-01"), at("2027-01-01")
    whole = list(times_between(schedule, after=first, until=last, timezone=zone))
    assert len(whole) in (364, 365, 366)
    assert all(timedelta(hours=21) <= b - a <= timedelta(hours=27) for a, b in pairwise(whole))
    middle = first + timedelta(minutes=cut)
    parts = [
        *times_between(schedule, after=first, until=middle, timezone=zone),
        *times_between(schedule, after=middle, until=last, timezone=zone),
    ]
    assert parts == whole
    assert newest_time(schedule, until=middle, timezone=zone) == max(
        (time for time in whole if time <= middle), default=newest_time(schedule, until=first, timezone=zone)
    )
    assert next_time(schedule, after=middle, timezone=zone) == min(time for time in whole if time > middle)


@pytest.mark.parametrize(
    ("schedule", "zone", "word"),
    [
        ("0 0 30 2 *", None, "never comes"),
        ("0 0 31 4,6 *", None, "never comes"),
        ("R * * * *", None, "random"),
        ("every day", None, "no schedule"),
        ("@daily", "Europe/Warsav", "no time zone"),
    ],
)
def test_a_wrong_schedule_is_refused(schedule: str, zone: str | None, word: str):
    with pytest.raises(ConfigurationError, match=word):
        check_cron(schedule, zone)


def test_a_rare_schedule_and_names_of_days_are_none_of_them():
    for schedule in ("0 0 29 2 *", "0 0 * MAR FRI", "@yearly"):
        check_cron(schedule, "Europe/Warsaw")
    assert next_time("0 0 29 2 *", after=at("2026-01-01")) == at("2028-02-29")


def test_wrong_words_are_refused():
    with pytest.raises(ConfigurationError, match="'newest'"):
        check_catch_up("latest")
    with pytest.raises(ConfigurationError, match="'any' or 'all'"):
        OnDatasets("visits", rule="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="names of datasets"):
        OnDatasets(["visits"])  # type: ignore[arg-type]
    assert OnDatasets("a", "b", "a").names == ("a", "b")
