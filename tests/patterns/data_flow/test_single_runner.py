"""Single Runner: one run at a time, in order, whoever starts it, and a dead one is taken over."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import ConfigurationError, LeaseHeldError, TooManyRunsError
from lakewright.model.times import parse_time
from lakewright.patterns.data_flow.single_runner import SingleRunner, due_times

SESSIONS = """
    from lakewright import JsonFiles, Pipeline, Previous, SingleRunner

    BROKEN = set()
    CALLS = []
    visits = Pipeline("visits", start="2026-01-01", runs=SingleRunner(depends_on_past=True, queue=1))
    visits.source("raw", JsonFiles("landing"), schema="visit string, pages int, at timestamp", event_time="at")

    BEFORE = Previous("sessions", schema="at timestamp, pages bigint")

    @visits.dataset(event_time="at", inputs={"before": BEFORE}, retries=0, rows="reduce")
    def sessions(raw, before, run):
        CALLS.append(f"{run.interval.start:%d}")
        if run.interval.start.day in BROKEN:
            raise ValueError("broken")
        both = raw.select("at", "pages").unionByName(before.select("at", "pages"))
        return both.groupBy().agg({"at": "max", "pages": "sum"}).toDF("at", "pages")

    @visits.dataset(event_time="at", layer="gold")
    def loaded(sessions):
        return sessions
