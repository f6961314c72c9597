"""Concurrent Runner: several runs at once within limits, each slice once, order where a step asks for it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.world import World
from tests.processes import LAKEWRIGHT, killed

from lakewright.errors import ConfigurationError, DefinitionError, LeaseHeldError, TooManyRunsError
from lakewright.model.runs import Run
from lakewright.model.times import utc_now
from lakewright.patterns.data_flow.concurrent_runner import ConcurrentRunner
from lakewright.pipelines.admission import Admission
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.keeper import Keeper, keep
from lakewright.pipelines.loading import load_pipelines
from lakewright.pipelines.pooling import check_pools, check_shared_state
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store, open_store


def day(number: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, number, hour, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


# Declaring


@pytest.mark.shows("06.concurrent-runner", 8)
def test_a_limit_below_two_points_to_single_runner_and_unguarded_shared_state_is_refused() -> None:
    for limit in (1, 0, -3):
        with pytest.raises(ConfigurationError, match="Single Runner"):
            ConcurrentRunner(limit=limit)
    for options in ({"queue": -1}, {"shared_state": "state"}):
        with pytest.raises(ConfigurationError):
            ConcurrentRunner(**options)  # type: ignore[arg-type]

    def declared(runs: Any, **guarded: Any) -> list[Pipeline]:
        late = Pipeline("late", runs=runs)
        late.sql("state", "SELECT * FROM raw", depends_on_past=True)
        late.sql("backfills", "SELECT * FROM state", **guarded)
        late.sql("figures", "SELECT * FROM raw")
        return [late]

    shared = ConcurrentRunner(limit=2, shared_state=["state"])
    with pytest.raises(DefinitionError, match="share 'state': backfills, which uses it, does not depend") as caught:
        check_shared_state(declared(shared))
    assert (caught.value.file, "SingleRunner()" in str(caught.value)) == (__file__, True)
    check_shared_state(declared(shared, depends_on_past=True))
    check_shared_state(declared(ConcurrentRunner(limit=2, depends_on_past=True, shared_state=["state"])))
    check_shared_state(declared(None))  # one run at a time shares nothing

    # Something outside the project is used by whoever says so.
    outside = ConcurrentRunner(limit=2, shared_state=["ledger"])
    with pytest.raises(DefinitionError, match="nobody says who uses it"):
        check_shared_state(declared(outside))
    with pytest.raises(DefinitionError, match="share 'ledger': backfills"):
        check_shared_state(declared(outside, shared_state=["ledger"]))
    check_shared_state(declared(outside, shared_state=["ledger"], depends_on_past=True))


def test_an_unknown_pool_is_refused_when_the_project_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from lakewright import ConcurrentRunner, Pipeline\n"
        'loads = Pipeline("loads", runs=ConcurrentRunner(pool="ingestoin"))\n'
    )
    with pytest.raises(DefinitionError, match=r"one\.py:2: .*pool 'ingestoin', which does not exist. Known: ingestion"):
        load_pipelines(tmp_path, ["*.py"], pools={"ingestion": 3})
    with pytest.raises(DefinitionError, match="declares none"):
        check_pools(load_pipelines(tmp_path, ["*.py"]), {})


# Places, queues and pools


class Runs:
    """Runs that hold their places until the test lets them go."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self._store, self._stack = store, stack

    def enter(self, run_id: str, pipeline: str, how: Admission, wait_seconds: float = 0.0) -> Keeper:
        run = Run(run_id, pipeline, day(1))
        kept = keep(self._store, run, {pipeline: how}, now=utc_now, interrupt=lambda: None, wait_seconds=wait_seconds)
        return self._stack.enter_context(kept)

    def held(self, name: str) -> list[str]:
        return sorted(one.slice_id for one in self._store.leases.held(utc_now()) if one.dataset == name)


@pytest.fixture
def runs(store: Store) -> Iterator[Runs]:
    with ExitStack() as stack:
        yield Runs(store, stack)


