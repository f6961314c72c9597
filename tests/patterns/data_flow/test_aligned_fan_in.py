"""Aligned Fan-In: branches by name, and a child only when every branch has succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.patterns.delta import live_files, rows, version
from tests.pipelines.dying import dying_after_commit
from tests.pipelines.lab import lab

from lakewright import JsonFiles, Pipeline
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError
from lakewright.patterns.data_flow.aligned_fan_in import join_aligned, union_aligned
from lakewright.pipelines.progress import DatasetDone
from lakewright.store import open_store


@pytest.mark.shows("06.aligned-fan-in", 5)
def test_values_stay_under_their_names_and_what_does_not_fit_is_named(spark: SparkSession) -> None:
    one = spark.createDataFrame([("v1", "/a", 1)], "visit string, page string, at int")
    two = spark.createDataFrame([(2, "/b", "v2")], "at int, page string, visit string")
    assert rows(union_aligned({"one": one, "two": two})) == [("v1", "/a", 1), ("v2", "/b", 2)]
    assert union_aligned({"one": one, "two": one}).count() == 2
    with pytest.raises(MissingColumnsError, match=r"branch 'two'.*no column page"):
        union_aligned({"one": one, "two": two.drop("page")})
    with pytest.raises(MissingColumnsError, match=r"branch 'one'.*no column more"):
        union_aligned({"one": one, "two": two.selectExpr("*", "1 AS more")})
    with pytest.raises(SchemaChangeError, match="column at is int in branch 'one' and string in 'two'"):
        union_aligned({"one": one, "two": two.selectExpr("visit", "page", "string(at) AS at")})
    filled = union_aligned({"one": one, "two": two.drop("page")}, allow_missing=True)
    assert rows(filled) == [("v1", "/a", 1), ("v2", None, 2)]
    with pytest.raises(ConfigurationError, match="no branch"):
        union_aligned({})


@pytest.mark.shows("06.aligned-fan-in", 8)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_key_that_would_multiply_rows_is_refused_unless_it_is_meant(spark: SparkSession, side: str) -> None:
    visits = spark.createDataFrame([("FR", 7), ("PL", 1), (None, 1), (None, 2)], "country string, visits int")
    users = spark.createDataFrame([("FR", 2), ("FR", 3)], "country string, users int")
    pair = (users, visits) if side == "left" else (visits, users)
    with pytest.raises(InputError, match=rf"{side} side.*country='FR'\) 2 times"):
        join_aligned(*pair, keys=["country"])
    assert join_aligned(*pair, keys=["country"], multiplying="allow").count() == 2
    both = join_aligned(visits, users.limit(1), keys=["country"], how="left")
    assert both.count() == 4
    with pytest.raises(MissingColumnsError, match="right side"):
        join_aligned(visits, users, keys=["visits"])
    with pytest.raises(ConfigurationError, match="both sides have a column users"):
        join_aligned(users.withColumnRenamed("users", "Users"), users, keys=["country"])


DAY = """
    from lakewright import JsonFiles, Pipeline

    BROKEN = set()
    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @trend.dataset(event_time="hour", grid="hour", rows="reduce", retries=0)
    def hourly(raw, run):
        if run.interval.start.hour in BROKEN:
            raise ValueError(f"hour {run.interval.start:%H} is broken")
        return raw.selectExpr("date_trunc('hour', at) AS hour").groupBy("hour").count()

    @trend.dataset(event_time="day", layer="gold", rows="reduce")
    def daily(hourly):
        return hourly.selectExpr("to_date(hour) AS day", "count").groupBy("day").sum("count").toDF("day", "visits")
