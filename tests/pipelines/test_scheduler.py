"""The scheduler's loop: with a real store, a clock that the test sets, and processes that only pretend. No Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, LeaseHeldError, TargetError
from lakewright.model.receipts import Counters, Receipt
from lakewright.pipelines.launching import BUSY
from lakewright.pipelines.scheduler import LEASE
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store, open_store, this_process
from tests.pipelines.world import NOON, World


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


VISITS = Timetable("visits", "@daily", start=day(1))


def test_due_times_go_to_one_process_and_what_failed_is_tried_again(store: Store):
    world = World(store, VISITS)
    scheduler = world.scheduler()
    assert scheduler.look() == 0.5
    (process,) = world.started
    assert process.times == [day(2), day(3), day(4), day(5)]
    scheduler.look()
    assert len(world.started) == 1
    world.end(process, "ok", "ok", "failed", code=1)
    scheduler.look()
    # The third failed and pauses; the fourth does not depend on it.
    assert world.started[-1].times == [day(5)]
    assert "visits: 2026-01-04 00:00 failed: no such file" in world.told
    world.end(world.started[-1], "ok")
    # A later one has succeeded, and with it everything before it was made.
    assert scheduler.look() == 30.0
    world.now = day(6) - timedelta(seconds=3)
    assert scheduler.look() == 3.0
    world.now = day(6)
    scheduler.look()
    assert [one.times for one in world.started[2:]] == [[day(6)]]
    assert store.runs.latest(limit=1)[0].run_time == day(5)


def test_a_clock_that_jumps_makes_no_time_twice(store: Store):
    world = World(store, VISITS)
    scheduler = world.scheduler()
    scheduler.look()
    world.end(world.started[0], *["ok"] * 4)
    for moment in (NOON - timedelta(days=30), NOON, NOON + timedelta(days=1), NOON, NOON + timedelta(days=1)):
        world.now = moment
        scheduler.look()
        for process in world.started:
            if process.code is None:
                world.end(process, *["ok"] * len(process.times))
    scheduler.look()
    assert [at for process in world.started for at in process.times] == [day(number) for number in range(2, 7)]


def test_only_so_many_work_at_once_and_side_by_side_where_the_pipeline_allows_it(store: Store):
    others = [Timetable(name, "@daily", start=day(4)) for name in ("a", "b")]
    world = World(store, Timetable("wide", "@daily", start=day(1), concurrency=2), *others)
    scheduler = world.scheduler(workers=3)
    scheduler.look()
    assert [(one.pipeline, [at.day for at in one.times]) for one in world.started] == [
        ("wide", [2, 3]),
        ("wide", [4, 5]),
        ("a", [5]),
    ]
    # Out of order: the one that is left is not forgotten.
    world.end(world.started[1], "ok", "ok")
    world.end(world.started[0], "ok", "failed", code=1)
    scheduler.look()
    assert [one.pipeline for one in world.started[3:]] == ["b"]
    world.now += timedelta(minutes=2)
    scheduler.look()
    assert [at.day for at in world.started[-1].times] == [3]


def test_a_pipeline_that_is_always_due_keeps_nobody_out(store: Store):
    world = World(store, Timetable("busy", "* * * * *", start=day(4)), Timetable("calm", "@daily", start=day(4)))
    scheduler = world.scheduler(workers=1)
    scheduler.look()
    world.end(world.started[0], *["ok"] * 50)
    scheduler.look()
    assert [one.pipeline for one in world.started] == ["busy", "calm"]
    assert len(world.started[0].times) == 50


def test_pause_and_resume_are_heeded_and_a_run_by_hand_is_waited_for(store: Store):
    world = World(store, Timetable("visits", "@daily", start=day(1), catch_up="newest"))
    scheduler = world.scheduler()
    assert store.schedules.pause("visits", because="moving", now=NOON)
    assert not store.schedules.pause("visits", because="again", now=NOON)
    scheduler.look()
    scheduler.look()
    assert (world.started, world.told) == ([], ["visits: paused"])
    assert [(one.pipeline, one.because) for one in store.schedules.paused()] == [("visits", "moving")]
    assert store.schedules.resume("visits", now=NOON)
    assert not store.schedules.resume("visits", now=NOON)
    by_hand = this_process()
    store.leases.register(by_hand, timedelta(minutes=1), NOON)
    store.leases.acquire("pipeline:visits", "*", owner_id=by_hand.owner_id, run_id="by hand", now=NOON)
    assert scheduler.look() == 2.0
    assert world.started == []
    store.leases.forget(by_hand.owner_id)
    scheduler.look()
    assert [one.times for one in world.started] == [[day(5)]]


def receipt(dataset: str, version: int, kind: str = "data") -> Receipt:
    return Receipt(
        dataset=dataset,
        slice_id="whole",
        kind=kind,  # type: ignore[arg-type]
        version=version,
        version_before=version - 1,
        number=version,
        committed_at=day(3) + timedelta(hours=version),
        run_id="r",
        attempt=1,
        rows=1,
        bytes=1,
        counters=Counters(),
    )


def test_a_pipeline_runs_when_its_upstream_has_something_new_and_once_for_it(store: Store):
    world = World(store, Timetable("below", upstream=("visits",), makers=("above",)))
    scheduler = world.scheduler()
    assert scheduler.look() == 2.0
    assert world.started == []
    store.receipts.add([receipt("visits", 1)])
    scheduler.look()
    assert [(one.times, one.seen) for one in world.started] == [([day(3) + timedelta(hours=1)], {"visits": 1})]
    world.end(world.started[0], "ok")
    store.receipts.add([receipt("visits", 2, "maintenance"), receipt("users", 3)])
    scheduler.look()
    assert len(world.started) == 1
    store.receipts.add([receipt("visits", 4)])
    scheduler.look()
    assert world.started[1].seen == {"visits": 4}
    assert store.schedules.seen() == {"below": {"visits": 1}}


def test_a_process_that_makes_no_run_is_started_again_after_a_pause(store: Store):
    world = World(store, VISITS)
    scheduler = world.scheduler()
    scheduler.look()
    world.end(world.started[0], code=2)
    assert scheduler.look() == 5.0
    assert "visits: no run was made: error: it is broken" in world.told
    world.now += timedelta(seconds=5)
    scheduler.look()
    world.end(world.started[1], code=BUSY)
    assert scheduler.look() == 10.0
    assert "visits: somebody else is at work on it; it is tried again." in world.told
    world.now -= timedelta(days=1)  # the clock went back: nobody waits for a day
    scheduler.look()
    assert len(world.started) == 3
    world.end(world.started[2], code=0)  # the project's own code has ended it, before a run was begun
    assert scheduler.look() == 20.0
    assert world.told.count("visits: no run was made: error: it is broken") == 2


def test_a_listener_is_kept_for_the_triggers_of_pipelines_that_are_not_paused(store: Store):
    tables = [Timetable(name, triggers=("landed",)) for name in ("a", "b")]
    world = World(store, *tables)
    scheduler = world.scheduler()
    scheduler.look()
    scheduler.look()
    assert [one.pipeline for one in world.listeners] == ["a,b"]
    store.schedules.pause("b", because=None, now=NOON)
    scheduler.look()  # the old one is asked to stop
    scheduler.look()
    assert [one.pipeline for one in world.listeners] == ["a,b", "a"]
    world.listeners[-1].code = 1
    scheduler.look()
    assert len(world.listeners) == 2
    assert world.told[-1] == "The listener has ended: error: it is broken"
    world.now += timedelta(seconds=5)
    scheduler.look()
    assert len(world.listeners) == 3


def test_changed_files_are_read_again_and_wrong_ones_change_nothing(store: Store):
    world = World(store)
    scheduler = world.scheduler()
    scheduler.look()
    world.files, world.problem = 2, ConfigurationError("shop.py:1: this is not valid Python.")
    scheduler.look()
    scheduler.look()
    assert world.told == ["shop.py:1: this is not valid Python. The schedules stay as they were."]
    world.files, world.problem, world.tables = 3, None, [VISITS]
    scheduler.look()
    assert [one.pipeline for one in world.started] == ["visits"]
    world.problem = ConfigurationError("no project")
    with pytest.raises(ConfigurationError):
        world.scheduler().run()


def test_a_lost_store_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch):
    world = World(store, VISITS)
    answers = iter([False, True, True, False])
    good = store.schedules.last_good

    def last_good() -> dict[str, datetime]:
        if next(answers, False):
            raise TargetError("The store cannot be reached.")
        return good()

    monkeypatch.setattr(store.schedules, "last_good", last_good)
    pauses: list[float] = []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            world.end(world.started[0], *["ok"] * 4)
        if len(pauses) == 4:
            scheduler.stop.set()

    scheduler = world.scheduler(wait)
    assert scheduler.run().runs == {"ok": 4}
    assert pauses == [0.5, 5.0, 5.0, 30.0]
    assert [line for line in world.told if "store" in line.lower()] == [
        "The store cannot be reached. Trying again every 5 s.",
        "The store answers again.",
    ]
    assert len(world.started) == 1
    assert store.leases.held(world.now) == []


def test_when_it_is_stopped_its_processes_are_asked_to_and_nothing_new_begins(store: Store):
    world = World(store, VISITS, Timetable("devices", triggers=("landed",)))
    scheduler = world.scheduler(lambda seconds: scheduler.stop.set())
    assert scheduler.run().runs == {"interrupted": 1}
    assert [one.code for one in (*world.started, *world.listeners)] == [130, 130]
    assert "Waiting for 1 process to end." in world.told
    assert store.leases.held(NOON) == []
    # The time is due again.
    again = world.scheduler()
    again.look()
    assert world.started[-1].times == world.started[0].times


def test_once_makes_what_is_due_and_ends(store: Store):
    world = World(store, VISITS)

    def wait(seconds: float) -> None:
        process = world.started[-1]
        world.end(process, *["ok"] * len(process.times))

    summary = world.scheduler(wait, once=True).run()
    assert (summary.state, summary.processes, summary.runs) == ("ok", 1, {"ok": 4})
    assert world.scheduler(once=True).run().processes == 0
    world.now += timedelta(days=1)

    def fail(seconds: float) -> None:
        world.end(world.started[-1], "failed", code=1)

    assert world.scheduler(fail, once=True).run().state == "failed"


def test_a_second_scheduler_stands_by_and_takes_over_when_the_first_ends(store: Store):
    world, first = World(store, VISITS), this_process()
    store.leases.register(first, timedelta(minutes=1), NOON)
    store.leases.acquire(LEASE, "*", owner_id=first.owner_id, run_id=None, now=NOON)
    with pytest.raises(LeaseHeldError, match="at work already"):
        world.scheduler(once=True).run()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert len(world.started) == (1 if len(waits) > 2 else 0)
        if len(waits) == 2:
            store.leases.forget(first.owner_id)
        if len(waits) == 3:
            scheduler.stop.set()

    scheduler = world.scheduler(wait)
    scheduler.run()
    assert waits == [5.0, 5.0, 0.5]
    assert [line for line in world.told if "standing by" in line] != []


FIRST = """
import subprocess, sys
from datetime import datetime, UTC
from lakewright.pipelines.scheduler import Scheduler
from lakewright.pipelines.timetables import Timetable
from lakewright.store import open_store