def test_whoever_waits_longest_gets_the_next_place_and_nobody_jumps_the_queue(runs: Runs, store: Store) -> None:
    two = Admission(queue=2, limit=2)
    first, second = runs.enter("a", "loads", two), runs.enter("b", "loads", two)
    assert runs.held("pipeline:loads") == ["run 1", "run 2"]
    with pytest.raises(LeaseHeldError, match="has 2 runs at work, its limit"):
        runs.enter("c", "loads", two)

    def line_up(keeper: Keeper) -> int:
        return keeper.lease_place("queue:loads", ["place 1", "place 2"]).number

    early, late, third = (runs.enter(name, "other", Admission(limit=9)) for name in "cde")
    tickets = [line_up(early), line_up(late)]
    with pytest.raises(LeaseHeldError):
        line_up(third)
    with pytest.raises(TooManyRunsError, match="Too many requests"):
        runs.enter("f", "loads", two, wait_seconds=5)
    store.leases.forget(first.owner.owner_id)

    def enter(keeper: Keeper, ticket: int | None) -> str:
        return keeper.lease_place("pipeline:loads", ["run 1", "run 2"], queue="queue:loads", ticket=ticket).slice_id

    for impatient, ticket in ((late, tickets[1]), (third, None)):
        with pytest.raises(LeaseHeldError):
            enter(impatient, ticket)
    assert enter(early, tickets[0]) == "run 1"
    store.leases.forget(second.owner.owner_id)
    # The one that was served has left the queue, or its process has ended.
    store.leases.release("queue:loads", "place 1", tickets[0])
    assert enter(late, tickets[1]) == "run 2"

    # Whoever needs the pipeline alone waits for all of its runs.
    with pytest.raises(LeaseHeldError):
        runs.enter("rollback", "loads", Admission())


@pytest.mark.shows("06.concurrent-runner", 3)
def test_a_team_never_holds_more_than_its_slots_and_another_one_starts_at_once(runs: Runs, store: Store) -> None:
    team_a = Admission(limit=100, pool="ingestion", slots=3)
    team_b = Admission(limit=2, pool="reports", slots=1)
    for number in range(3):
        runs.enter(f"a{number}", "loads", team_a)
    with pytest.raises(LeaseHeldError, match="pool 'ingestion' has 3 slots, and none is free"):
        runs.enter("a3", "loads", team_a)
    with pytest.raises(LeaseHeldError, match="pool 'ingestion'"):  # of the same team, whatever the pipeline
        runs.enter("other", "more_loads", team_a)
    runs.enter("b", "figures", team_b)
    assert runs.held("pool:ingestion") == ["slot 1", "slot 2", "slot 3"]
    assert len(runs.held("pipeline:loads")) == 3
    assert runs.held("pool:reports") == ["slot 1"]

    # The scheduler gives out no more either, and its workers are not what team B waits for.
    start = day(1)
    wide = Timetable("loads", "@hourly", start=start, concurrency=100, pool="ingestion", slots=3)
    also = Timetable("more_loads", "@hourly", start=start, pool="ingestion", slots=3)
    later = Timetable("figures", "@daily", start=day(4), pool="reports", slots=1)
    alone = Timetable("plain", "@daily", start=day(4))
    with open_store(f"{store._engine.url}.other") as empty:
        world = World(empty, wide, also, later, alone)
        scheduler = world.scheduler(workers=1)
        scheduler.look()
        assert [one.pipeline for one in world.started] == ["loads"] * 3 + ["figures", "plain"]
        world.end(world.started[0], *["ok"] * 50)
        scheduler.look()
        # The next slot is for the pipeline that has had none for longest.
        assert [one.pipeline for one in world.started[5:]] == ["more_loads"]


def test_the_scheduler_hands_out_as_many_runs_as_may_go_on_at_once_and_tells_since_when_they_wait(
    store: Store,
) -> None:
    table = Timetable("loads", "@hourly", start=day(5, 0), concurrency=5, pool="ingestion", slots=9)
    world = World(store, table)
    scheduler = world.scheduler()
    scheduler.look()
    assert [len(one.times) for one in world.started] == [3, 3, 3, 3]  # noon: twelve hours
    came = world.now
    world.now += timedelta(minutes=30)
    world.end(world.started[1], "ok", "ok", "ok")
    scheduler.look()
    world.now += timedelta(minutes=30)
    scheduler.look()
    assert [(len(one.times), one.since) for one in world.started[4:]] == [(1, came + timedelta(hours=1))]


# Runs

