"""Cubes in pipelines: days of rows, weeks of days, and a late file replaces its day and its week, no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright import JsonFiles, Pipeline
from lakewright.errors import DefinitionError
from lakewright.pipelines.graph import Graph
from lakewright.store import Store, open_store
from tests.pipelines.lab import lab
from tests.pipelines.shop import land, made, ok, rows_of

BLOG = """
    from lakewright import DistributedAggregator, JsonFiles, LocalAggregator, Pipeline
    from pyspark.sql import functions as F

    CUBE = DistributedAggregator(
        by=["day"], cube=["country"], measures={"visits": "count(*)", "seconds": "avg(seconds)"}, keep_parts=True
    )
    SMALL = LocalAggregator({"visits": "count(*)"}, by=["week"], layout="one task")
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("visits", JsonFiles("landing/visits"), schema="at timestamp, country string, seconds int",
                event_time="at")

    @blog.dataset(layer="gold", event_time="day", rows="reduce")
    def daily(visits):
        return CUBE.cells(visits.withColumn("day", F.to_date("at")))

    @blog.dataset(layer="gold", event_time="week", grid="week", rows="reduce")
    def small(visits):
        return SMALL.rows(visits.withColumn("week", F.expr("CAST(date_trunc('week', at) AS DATE)")))

    @blog.dataset(layer="gold", event_time="week", grid="week", rows="reduce")
    def weekly(daily):
        return CUBE.combined(daily.withColumn("week", F.expr("CAST(date_trunc('week', day) AS DATE)")), by=["week"])
"""


def visit(day: int, country: str | None, seconds: int) -> dict[str, object]:
    return {"at": f"2026-01-{day:02}T10:00:00Z", "country": country, "seconds": seconds}


def cube_of(project, name: str) -> set[tuple[object, ...]]:
    found = rows_of(project, name)
    assert len({row[:3] for row in found}) == len(found)
    return {(str(row[0]), *row[1:5]) for row in found}


@pytest.mark.shows("05.distributed-aggregator", 5)
def test_a_late_file_replaces_the_cells_of_its_day_and_its_week_alone(project, failing):
    blog = project({"pipelines/blog.py": BLOG})
    first = [visit(5, "FR", 10), visit(5, None, 20), visit(6, "FR", 30), visit(12, "FR", 40)]
    land(blog.folder, "first.json", first, folder="visits")
    assert made(ok(blog.run(at="2026-01-19"))) == {
        ("visits", "arrival-1"),
        *[("daily", f"2026-01-{day}") for day in ("05", "06", "12")],
        *[(name, week) for name in ("weekly", "small") for week in ("2026-W02", "2026-W03")],
    }
    weeks = {("2026-01-12", "FR", 0, 1, 40.0), ("2026-01-12", None, 1, 1, 40.0)}
    assert cube_of(blog, "weekly") == weeks | {
        ("2026-01-05", "FR", 0, 2, 20.0),
        ("2026-01-05", None, 0, 1, 20.0),
        ("2026-01-05", None, 1, 3, 20.0),
    }
    # A late visit of the 6th; the run dies when the day is published and its receipt is not written yet.
    land(blog.folder, "late.json", [visit(6, "PL", 100)], folder="visits")
    failing("published:2")
    assert blog.run(at="2026-01-20").state == "failed"
    again = made(ok(blog.run(at="2026-01-20")))
    assert again >= {("weekly", "2026-W02")}
    assert again <= {("daily", "2026-01-06"), ("small", "2026-W02"), ("weekly", "2026-W02"), ("visits", "arrival-2")}
    assert cube_of(blog, "weekly") == weeks | {
        ("2026-01-05", "FR", 0, 2, 20.0),
        ("2026-01-05", "PL", 0, 1, 100.0),
        ("2026-01-05", None, 0, 1, 20.0),
        ("2026-01-05", None, 1, 4, 40.0),
    }
    assert {row[1:] for row in cube_of(blog, "daily") if row[0] == "2026-01-06"} == {
        ("FR", 0, 1, 30.0),
        ("PL", 0, 1, 100.0),
        (None, 1, 2, 65.0),
    }
    assert sorted(row["visits"] for row in rows_of(blog, "small")) == [1, 4]
    assert made(ok(blog.run(at="2026-01-20"))) == set()
    # The week that one task sums up: once more, and the run dies when it is published.
    failing("published")
    assert blog.run(["small"], at="2026-01-20", again=True, slices=["2026-W02"]).state == "failed"
    ok(blog.run(["small"], at="2026-01-20"))
    assert sorted(row["visits"] for row in rows_of(blog, "small")) == [1, 4]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def weeks_of_days(grid: str = "day", **options: object) -> Pipeline:
    blog = Pipeline("blog", start="2026-01-01")
    blog.source("raw", JsonFiles("landing"), schema="at timestamp", event_time="at")
    blog.sql("daily", "SELECT * FROM raw", event_time="at", grid=grid)
    blog.sql("weekly", "SELECT * FROM daily", event_time="at", grid="week", **options)
    blog.sql("below", "SELECT * FROM weekly", event_time="at", grid="day")
    return blog


def test_a_week_is_made_when_it_is_over_and_all_its_days_are(store: Store) -> None:
    blog = lab(store, weeks_of_days())
    blog.arrive("raw", "2026-01-01", "2026-01-05", "2026-01-11")
    blog.commit("daily", "2026-01-05", {"2026-01-05": 3}, raw=0)
    assert "due at 2026-01-12 00:00 UTC" in blog.states("weekly", "2026-01-11")["2026-W02"].reason
    waiting = blog.states("weekly", "2026-01-12")["2026-W02"]
    assert (waiting.status, waiting.reason) == ("waiting", "not whole yet: daily lacks 2026-01-11")
    for day in ("2026-01-01", "2026-01-11"):
        blog.commit("daily", day, {day: 3}, raw=0)
    assert blog.statuses("weekly", "2026-01-12") == {"2026-W01": "due", "2026-W02": "due"}
    for week in ("2026-W01", "2026-W02"):
        blog.commit("weekly", week, {week: 1}, daily=2)
    assert blog.statuses("weekly", "2026-01-12") == {}
    # A late day: its week, and the days that are made of that week; none from before the start of the pipeline.
    assert set(blog.statuses("below", "2026-01-12")) == {f"2026-01-{n:02}" for n in range(1, 12)}
    blog.commit("daily", "2026-01-11", {"2026-01-11": 1}, raw=1)
    assert blog.statuses("weekly", "2026-01-12") == {"2026-W02": "late"}


def test_a_week_that_lacks_rows_is_told_and_months_do_not_meet_weeks(store: Store) -> None:
    blog = lab(store, weeks_of_days(expect_within="1 day"))
    blog.arrive("raw", "2026-01-07")
    blog.commit("daily", "2026-01-07", {"2026-01-07": 3}, raw=0)
    found = blog.statuses("weekly", "2026-01-25")
    # The pipeline begins within the first week, which is therefore not expected.
    assert found == {"2026-W02": "missing", "2026-W03": "overdue", "2026-W04": "waiting"}
    with pytest.raises(DefinitionError, match="a week may lie in two months"):
        Graph(weeks_of_days("month").datasets)
