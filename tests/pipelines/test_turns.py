"""What runs that are at work at once leave to each other: decided from receipts, runs and leases alone. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event as Flag
from typing import Any

import pytest

from lakewright.errors import InterruptedRun, LeaseHeldError, MadeMeanwhileError, NotReady
from lakewright.model.runs import Run
from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
from lakewright.pipelines.decide import Decider, SliceState, Wish
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.own_times import OwnTimes, decider_for
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.pipelines.turns import Turns
from lakewright.pipelines.workshop import Made, Workshop
from lakewright.store import Store, open_store, this_process
from tests.pipelines.lab import Lab, lab

NOW = datetime(2026, 1, 9, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def date(number: int) -> str:
    return f"2026-01-{number:02d}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


class AnySource:
    """A source that is never read."""

    repeatable = True
    takes_part = None

    def look(self, ctx: Any) -> None: ...


@pytest.fixture
def known(store: Store) -> Lab:
    """Four days have arrived."""
    visits = Pipeline("visits", start="2026-01-01", runs=ConcurrentRunner(limit=3))
    visits.source("raw", AnySource(), schema="at timestamp", event_time="at")  # type: ignore[arg-type]
    visits.sql("free", "SELECT * FROM raw", event_time="at", wait="2 hours")
    visits.sql("ordered", "SELECT * FROM raw", event_time="at", depends_on_past=True)
    found = lab(store, visits)
    found.arrive("raw", *(date(number) for number in (1, 2, 3, 4)))
    return found


def scheduled(known: Lab, time: datetime) -> Run:
    return Run(scheduled_run_id("visits", time), "visits", time, "scheduled")


def decider(known: Lab, run: Run) -> Decider:
    return decider_for(known.graph, run, ["free", "ordered"])(known.graph, known.store, {"free": "c", "ordered": "c"})


def begun(known: Lab, time: datetime, state: str | None = None) -> str:
    """The run of a time is at work, or has ended like this; gives its owner."""
    owner, run = this_process(), scheduled(known, time)
    known.store.leases.register(owner, timedelta(minutes=1), NOW)
    known.store.leases.acquire(
        "pipeline:visits", f"run {time.day}", owner_id=owner.owner_id, run_id=run.run_id, now=NOW
    )
    known.store.runs.start(run, owner_id=owner.owner_id, options={}, now=NOW)
    if state is not None:
        known.store.runs.finish(run.run_id, state, now=NOW)  # type: ignore[arg-type]
        known.store.leases.forget(owner.owner_id)
    return owner.owner_id


def test_a_scheduled_run_leaves_to_earlier_times_what_those_have_still_to_make(known: Lab) -> None:
    begun(known, day(3), "ok")
    run = scheduled(known, day(5))
    found = decider(known, run)
    assert isinstance(found, OwnTimes)
    plan = found.decide("ordered", Wish(day(5)))
    assert {one.slice.id: one.make for one in plan.states} == {
        date(1): False,
        date(2): True,  # its time has a good run: whatever is missing since is anybody's
        date(3): False,
        date(4): True,
    }
    assert "left to the run of 2026-01-04 00:00" in plan.states[2].reason
    # Two hours after its end a day belongs to the next time.
    assert [one.slice.id for one in found.decide("free", Wish(day(5))).to_make] == [date(1), date(3)]
    assert found.slices_of(known.graph["ordered"], day(4)) == [date(3)]
    assert found.slices_of(known.graph["free"], day(4)) == [date(2)]

    # By hand everything is made, and so it is where times that were passed over have no run.
    assert type(decider(known, Run("by hand", "visits", day(5)))) is Decider
    asked = found.decide("ordered", Wish(day(5), again={"ordered": frozenset({date(1)})}))
    assert asked.states[0].make


def turns(known: Lab, run: Run, stop: Flag) -> Turns:
    shop = Workshop(
        known.graph,
        None,
        known.store,
        run,
        "me",
        Path(),
        {},
        now=lambda: NOW,  # type: ignore[arg-type]
    )
    return Turns(shop, decider(known, run), Wish(run.time), stop)


def test_an_ordered_slice_waits_for_runs_at_work_and_fails_behind_one_that_did_not_succeed(known: Lab) -> None:
    stopped = Flag()
    stopped.set()  # whoever would wait is interrupted instead
    run = scheduled(known, day(5))
    ordered = known.graph["ordered"]
    mine = SliceState(known.states("ordered", "2026-01-05")[date(4)].slice, "missing", "")

    def ask() -> None:
        turns(known, run, stopped).wait_for(ordered, mine)

    assert turns(known, run, stopped).are_taken(ordered)
    assert not turns(known, run, stopped).are_taken(known.graph["free"])
    with pytest.raises(NotReady, match="2026-01-01 before it was not run yet"):
        ask()
    for number in (2, 3):
        begun(known, day(number), "ok")
    owner = begun(known, day(4))
    with pytest.raises(InterruptedRun):  # of the 3rd: at work, and may not even have its input yet
        ask()
    known.commit("ordered", date(3), {date(3): 3}, raw=0)
    ask()  # it has made its slice; the rest of that run is of no concern

    # A later run that repeats it takes it back.
    known.store.leases.acquire("ordered", date(3), owner_id=owner, run_id="again", now=NOW)
    known.arrive("raw", date(3))
    with pytest.raises(InterruptedRun):
        ask()
    known.store.leases.forget(owner)
    known.store.runs.finish(scheduled_run_id("visits", day(4)), "failed", now=NOW)
    with pytest.raises(NotReady, match=r"2026-01-03 before it did not succeed \(run .*, failed\)"):
        ask()


def test_nobody_waits_for_a_process_that_is_at_a_later_time(known: Lab) -> None:
    stopped = Flag()
    stopped.set()
    run, ordered = scheduled(known, day(4)), known.graph["ordered"]
    mine = SliceState(known.states("ordered", "2026-01-05")[date(3)].slice, "missing", "")
    owner = this_process()
    known.store.leases.register(owner, timedelta(minutes=1), NOW)
    later = known.store.leases.acquire(
        "scheduled:visits", day(6).isoformat(), owner_id=owner.owner_id, run_id=None, now=NOW
    )
    with pytest.raises(NotReady, match="was not run yet"):
        turns(known, run, stopped).wait_for(ordered, mine)
    known.store.leases.release(later.dataset, later.slice_id, later.number)
    known.store.leases.acquire("scheduled:visits", day(2).isoformat(), owner_id=owner.owner_id, run_id=None, now=NOW)
    with pytest.raises(InterruptedRun):  # it makes one time after the other, and comes to it
        turns(known, run, stopped).wait_for(ordered, mine)


def test_a_slice_that_another_run_makes_is_waited_for_and_taken_as_done(known: Lab) -> None:
    run, raw = scheduled(known, day(5)), known.graph["raw"]
    state, tries = SliceState(known.states("ordered", "2026-01-05")[date(4)].slice, "missing", ""), []

    def make(shop: Workshop, dataset: Any, state: SliceState, *, attempt: int) -> Made:
        tries.append(attempt)
        if len(tries) == 2:
            return Made(())
        raise LeaseHeldError("busy", name="free", owner="another")

    stop = Flag()
    held = turns(known, run, stop)
    ordered = known.graph["ordered"]
    held._see_inputs = lambda dataset, state: None  # type: ignore[method-assign]
    assert not held.make(make, ordered, state, 1).recovered  # it ended without making it: it is made here
    known.commit("ordered", date(4), {date(4): 3}, raw=0)
    tries.clear()
    made = held.make(make, ordered, state, 1)
    assert (made.recovered, made.public.slice_id, tries) == (True, date(4), [1])
    waits: list[int] = []

    def record() -> None:
        waits.append(1)
        if len(waits) < 2:
            raise LeaseHeldError("busy", name="source:raw", owner="another")

    held.patiently(raw, record)
    assert len(waits) == 2
    stop.set()
    tries.clear()
    with pytest.raises(InterruptedRun):
        held.make(make, ordered, state, 1)


def test_no_slice_that_another_run_has_made_since_is_made_again_also_after_the_first_that_was_noticed(
    known: Lab,
) -> None:
    held, ordered = turns(known, scheduled(known, day(5)), Flag()), known.graph["ordered"]
    held._see_inputs = lambda dataset, state: None  # type: ignore[method-assign]
    held.look(ordered)
    due = [known.states("ordered", "2026-01-05")[date(number)] for number in (3, 4)]
    for number in (3, 4):
        known.commit("ordered", date(number), {date(number): 3}, raw=0)
    again: list[str] = []

    def make(shop: Workshop, dataset: Any, state: SliceState, *, attempt: int) -> Made:
        there = known.store.receipts.live("ordered", state.slice.id)
        assert shop.known is not None
        if there is not None and there.version != shop.known.version:
            raise MadeMeanwhileError("as the store says when the lease is asked for")
        again.append(state.slice.id)
        return Made(())

    assert [held.make(make, ordered, state, 1).recovered for state in due] == [True, True]
    assert again == []
