"""Isolated Sequencer: pipelines that follow others, by a marker or by their runs. Without Spark but for two tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.world import World

from lakewright.errors import ConfigurationError, DefinitionError, NotReady, UnknownNameError
from lakewright.model.receipts import Change, Commit, Receipt
from lakewright.model.runs import Run, RunState
from lakewright.patterns.data_flow.isolated_sequencer import After, WhenReady, flag_of, wait_for_dataset
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.following import following_run_id
from lakewright.pipelines.gates import date_of
from lakewright.pipelines.lag import next_due
from lakewright.pipelines.linking import Edge, check_links, edges_of
from lakewright.pipelines.schedule import follow_backfill, make_times
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.pipelines.timetables import Timetable, timetables_of
from lakewright.store import Store, open_store


def day(number: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, number, hour, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def ran(store: Store, pipeline: str, time: datetime, state: RunState = "ok", **summary: Any) -> str:
    """The scheduled run of a time ended like this."""
    known = store.runs.get(run_id := scheduled_run_id(pipeline, time))
    run = Run(run_id, pipeline, time, "scheduled", 1 if known is None else known.attempt + 1)
    store.runs.start(run, owner_id=None, options={}, now=time)
    error = None if state == "ok" else "no such file"
    store.runs.finish(run_id, state, now=time, error=error, summary={"failed": [], "skipped": [], **summary})
    return run_id


def states(store: Store, pipeline: str) -> dict[datetime, str]:
    return {run.run_time: run.state for run in store.runs.latest(pipeline, limit=100)}


# By data


def consumer(flag: Path, **options: Any) -> Timetable:
    ready = WhenReady("visits", flag=f"{flag}/{{slice}}/COMPLETED", within="3 hours")
    return Timetable(
        **{"pipeline": "dashboard", "schedule": "@daily", "start": day(4), "waits_for": (ready,), **options}
    )


@pytest.mark.shows("06.isolated-sequencer", 1, 2, 7)
def test_a_time_waits_for_its_marker_without_a_process_and_fails_when_it_takes_too_long(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "export" / "2026-01-04"
    folder.mkdir(parents=True)
    (folder / "part-0.json").touch()  # data, but no marker
    world = World(
        store, consumer(tmp_path / "export"), consumer(tmp_path / "export", pipeline="mails", catch_up="newest")
    )
    world.now = day(5) + timedelta(hours=1)
    scheduler = world.scheduler()
    assert scheduler.look() == 2.0
    assert world.started == []
    assert "dashboard: 2026-01-05 00:00 waits: visits of 2026-01-04 is not ready: expected the flag" in world.told[0]

    # After the limit it fails once, by name; nothing was started for it, and it is still waited for.
    world.now = day(5) + timedelta(hours=3, seconds=1)
    scheduler.look()
    scheduler.look()
    assert world.started == []
    (failed,) = store.runs.latest("dashboard")
    assert (failed.state, failed.run_time, failed.attempt) == ("failed", day(5), 0)
    expected = f"the flag {folder}/COMPLETED"
    assert f"visits of 2026-01-04 is not ready within 3 hours: expected {expected}" in (failed.error or "")

    # One consumer is paused, another is renamed: the marker is set all the same, and each answers for itself.
    store.schedules.pause("dashboard", because=None, now=world.now)
    world.tables[1] = consumer(tmp_path / "export", pipeline="letters", catch_up="newest")
    world.files += 1
    (folder / "COMPLETED").touch()
    scheduler.look()
    assert [(one.pipeline, one.times) for one in world.started] == [("letters", [day(5)])]
    store.schedules.resume("dashboard", now=world.now)
    scheduler.look()
    assert [(one.pipeline, one.times) for one in world.started[1:]] == [("dashboard", [day(5)])]
    world.end(world.started[1], "ok")
    assert states(store, "dashboard") == {day(5): "ok"}

    # A later date with a marker does not overtake one without: its run would make both.
    world.now = day(7) + timedelta(hours=1)
    late = tmp_path / "export" / "2026-01-06"
    late.mkdir()
    (late / "COMPLETED").touch()
    scheduler.look()
    assert [one.times for one in world.started if one.pipeline == "dashboard"] == [[day(5)]]


@pytest.mark.parametrize(
    ("time", "grid", "date"),
    [
        (day(5), "day", "2026-01-04"),
        (day(5, 6), "day", "2026-01-04"),
        (day(5, 6), "hour", "2026-01-05T05"),
        (day(5), "month", "2025-12"),
    ],
)
def test_the_date_of_a_time_is_the_newest_that_has_ended(time: datetime, grid: Any, date: str) -> None:
    assert date_of(time, grid) == date


class TheirLog:
    """A log that a test writes by hand."""

    path = "/lake/visits"

    def __init__(self, *cells: str) -> None:
        self._cells = cells

    def bounds(self) -> tuple[int | None, int | None]:
        return (0, len(self._cells) - 1) if self._cells else (None, None)

    def commit(self, version: int) -> Commit:
        touched: dict[str | None, Change] = {self._cells[version]: Change(1, 0)}
        return Commit(version, day(5), "WRITE", None, {}, data_change=True, touched=touched)


def test_a_process_of_ones_own_waits_for_a_flag_or_a_commit_and_says_what_was_missing(tmp_path: Path) -> None:
    slept: list[float] = []
    flag = f"{tmp_path}/{{date_nodash}}/{{hour}}/_SUCCESS"
    with pytest.raises(
        NotReady, match=r"visits 2026-01-05T07 \(the flag .*/20260105/07/_SUCCESS\) was not ready within 1"
    ):
        wait_for_dataset(
            "visits", "2026-01-05T07", flag=flag, at_most="1 minute", sleep=slept.append, clock=lambda: sum(slept)
        )
    assert slept == [30.0, 30.0]
    wait_for_dataset("visits", "2026-01-05", log=TheirLog("2026-01-04", "2026-01-05T09"), at_most="1 minute")  # type: ignore[arg-type]
    with pytest.raises(NotReady, match="a commit with rows of 2026-01-06 in /lake/visits"):
        wait_for_dataset("visits", "2026-01-06", log=TheirLog("2026-01-04"), at_most="0 seconds")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="flag= or log="):
        wait_for_dataset("visits", "2026-01-06", at_most="0 seconds")
    with pytest.raises(ConfigurationError, match="the same for every date"):
        flag_of("landing/_SUCCESS", "2026-01-05")
    with pytest.raises(ConfigurationError, match="is no flag"):
        flag_of("landing/{day}/_SUCCESS", "2026-01-05")


def test_a_dataset_of_this_project_or_of_another_ones_lake_is_a_marker_too(store: Store, tmp_path: Path) -> None:
    other = tmp_path / "team_a"
    log = other / ".lakewright/lake/silver/visits/_delta_log"
    log.mkdir(parents=True)
    (other / "lakewright.toml").touch()
    here = Timetable("here", "@daily", start=day(4), waits_for=(WhenReady("clean"),))
    there = Timetable("there", "@daily", start=day(4), waits_for=(WhenReady("visits", project=str(other)),))
    world = World(store, here, there)
    scheduler = world.scheduler()
    scheduler.look()
    assert world.started == []
    store.receipts.add([Receipt("clean", "2026-01-04", "data", 1, 0, 1, day(5))])
    scheduler.look()
    assert [one.pipeline for one in world.started] == ["here"]
    (log / f"{0:020d}.json").write_text(
        '{"commitInfo": {"timestamp": 1767571200000, "operation": "WRITE"}}\n'
        '{"add": {"path": "a.parquet", "partitionValues": {"_lw_event": "2026-01-04"}, "size": 1, "dataChange": true, '
        '"stats": "{\\"numRecords\\": 3}"}}\n'
    )
    scheduler.look()
    assert [one.pipeline for one in world.started] == ["here", "there"]


# By task

LOADER = Timetable("loader", "@daily", start=day(1))


def follower(**after: Any) -> Timetable:
    how = After("loader", **after)
    return Timetable("aggregator", start=day(1), after=how, after_schedule=LOADER.schedule)


@pytest.mark.shows("06.isolated-sequencer", 3)
def test_each_good_run_starts_one_of_the_same_time_and_a_bad_one_fails_it_at_once(store: Store) -> None:
    world = World(store, LOADER, follower())
    scheduler = world.scheduler()
    scheduler.look()
    (loads,) = world.started
    assert loads.pipeline == "loader"
    world.now = day(2)
    world.end(loads, "ok", "failed", code=1)  # of the 2nd and the 3rd; the others were not begun
    ran(store, "loader", day(4), "skipped")
    scheduler.look()
    followed = [one for one in world.started if one.pipeline == "aggregator"]
    assert [one.times for one in followed] == [[day(2)]]
    assert states(store, "aggregator") == {day(3): "failed", day(4): "failed"}
    errors = {run.run_time: run.error or "" for run in store.runs.latest("aggregator")}
    assert "loader failed for 2026-01-03 00:00 (run " in errors[day(3)]
    assert "no such file" in errors[day(3)]
    assert "loader was skipped for 2026-01-04 00:00" in errors[day(4)]
    world.end(followed[0], "ok")

    # Nothing is told twice; when the producer has succeeded after all, the follower begins without a pause.
    scheduler.look()
    assert [run.attempt for run in store.runs.latest("aggregator") if run.run_time == day(3)] == [0]
    ran(store, "loader", day(3))
    scheduler.look()
    assert [one.times for one in world.started if one.pipeline == "aggregator"] == [[day(2)], [day(3)]]
    assert scheduler._jobs.summary.runs["failed"] == 3

    # Its process is killed: the same time comes again at once.
    dead = Run(scheduled_run_id("aggregator", day(3)), "aggregator", day(3), "scheduled")
    store.runs.start(dead, owner_id=None, options={}, now=world.now)
    world.started[-1].code = -9
    scheduler.look()
    assert [one.times for one in world.started if one.pipeline == "aggregator"] == [[day(2)], [day(3)], [day(3)]]
    world.end(world.started[-1], "ok")
    scheduler.look()
    assert states(store, "aggregator")[day(3)] == "ok"


def test_one_task_of_the_producer_may_be_enough(store: Store) -> None:
    table = follower(task="devices", on_skipped="skip")
    world = World(store, table)
    ran(store, "loader", day(2), "failed", failed=["exports"])
    ran(store, "loader", day(3), "failed", failed=["raw"], skipped=["devices"])
    ran(store, "loader", day(4), "skipped")
    store.runs.start(Run("now", "loader", day(5), "scheduled"), owner_id=None, options={}, now=day(5))
    world.scheduler().look()
    assert [one.times for one in world.started] == [[day(2)]]
    assert states(store, "aggregator") == {day(3): "failed", day(4): "skipped"}
    assert table.words == "after loader (devices)"
    assert Timetable.from_json(table.as_json()) == table


@pytest.mark.shows("06.isolated-sequencer", 5)
def test_a_daily_follower_of_an_hourly_pipeline_runs_once_and_the_other_times_are_skipped(store: Store) -> None:
    how = After("loader", every="day")
    daily = Timetable("aggregator", start=day(2), after=how, after_schedule="@hourly")
    world = World(store, daily)
    for hour in range(1, 25):
        ran(store, "loader", day(2) + timedelta(hours=hour))
    scheduler = world.scheduler()
    scheduler.look()
    assert [one.times for one in world.started] == [[day(3)]]
    world.end(world.started[0], "ok")
    scheduler.look()
    found = store.runs.latest("aggregator", limit=100)
    assert sorted(run.state for run in found) == ["ok"] + ["skipped"] * 23
    assert {run.error for run in found if run.state == "skipped"} == {"loader is followed once for each day"}
    assert len(world.started) == 1
    scheduler.stop.set()
    assert scheduler.run().state == "ok"

    # The other way: without `every` the producer's schedule is adopted.
    world.tables[:] = [Timetable("copies", start=day(2), after=After("loader"))]
    world.scheduler().look()
    assert len(world.started[1].times) == 24


def test_a_chain_of_followers_has_the_clock_of_its_first_pipeline() -> None:
    chain = [
        Pipeline("loads", schedule="30 6 * * *", timezone="Europe/Warsaw"),
        Pipeline("figures", schedule=After("loads")),
        Pipeline("letters", schedule=After("figures", every="week")),
        Pipeline("copies", schedule=After("letters")),
    ]
    tables = {table.pipeline: table for table in timetables_of(chain)}
    assert {table.after_schedule for table in tables.values()} == {None, "30 6 * * *"}
    assert tables["copies"].after_timezone == "Europe/Warsaw"
    known = {one.name: one.settings for one in chain}
    monday = datetime(2026, 1, 5, 5, 30, tzinfo=UTC)
    upcoming = {name: next_due(settings, known, monday) for name, settings in known.items()}
    assert upcoming == {
        "loads": monday + timedelta(days=1),
        "figures": monday + timedelta(days=1),
        "letters": monday + timedelta(days=7),
        "copies": monday + timedelta(days=7),
    }


def test_a_follower_without_a_start_begins_with_the_newest_run(store: Store) -> None:
    for number in (2, 3, 4):
        ran(store, "loader", day(number))
    world = World(store, Timetable("aggregator", after=After("loader")))
    scheduler = world.scheduler()
    scheduler.look()
    assert [one.times for one in world.started] == [[day(4)]]
    world.end(world.started[0], "ok")
    ran(store, "loader", day(5))
    scheduler.look()
    assert world.started[1].times == [day(5)]


def test_a_run_that_is_not_over_yet_is_not_passed_over_for_later_ones(store: Store) -> None:
    slow = Run(scheduled_run_id("loader", day(2)), "loader", day(2), "scheduled")
    store.runs.start(slow, owner_id=None, options={}, now=day(2))
    ran(store, "loader", day(3))
    world = World(store, follower())
    scheduler = world.scheduler()
    scheduler.look()
    world.end(world.started[0], "ok")
    scheduler.look()
    store.runs.finish(slow.run_id, "ok", now=day(4))
    scheduler.look()
    assert [one.times for one in world.started] == [[day(3)], [day(2)]]


def backfilled(store: Store, run_id: str, *pipelines: str, began: datetime) -> None:
    run = Run(run_id, ",".join(pipelines), began, "backfill")
    options: dict[str, Any] = {"select": ["devices"], "backfill": [day(2).isoformat(), day(5).isoformat()]}
    store.runs.start(run, owner_id=None, options=options, now=began)
    store.runs.finish(run_id, "ok", now=began)


@pytest.mark.shows("06.isolated-sequencer", 4)
def test_a_backfill_announces_itself_and_is_followed_once_declined_or_asked_about(store: Store) -> None:
    tables = [follower(), follower(backfills="decline"), follower(backfills="ask"), follower(task="other")]
    names = ("accepts", "declines", "asks", "elsewhere")
    tables = [Timetable(**{**_fields(table), "pipeline": name}) for table, name in zip(tables, names, strict=True)]
    backfilled(store, "before", "loader", began=day(4))  # nobody had run yet: there is nothing to repeat
    for name in names:
        ran(store, name, day(5))
    world = World(store, *tables)
    backfilled(store, "again", "loader", began=day(6))
    backfilled(store, "both", "accepts", "loader", began=day(7))  # it has made the follower's datasets itself
    scheduler = world.scheduler(workers=9)
    scheduler.look()
    scheduler.look()
    assert [(one.pipeline, one.follows) for one in world.started] == [("accepts", "again")]
    assert any(
        "from 2026-01-02 to 2026-01-05; `lakewright work asks --backfill again` follows" in one for one in world.told
    )
    declined = store.runs.get(following_run_id("declines", "again"))
    assert declined is not None
    assert (declined.state, declined.error) == ("skipped", "the backfill again was declined")
    world.end(world.started[0], "failed", code=1)
    assert scheduler.look() == 2.0
    assert "accepts: 2026-01-02 00:00 failed" in world.told
    assert len(world.started) == 1  # after a pause
    world.now += timedelta(seconds=5)
    scheduler.look()
    assert [one.follows for one in world.started] == ["again", "again"]
    world.end(world.started[1], "ok")
    scheduler.look()
    assert len(world.started) == 2


def _fields(table: Timetable) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.__dataclass_fields__}


# Declaring, and who is linked with whom


def linked(**options: Any) -> list[Pipeline]:
    loader = Pipeline("devices_loader", schedule="@hourly")
    loader.sql("devices", "SELECT * FROM raw", layer="silver")
    aggregator = Pipeline("devices_aggregator", **{"schedule": After("devices_loader", task="devices"), **options})
    aggregator.sql("figures", "SELECT * FROM devices")
    return [loader, aggregator]


@pytest.mark.shows("06.isolated-sequencer", 6)
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"schedule": After("devices_loadr")}, "unknown pipeline 'devices_loadr'.*Did you mean 'devices_loader'"),
        ({"schedule": After("devices_loader", task="device")}, "unknown task 'device'.*makes devices.*Did you mean"),
        ({"schedule": After("devices_loader", task="figures")}, "unknown task 'figures'"),
        ({"schedule": "@daily", "waits_for": WhenReady("visits")}, "unknown dataset 'visits'"),
        ({"schedule": "@daily", "waits_for": [WhenReady("figures")]}, "makes itself"),
        (
            {"schedule": "@daily", "waits_for": WhenReady("v", project="nowhere")},
            "project 'nowhere', where there is no",
        ),
        ({"schedule": After("devices_aggregator")}, "circle: devices_aggregator -> devices_aggregator"),
    ],
)
def test_what_names_nothing_is_refused_with_its_place(options: dict[str, Any], word: str, tmp_path: Path) -> None:
    check_links(linked(), tmp_path)
    with pytest.raises(DefinitionError, match=rf"test_isolated_sequencer\.py.*{word}"):
        check_links(linked(**options), tmp_path)


def test_pipelines_that_start_each_other_are_refused_by_name(tmp_path: Path) -> None:
    loader, aggregator = linked()
    circle = Pipeline("circle", schedule="@daily", waits_for=WhenReady("figures"))
    circle.sql("more", "SELECT * FROM figures")
    check_links([loader, aggregator, circle], tmp_path)
    back = Pipeline("devices_loader", schedule=After("circle"))
    back.datasets = loader.datasets
    with pytest.raises(DefinitionError, match=r"circle: .*devices_loader") as caught:
        check_links([back, aggregator, circle], tmp_path)
    assert all(name in str(caught.value) for name in ("devices_aggregator", "circle"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: After(""),
        lambda: After("a", every="year"),  # type: ignore[arg-type]
        lambda: After("a", backfills="maybe"),  # type: ignore[arg-type]
        lambda: After("a", on_skipped="wait"),  # type: ignore[arg-type]
        lambda: WhenReady(""),
        lambda: WhenReady("a", table="t", project="p"),
        lambda: WhenReady("a", within="soon"),
        lambda: WhenReady("a", flag="_SUCCESS"),
        lambda: Pipeline("a", schedule=None, waits_for=WhenReady("b")),
        lambda: Pipeline("a", waits_for=["b"]),  # type: ignore[list-item]
        lambda: Pipeline("a", schedule=After("b"), timezone="Europe/Warsaw"),
    ],
)
def test_wrong_options_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.shows("06.isolated-sequencer", 8)
def test_the_registry_shows_producer_dataset_and_consumer_of_both_kinds_of_link() -> None:
    loader, aggregator = linked()
    dashboard = Pipeline(
        "dashboard",
        waits_for=[
            WhenReady("figures"),
            WhenReady("visits", project="../team_a"),
            WhenReady("ads", flag="ads/{slice}"),
        ],
    )
    dashboard.sql("tiles", "SELECT * FROM figures")
    whole = Pipeline("mails", schedule=After("dashboard"))
    whole.sql("letters", "SELECT * FROM tiles")
    edges = edges_of([loader, aggregator, dashboard, whole])
    assert edges == [
        Edge(None, "ads", "dashboard", "marker", "ads/{slice}"),
        Edge(None, "visits", "dashboard", "marker", "../team_a"),
        Edge("dashboard", None, "mails", "run"),
        Edge("dashboard", "tiles", "mails", "reads"),
        Edge("devices_aggregator", "figures", "dashboard", "marker"),
        Edge("devices_aggregator", "figures", "dashboard", "reads"),
        Edge("devices_loader", "devices", "devices_aggregator", "reads"),
        Edge("devices_loader", "devices", "devices_aggregator", "run"),
    ]
    tables = {one.pipeline: one for one in timetables_of([loader, aggregator, dashboard], folder=Path("/teams/b"))}
    assert tables["devices_aggregator"].after_schedule == "@hourly"
    assert [one.project or one.flag for one in tables["dashboard"].waits_for] == [
        None,
        "/teams/team_a",
        "/teams/b/ads/{slice}",
    ]
    assert Timetable.from_json(tables["dashboard"].as_json()) == tables["dashboard"]


# In a lake

DASHBOARD = """
    from lakewright import FlagFile, JsonFiles, Pipeline, WhenReady

    ready = WhenReady("visits", flag="export/{slice}/COMPLETED", within="3 hours")
    dashboard = Pipeline("dashboard", start="2026-01-04", waits_for=ready)
    dashboard.source(
        "visits", JsonFiles("export", ready=FlagFile("COMPLETED")), schema="visit string, at timestamp", event_time="at"
    )
    dashboard.sql("tiles", "SELECT at, visit FROM visits", event_time="at")