"""


def landing(day: int, *, first: int = 0) -> str:
    """Hour h has h + 1 visits: 300 in a day, 90 in its last four hours."""
    lines = [
        f'{{"visit": "v{hour}-{n}", "at": "2026-01-{day:02d} {hour:02d}:10:00"}}'
        for hour in range(first, 24)
        for n in range(hour + 1)
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def trend(project):  # type: ignore[no-untyped-def]
    return project({"pipelines/trend.py": DAY, "landing/1.json": landing(1)})


def totals(opened) -> list[tuple[object, ...]]:  # type: ignore[no-untyped-def]
    return rows(opened.sql("SELECT string(day), visits FROM daily"))


@pytest.mark.shows("06.aligned-fan-in", 4)
def test_of_24_hourly_runs_each_makes_its_hour_and_the_last_one_the_day(tmp_path: Path) -> None:
    hours = [f"2026-01-01T{hour:02d}" for hour in range(24)]
    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")
    trend.add(lambda raw: raw, name="hourly", event_time="hour", grid="hour")
    trend.add(lambda hourly: hourly, name="daily", event_time="day")
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        told = lab(store, trend)
        told.arrive("raw", *hours)
        for hour, after in zip(hours, [*hours[1:], "2026-01-02T00"], strict=True):
            assert [one for _, one in told.turns("hourly", f"{after}:00")] == [hour]
            told.commit("hourly", hour, {hour: 1}, raw=0)
            days = [one for _, one in told.turns("daily", f"{after}:00")]
            assert days == (["2026-01-01"] if hour == hours[-1] else [])


@pytest.mark.shows("06.aligned-fan-in", 1, 2, 3, 4, 6)
def test_a_day_is_made_of_its_hours_all_at_once_or_one_by_one(trend) -> None:  # type: ignore[no-untyped-def]
    opened = trend
    broken = opened.graph["hourly"].function.__globals__["BROKEN"]

    # Hour 23 fails: 23 hours are made, at most four at a time, and the day is not.
    broken.add(23)
    failed = opened.run(at="2026-01-02", parallel=4)
    assert (failed.state, failed.skipped) == ("failed", ["daily"])
    assert len([o for o in failed.made if o.dataset == "hourly"]) == 23
    assert 1 < most_at_once(opened, failed.run_id) <= 4
    assert not opened.lake.log("daily").exists()

    # Asked for alone, the day still waits for its hour.
    assert opened.run(["daily"], at="2026-01-02").made == []

    # Fixed: only hour 23 and the day.
    broken.clear()
    fixed = opened.run(at="2026-01-02")
    assert [(o.dataset, o.slice_id) for o in fixed.made] == [("hourly", "2026-01-01T23"), ("daily", "2026-01-01")]
    assert totals(opened) == [("2026-01-01", 300)]
    assert rows(opened.sql("SELECT sum(count) FROM hourly")) == [(300,)]

    # The next day beside it, a short one, hour by hour: each run makes its hour, the last the day.
    (opened.folder / "landing/2.json").write_text(landing(2, first=20))
    before = version(opened.lake.resolve("daily"))
    times = ("2026-01-02T21:00", "2026-01-02T22:00", "2026-01-02T23:00", "2026-01-03T00:00")
    made = [[o.dataset for o in opened.run(at=at, parallel=4).made] for at in times[:3]]
    assert made == [["raw", "hourly"], ["hourly"], ["hourly"]]
    # The last hour's process dies after its commit: the day waits for the next run, which finds the hour in the log.
    with dying_after_commit(opened, "hourly"):
        assert opened.run(at=times[3]).skipped == ["daily"]
    assert [o.dataset for o in opened.run(at=times[3]).made] == ["daily"]
    assert version(opened.lake.resolve("daily")) == before + 1
    one_by_one = totals(opened)
    assert one_by_one == [("2026-01-01", 300), ("2026-01-02", 90)]

    # Repeated from the start, all at once: the same, no row twice, and the other day's files stay.
    first = [f for f, at in live_files(opened.lake.resolve("hourly")).items() if at["_lw_event"] < "2026-01-02"]
    again = opened.backfill("2026-01-02", "2026-01-03", select=["hourly"])
    assert [o.dataset for o in again.made] == [*["hourly"] * 4, "daily"]
    assert totals(opened) == one_by_one
    assert rows(opened.sql("SELECT sum(count) FROM hourly")) == [(390,)]
    assert set(first) <= set(live_files(opened.lake.resolve("hourly")))


def visits(hour: int, count: int) -> str:
    return "".join(f'{{"visit": "v{n}", "at": "2026-01-01 {hour:02d}:10:00"}}\n' for n in range(count))


@pytest.mark.shows("06.aligned-fan-in", 7)
def test_a_missing_hour_fails_after_its_limit_and_the_day_waits_for_it(project) -> None:  # type: ignore[no-untyped-def]
    expecting = DAY.replace('start="2026-01-01"', 'start="2026-01-01T21:00"')
    expecting = expecting.replace("retries=0", 'retries=0, expect_within="1 hour"')
    opened = project(
        {"pipelines/trend.py": expecting, "landing/21.json": visits(21, 1), "landing/23.json": visits(23, 3)}
    )
    # Before the limit, hour 22 holds up nobody but the day.
    assert opened.run(at="2026-01-01T23:59").state == "ok"
    assert opened.plan(at="2026-01-01T23:59")["hourly"].states[0].reason == (
        "nothing has arrived in raw yet; fails at 2026-01-02 00:00 UTC"
    )

    # After it: hour 22 fails by its name, hour 23 is made, the day is marked and nothing of it is published.
    events: list[object] = []
    failed = opened.run(at="2026-01-02", listener=events.append)
    assert (failed.failed, failed.skipped) == (["hourly"], ["daily"])
    assert DatasetDone("daily", "skipped", "hourly did not succeed") in events
    assert {o.slice_id: o.state for o in failed.outcomes} == {"2026-01-01T22": "refused", "2026-01-01T23": "ok"}
    assert isinstance(failed.errors[0], InputError)
    assert "nothing has arrived in raw for 2026-01-01, hour 22" in str(failed.errors[0])
    assert "Deliver it and run again; or" in str(failed.errors[0])
    assert not opened.lake.log("daily").exists()
    assert opened.run(["daily"], at="2026-01-02").made == []

    # Delivered: the run goes on.
    (opened.folder / "landing/22.json").write_text(visits(22, 2))
    fixed = opened.run(at="2026-01-02")
    assert [o.slice_id for o in fixed.made] == ["arrival-2", "2026-01-01T22", "2026-01-01"]
    assert totals(opened) == [("2026-01-01", 6)]

    # The first hour of the next day never comes: accepted as empty, it is expected no more, and taken in if it comes.
    assert opened.run(at="2026-01-02T02:00").failed == ["hourly"]
    accepted = opened.backfill("2026-01-02T00:00", "2026-01-02T01:00", select=["hourly"], at="2026-01-02T02:00")
    assert [(o.dataset, o.slice_id) for o in accepted.made] == [("hourly", "2026-01-02T00")]
    receipt = opened.store.receipts.live("hourly", "2026-01-02T00")
    assert (receipt.rows, dict(receipt.touched)) == (0, {})
    assert opened.run(at="2026-01-02T02:00").state == "ok"
    (opened.folder / "landing/24.json").write_text(visits(0, 1).replace("2026-01-01", "2026-01-02"))
    assert [o.slice_id for o in opened.run(at="2026-01-02T02:00").made] == ["arrival-3", "2026-01-02T00"]


def most_at_once(opened, run_id: str) -> int:  # type: ignore[no-untyped-def]
    steps = [step for step in opened.store.steps.of_run(run_id) if step.dataset == "hourly"]
    return max(sum(other.started_at <= step.started_at < other.ended_at for other in steps) for step in steps)