FILES = {
    "lakewright.toml": 'name = "test"\n[pools]\ningestion = 9\n',
    "pipelines/visits.py": """
        import threading
        import time
        from pathlib import Path

        from pyspark.sql import functions as F

        from lakewright import ConcurrentRunner, JsonFiles, Pipeline

        CALLS, LATER, NOTED = [], threading.Event(), threading.Event()
        HERE = str(Path(__file__).parent)
        runs = ConcurrentRunner(limit=5, pool="ingestion", queue=12)
        visits = Pipeline("visits", schedule="@hourly", start="2026-01-01", runs=runs)
        visits.source("raw", JsonFiles("landing"), schema="visit string, pages int, at timestamp", event_time="at")

        @visits.dataset(event_time="at")
        def clean(raw, run):
            CALLS.append(f"{run.interval.start:%H}")
            if run.interval.start.hour == 1:
                LATER.set()
            if run.interval.start.hour == 0:
                assert LATER.wait(60)
            if NOTED.is_set():
                return raw.withColumn("note", F.lit("new"))
            return raw if run.interval.start.hour != 12 else raw.withColumn("visit", slowly(HERE)("visit"))

        def slowly(folder):
            def wait(value):
                Path(folder, "writing").touch()
                while not Path(folder, "changed").exists():
                    time.sleep(0.05)
                return value

            return F.udf(wait)
    """,
}