"""
LINE = '{{"visit": "v{0}", "at": "2026-01-{0:02d} 10:00:00"}}\n'


@pytest.mark.shows("06.isolated-sequencer", 1, 2)
def test_a_consumer_reads_what_its_marker_stands_for_and_writes_nothing_without_one(project: Any) -> None:
    files = {f"export/2026-01-{number:02d}/a.json": LINE.format(number) for number in (4, 5)}
    opened = project({"pipelines/dashboard.py": DASHBOARD, **files})
    notes: list[str] = []

    def listen(event: Any) -> None:
        notes.append(getattr(event, "message", ""))

    assert opened.run_due(at="2026-01-05T01:00", listener=listen) == []
    assert "dashboard: 2026-01-05 00:00 waits: visits of 2026-01-04 is not ready" in notes[0]
    (failed,) = opened.run_due(at="2026-01-05T04:00")
    assert (failed.state, failed.exit_code) == ("failed", 1)
    assert "visits of 2026-01-04 is not ready within 3 hours: expected the flag" in str(failed.errors[0])
    assert "export/2026-01-04/COMPLETED" in str(failed.errors[0])
    assert not opened.lake.has("visits")

    (opened.folder / "export/2026-01-04/COMPLETED").touch()
    (made,) = opened.run_due(at="2026-01-06T01:00")  # of the 4th; the 5th has data, and no marker
    assert made.state == "ok"
    assert [(row.visit, row.at.day) for row in opened.show("tiles").collect()] == [("v4", 4)]
    assert [row.visit for row in opened.show("visits").collect()] == ["v4"]


LOADS = """
    from lakewright import JsonFiles, Pipeline

    loader = Pipeline("devices_loader", start="2026-01-01")
    loader.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")
    loader.sql("devices", "SELECT * FROM raw", layer="silver", event_time="at")