url, folder, child = sys.argv[1:]

class Launcher:
    def work(self, pipeline, times, seen, *, since):
        words = [sys.executable, "-c", child, url, folder, pipeline, *[at.isoformat() for at in times]]
        return subprocess.Popen(words, start_new_session=True)
    def timetables(self):
        return [Timetable("visits", "@yearly", start=datetime(datetime.now(UTC).year - 1, 1, 1, tzinfo=UTC))]
    def fingerprint(self):
        return 1

def tell(words, severity):
    print(words, flush=True)

if child:
    Scheduler(open_store(url), Launcher(), tell=tell).run()
"""

CHILD = """
import sys
from datetime import datetime
from lakewright.model.runs import Run
from lakewright.model.times import utc_now
from lakewright.pipelines.keeper import keep
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.store import open_store

url, folder, pipeline, text = sys.argv[1:]
store, at = open_store(url), datetime.fromisoformat(text)
run = Run(scheduled_run_id(pipeline, at), pipeline, at, "scheduled")
with keep(store, run, {pipeline: 0}, now=utc_now, interrupt=lambda: None) as keeper:
    store.runs.start(run, owner_id=keeper.owner.owner_id, options={}, now=utc_now())
    with open(f"{folder}/made", "a") as made:
        made.write(f"{text}\\n")
    open(f"{folder}/go").read()
    store.runs.finish(run.run_id, "ok", now=utc_now())