def side_by_side(work: Callable[[datetime], Any], times: list[datetime]) -> list[Any]:
    """What ``work`` gives for each time, in threads that all go on at once."""
    found: dict[datetime, Any] = {}

    def note(time: datetime) -> None:
        found[time] = work(time)

    threads = [threading.Thread(target=note, args=(time,)) for time in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    return [found[time] for time in times]


def scheduled(opened: Any, time: datetime, **options: Any) -> Any:
    pipeline = opened.graph["raw"].pipeline
    return opened.run(
        [f"pipeline:{pipeline}"], at=time, reason="scheduled", run_id=scheduled_run_id(pipeline, time), **options
    )


@pytest.mark.shows("06.concurrent-runner", 1, 2, 6)
def test_twelve_runs_with_a_limit_of_five_give_what_one_after_the_other_would(project: Any) -> None:
    line = '{{"visit": "v{0}", "pages": {0}, "at": "2026-01-01 {0:02d}:30:00"}}\n'
    landing = {f"landing/{hour}.json": line.format(hour) for hour in range(12)}
    opened = project({**FILES, **landing})
    world = opened.graph["clean"].function.__globals__
    times = [day(1, hour) + timedelta(hours=1) for hour in range(12)]
    shuffled = times[:2] + random.Random(6).sample(times[2:], 10)
    summaries = side_by_side(lambda time: scheduled(opened, time, wait_seconds=200, parallel=1), shuffled)
    assert [one.state for one in summaries] == ["ok"] * 12
    assert sorted(world["CALLS"]) == [f"{hour:02d}" for hour in range(12)]

    # At most five at once, more than one, and not in the order of their times.
    runs = sorted(opened.store.runs.latest(), key=lambda run: run.run_time)
    edges = sorted([(run.started_at, 1) for run in runs] + [(run.ended_at, -1) for run in runs])
    at_work = [sum(step for _, step in edges[: place + 1]) for place in range(len(edges))]
    assert 1 < max(at_work) <= 5
    assert [run.run_time for run in runs] == times
    assert runs[0].ended_at > runs[1].started_at
    ended = [run.run_time for run in sorted(runs, key=lambda run: run.ended_at)]
    assert ended != times
    assert max(run.queued_seconds for run in runs) > 0.5  # seven have waited for a place
    assert opened.store.leases.held(utc_now()) == []

    # Every date's partition holds its own data, and every commit into the one table is there.
    rows = opened.lake.read("clean", system_columns=True).selectExpr("visit", "pages", "_lw_event").collect()
    assert sorted((row.pages, row.visit, row._lw_event) for row in rows) == [
        (hour, f"v{hour}", f"2026-01-01T{hour:02d}") for hour in range(12)
    ]
    live = opened.store.receipts.live_slices("clean")
    assert len({made.version for made in live.values()}) == 12

    # While one run writes, another one commits a new column: Delta refuses the first, which makes its slice again.
    for hour in (12, 13):
        (opened.folder / f"landing/{hour}.json").write_text(line.format(hour))
    slow: list[Any] = []
    writer = threading.Thread(target=lambda: slow.append(scheduled(opened, day(1, 13))))
    writer.start()
    marks = opened.folder / "pipelines"
    until = time.monotonic() + 120
    while not (marks / "writing").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    world["NOTED"].set()
    other = opened.run(["clean"], at=day(1, 14), reason="scheduled", run_id=scheduled_run_id("visits", day(1, 14)))
    (marks / "changed").touch()
    writer.join(timeout=120)
    assert [(one.slice_id, one.attempts) for one in other.made] == [("2026-01-01T13", 1)]
    assert [(one.slice_id, one.attempts) for one in slow[0].made if one.dataset == "clean"] == [("2026-01-01T12", 2)]
    rows = opened.show("clean").where("pages >= 11").orderBy("pages").collect()
    assert [(row.visit, row.note) for row in rows] == [("v11", None), ("v12", "new"), ("v13", "new")]


ORDERED = """
    import threading
    from lakewright import ConcurrentRunner, JsonFiles, Pipeline

    CALLS, BROKEN, TOGETHER = [], set(), threading.Barrier(3)
    visits = Pipeline("visits", start="2026-01-01", runs=ConcurrentRunner(limit=3))
    visits.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @visits.dataset(event_time="at")
    def free(raw, run):
        if run.interval.start.day <= 3:
            TOGETHER.wait(120)
        return raw

    @visits.dataset(event_time="at", depends_on_past=True, retries=0)
    def ordered(free, run):
        CALLS.append(run.interval.start.day)
        if run.interval.start.day in BROKEN:
            raise ValueError("broken")
        return free
"""


@pytest.mark.shows("06.concurrent-runner", 4, 5, 7)
def test_a_step_that_depends_on_its_past_goes_in_order_while_the_others_overlap(project: Any, connect_url: str) -> None:
    line = '{{"visit": "v{0}", "at": "2026-01-{0:02d} 10:00:00"}}\n'
    opened = project(
        {"pipelines/visits.py": ORDERED, **{f"landing/{number}.json": line.format(number) for number in (1, 2, 3)}}
    )
    world = opened.graph["ordered"].function.__globals__

    # The last one first: all three make their free slice at the same moment, and the ordered ones in order, once.
    summaries = side_by_side(lambda time: scheduled(opened, time), [day(4), day(3), day(2)])
    assert [one.state for one in summaries] == ["ok"] * 3
    assert world["CALLS"] == [1, 2, 3]
    assert [[made.slice_id for made in one.made if made.dataset == "ordered"] for one in summaries] == [
        ["2026-01-03"],
        ["2026-01-02"],
        ["2026-01-01"],
    ]

    # A run is killed after its first commit: the next one takes over its place, and settles what it left.
    (opened.folder / "landing" / "4.json").write_text(line.format(4))
    killed(
        opened.folder, *LAKEWRIGHT, "work", "visits", "--time", "2026-01-05", failpoint="published", master=connect_url
    )
    held = {one.dataset: (one.slice_id, one.alive) for one in opened.store.leases.held(utc_now())}
    assert held["pipeline:visits"] == ("run 1", False)
    world["BROKEN"].add(4)
    failed = scheduled(opened, day(5))
    assert (failed.state, failed.failed) == ("failed", ["ordered"])
    assert any("an earlier run died here" in note.message for note in failed.notes)
    assert [made.dataset for made in failed.made] == ["free"]

    # The next date's ordered step waits for it; its free one does not.
    (opened.folder / "landing" / "5.json").write_text(line.format(5))
    behind = scheduled(opened, day(6))
    assert [(made.dataset, made.slice_id) for made in behind.made if made.dataset != "raw"] == [("free", "2026-01-05")]
    assert (behind.state, behind.failed) == ("failed", ["ordered"])
    assert "2026-01-05 waits: it is made in order, and 2026-01-04 before it did not succeed" in str(behind.errors[0])
    assert world["CALLS"] == [1, 2, 3, 4]

    # A retry of the one run changes nothing of the others; then the next goes on.
    world["BROKEN"].clear()

    def others() -> dict[str, Any]:
        live = {name: opened.store.receipts.live_slices(name) for name in ("free", "ordered")}
        del live["free"]["2026-01-04"]
        live["ordered"].pop("2026-01-04", None)
        states = {run.run_id: run.state for run in opened.store.runs.latest() if run.run_time != day(5)}
        return {**live, "states": states}

    before = others()
    assert scheduled(opened, day(5)).state == "ok"
    assert others() == before
    assert scheduled(opened, day(6)).state == "ok"
    assert world["CALLS"] == [1, 2, 3, 4, 4, 5]
    assert sorted(row.visit for row in opened.show("ordered").collect()) == ["v1", "v2", "v3", "v4", "v5"]