"""
LINE = '{{"visit": "v{0}", "pages": {0}, "at": "2026-01-{0:02d} 10:00:00"}}\n'


def landing(*days: int) -> dict[str, str]:
    return {f"landing/{day}.json": LINE.format(day) for day in days}


def pages(opened, name: str = "sessions") -> list[int]:  # type: ignore[no-untyped-def]
    return [row.pages for row in opened.show(name).orderBy("at").collect()]


def test_wrong_options_are_refused() -> None:
    for options in ({"concurrency": 0}, {"concurrency": -1}, {"concurrency": 2}, {"queue": -1}):
        with pytest.raises(ConfigurationError):
            SingleRunner(**options)  # type: ignore[arg-type]


@given(hours=st.integers(0, 60), start=st.datetimes(datetime(2026, 1, 1), datetime(2026, 3, 1), timezones=st.just(UTC)))
def test_due_times_rise_lie_in_the_span_and_go_on_where_they_ended(hours: int, start: datetime) -> None:
    until = start + timedelta(hours=hours)
    times = list(due_times("@hourly", after=start, until=until))
    assert times == sorted(set(times))
    assert all(start < found <= until for found in times)
    assert len(times) in (hours, hours + 1)
    if times:
        assert list(due_times("@hourly", after=times[0], until=until)) == times[1:]


def test_a_text_that_is_no_schedule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no schedule"):
        list(due_times("every day", after=parse_time("2026-01-01"), until=parse_time("2026-01-02")))


@pytest.mark.shows("06.single-runner", 1, 2, 6, 7, 8)
def test_due_dates_run_in_order_a_failure_holds_the_later_ones_and_backfills_go_in_order(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/visits.py": SESSIONS, **landing(1, 2, 3, 4, 5)})
    world = opened.graph["sessions"].function.__globals__

    # The first run has no predecessor; the third day fails, and no later one starts.
    world["BROKEN"].add(3)
    first = opened.run_due(at="2026-01-06")
    assert [summary.state for summary in first] == ["ok", "ok", "failed"]
    assert world["CALLS"] == ["01", "02", "03"]
    held = opened.run(at="2026-01-06")
    assert (held.state, held.skipped) == ("failed", ["loaded"])
    assert world["CALLS"][3:] == ["03"]

    # Repaired, the rest follows by itself, in order; no two runs overlap.
    world["BROKEN"].clear()
    world["CALLS"].clear()
    assert [summary.state for summary in opened.run_due(at="2026-01-06")] == ["ok"] * 3
    assert world["CALLS"] == ["03", "04", "05"]
    assert pages(opened) == pages(opened, "loaded") == [1, 3, 6, 10, 15]
    runs = sorted(opened.store.runs.latest(), key=lambda run: run.started_at)
    assert all(one.ended_at <= next_.started_at for one, next_ in itertools.pairwise(runs))
    good = [run.run_time for run in runs if run.state == "ok"]
    assert good == [parse_time(f"2026-01-0{day}") for day in range(2, 7)]
    assert opened.run_due(at="2026-01-06") == []

    # A partial backfill of a week: seven loads in order, no session again.
    for name, text in landing(6, 7).items():
        (opened.folder / name).write_text(text)
    assert opened.run(at="2026-01-08").state == "ok"
    world["CALLS"].clear()
    partial = opened.backfill("2026-01-01", "2026-01-08", select=["loaded"], parallel=2)
    assert [(o.dataset, o.slice_id) for o in partial.made] == [("loaded", f"2026-01-0{day}") for day in range(1, 8)]
    assert world["CALLS"] == []

    # A full one from five days before the last: each day after the one before it, and the same sessions as before.
    full = opened.backfill("2026-01-02", "2026-01-08", parallel=2)
    assert full.state == "ok"
    assert world["CALLS"] == ["02", "03", "04", "05", "06", "07"]
    assert pages(opened) == pages(opened, "loaded") == [1, 3, 6, 10, 15, 21, 28]


HOLD = """
import os, sys, signal, time
from lakewright.model.runs import Run
from lakewright.model.times import parse_time, utc_now
from lakewright.pipelines.keeper import keep
from lakewright.store import open_store
store = open_store(sys.argv[1])
run = Run("run-of-another", "visits", parse_time("2026-01-02"), "scheduled")
with keep(store, run, {"visits": 1}, now=utc_now, interrupt=lambda: None) as keeper:
    store.runs.start(run, owner_id=keeper.owner.owner_id, options={}, now=utc_now())
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.shows("06.single-runner", 3, 4, 5)
def test_a_second_run_is_refused_or_waits_and_a_killed_one_is_taken_over(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/visits.py": SESSIONS, **landing(1, 2)})
    calls = opened.graph["sessions"].function.__globals__["CALLS"]
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, opened.settings.target.store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    try:
        with pytest.raises(LeaseHeldError, match=r"running already.*Nothing was started"):
            opened.run_due(at="2026-01-03")

        # One may wait; the next is told so; none is lost.
        waiting: list[object] = []
        waiter = threading.Thread(target=lambda: waiting.append(opened.run_due(at="2026-01-03", wait_seconds=120)))
        waiter.start()
        until = time.monotonic() + 20
        while not any(lease.dataset == "queue:visits" for lease in opened.store.leases.held(datetime.now(UTC))):
            assert time.monotonic() < until
            time.sleep(0.05)
        with pytest.raises(TooManyRunsError, match="Too many requests"):
            opened.run(at="2026-01-03", wait_seconds=60)
        assert calls == []
    finally:
        other.kill()
        other.wait()
    waiter.join(timeout=120)

    # The dead run's date comes first, then the next one; nothing is held any more.
    (summaries,) = waiting
    assert [summary.state for summary in summaries] == ["ok", "ok"]  # type: ignore[attr-defined]
    assert calls == ["01", "02"]
    assert opened.store.leases.held(datetime.now(UTC)) == []
    assert opened.store.runs.get("run-of-another").state == "lost"
    times = [run.run_time for run in opened.store.runs.latest() if run.state == "ok"]
    assert times == [parse_time("2026-01-03"), parse_time("2026-01-02")]


HOURLY = """
    from lakewright import JsonFiles, Pipeline

    visits = Pipeline("visits", schedule="@hourly", start="2026-01-01")
    visits.source("raw", JsonFiles("landing"), schema="visit string, pages int, at timestamp", event_time="at")
"""


@pytest.mark.shows("06.single-runner", 8)
def test_a_run_that_takes_longer_than_its_period_raises_the_lag_alert(project, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    late = timedelta()
    opened = project(
        {"pipelines/visits.py": HOURLY, **landing(1)}, now=lambda: datetime(2026, 1, 1, 1, tzinfo=UTC) + late
    )

    def take_long(event: object) -> None:
        nonlocal late
        if type(event).__name__ == "SliceDone":
            late += timedelta(minutes=90)

    (summary,) = opened.run_due(at="2026-01-01T01:00", listener=take_long)
    assert [note.severity for note in summary.notes] == ["warning"]
    assert "took 90 minutes, and one is due every 60 minutes" in summary.notes[0].message
    (finding,) = opened.store.findings.latest("visits")
    assert finding.subject == "lag"
    (quick,) = opened.run_due(at="2026-01-01T02:00")
    assert quick.notes == []