"""
FOLLOWERS = """
    from lakewright import After, Pipeline

    aggregator = Pipeline("devices_aggregator", start="2026-01-01", schedule=After("devices_loader"))
    aggregator.sql("figures", "SELECT at, visit FROM devices", event_time="at")

    mails = Pipeline("mails", start="2026-01-01", schedule=After("devices_loader", backfills="ask"))
    mails.sql("letters", "SELECT at, visit FROM devices", event_time="at")
"""


@pytest.mark.shows("06.isolated-sequencer", 4, 6)
def test_a_producers_backfill_repeats_its_dates_below_it_once_and_a_removed_follower_harms_nobody(project: Any) -> None:
    files = {f"landing/{number}.json": LINE.format(number) for number in (1, 2, 3, 4)}
    opened = project({"pipelines/loads.py": LOADS, "pipelines/followers.py": FOLLOWERS, **files})
    (loaded,) = make_times(opened, "devices_loader", [day(5)], since=day(5))
    assert loaded.state == "ok"
    # Nothing is due by the clock any more; those that follow it are run for the same time, and once.
    assert [(one.state, len(one.made)) for one in opened.run_due(at="2026-01-05")] == [("ok", 4), ("ok", 4)]
    assert opened.run_due(at="2026-01-05") == []
    followed = {run.pipeline: run.run_time for run in opened.store.runs.latest()}
    assert followed == dict.fromkeys(("devices_loader", "devices_aggregator", "mails"), day(5))
    again = opened.backfill("2026-01-02", "2026-01-05", select=["pipeline:devices_loader"])
    dates = ["2026-01-02", "2026-01-03", "2026-01-04"]
    assert sorted((one.dataset, one.slice_id) for one in again.made) == [
        (name, date) for name in ("devices", "figures") for date in dates
    ]
    # Who asks is left out, until somebody accepts; then it is made once.
    (answered,) = follow_backfill(opened, "mails", again.run_id)
    assert sorted((one.dataset, one.slice_id) for one in answered.made) == [("letters", date) for date in dates]
    assert follow_backfill(opened, "mails", again.run_id) == []
    for name in ("figures", "letters"):
        assert sorted(row.visit for row in opened.show(name).collect()) == ["v1", "v2", "v3", "v4"]

    # A follower that was taken away since: whoever triggers it is told so, and the producer's dataset is as it was.
    (opened.folder / "pipelines/followers.py").unlink()
    left = project()
    with pytest.raises(UnknownNameError, match="no pipeline 'devices_aggregator'"):
        make_times(left, "devices_aggregator", [day(5)])
    assert left.ready("devices", "2026-01-04").ready
    assert left.show("devices").count() == 4