"""


def test_when_the_first_scheduler_is_killed_the_second_takes_over_and_a_due_run_is_made_once(
    tmp_path: Path, store: Store
):
    os.mkfifo(tmp_path / "go")
    words = [sys.executable, "-c", FIRST, f"sqlite:///{tmp_path}/store.db", str(tmp_path), CHILD]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "made").exists():
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()

    year = datetime.now(UTC).year
    world = World(store, Timetable("visits", "@yearly", start=datetime(year - 1, 1, 1, tzinfo=UTC)))
    world.now = datetime.now(UTC)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        world.now = datetime.now(UTC)
        if len(waits) == 1:  # it is the scheduler, and sees that the run of the killed one goes on
            assert [lease.alive for lease in store.leases.held(world.now) if lease.dataset == LEASE] == [True]
            (tmp_path / "go").write_text("go")
            while not store.runs.latest() or store.runs.latest()[0].state == "running":
                assert time.monotonic() < deadline
                time.sleep(0.02)
        if len(waits) == 3:
            scheduler.stop.set()

    scheduler = world.scheduler(wait)
    scheduler.run()
    assert world.started == []
    assert (tmp_path / "made").read_text() == f"{year}-01-01T00:00:00+00:00\n"
    assert [(run.state, run.attempt) for run in store.runs.latest()] == [("ok", 1)]
