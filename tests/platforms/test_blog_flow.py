"""Who begins after whom on the blog platform: by the scheduler, and as DAGs for Airflow. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.pipelines.world import World

from lakewright.demo_project import prepare
from lakewright.pipelines.airflow.export import airflow_files
from lakewright.pipelines.airflow.render import Worker
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.linking import edges_of
from lakewright.pipelines.loading import load_pipelines
from lakewright.pipelines.timetables import timetables_of
from lakewright.store import Store, open_store

LINKS = {("sources", "visits", None), ("visits", "sessions", "clean_visits")}
MORE = {
    ("sources", "live", None),
    ("visits", "exports", "daily_pages"),
    ("visits", "feeds", None),
    ("visits", "insights", "clean_visits"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def blog(folder: Path, *, services: bool = False) -> list[Pipeline]:
    return load_pipelines(prepare(folder, services=services), ["pipelines/*.py"], pools={"reports": 2})


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


@pytest.mark.parametrize("services", [False, True], ids=["files", "services"])
def test_a_pipeline_begins_when_what_it_reads_is_there(tmp_path: Path, services: bool) -> None:
    edges = edges_of(blog(tmp_path / "blog", services=services))
    links = {(edge.producer, edge.consumer, edge.dataset) for edge in edges if edge.by in ("run", "marker")}
    assert links == (LINKS | MORE if services else LINKS)
    begins_after = {consumer: {producer} for producer, consumer, _ in links if producer is not None}
    begins_after["sessions"].add("sources")
    if not services:  # there, devices come by an event, and changes of the old site in their own time
        reads = {(edge.producer, edge.consumer) for edge in edges if edge.by == "reads"}
        assert all(producer in begins_after[consumer] for producer, consumer in reads)


def test_the_scheduler_runs_visits_after_their_sources_and_sessions_after_visits(store: Store, tmp_path: Path) -> None:
    world = World(store, *timetables_of(blog(tmp_path / "blog")))
    world.now = day(3) + timedelta(minutes=1)
    scheduler = world.scheduler(workers=9)
    for name in ("sources", "visits", "sessions"):
        scheduler.look()
        assert [(one.pipeline, one.times) for one in world.started if one.code is None] == [(name, [day(2), day(3)])]
        world.end(world.started[-1], "ok", "ok")
    scheduler.look()
    assert len(world.started) == 3

    # The sources fail: nobody makes figures of what is not there.
    world.now = day(4)
    scheduler.look()
    world.end(world.started[-1], "failed", code=1)
    scheduler.look()
    assert [one.pipeline for one in world.started[3:]] == ["sources"]
    states = {run.pipeline: run.state for run in store.runs.latest() if run.run_time == day(4)}
    assert states["visits"] == "failed"


def test_exported_each_dag_waits_for_the_one_before_it_and_names_the_datasets_that_it_reads(tmp_path: Path) -> None:
    folder = tmp_path / "blog"
    worker = Worker("python3", "/srv/blog", "dev")
    files = airflow_files("blog", blog(folder), folder=folder.resolve(), worker=worker)
    assert 'outlets=[dataset("raw_visits"), dataset("users"), dataset("pages")]' in files["blog_sources.py"]
    for name, before, read in (("visits", "sources", "raw_visits"), ("sessions", "visits", "clean_visits")):
        text = files[f"blog_{name}.py"]
        assert f'external_dag_id="blog.{before}"' in text
        assert 'schedule=CronTriggerTimetable("@daily", timezone="UTC")' in text
        inlets = next(line for line in text.splitlines() if "inlets=" in line)
        assert f'dataset("{read}")' in inlets
