"""Unaligned Fan-In: what succeeded is put together, and everybody is told what is missing."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from tests.patterns.delta import rows, version

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.completeness import Completeness, measure_completeness
from lakewright.model.times import utc_now
from lakewright.patterns.data_flow.unaligned_fan_in import AtLeast, collect_outcomes, union_unaligned
from lakewright.pipelines.progress import DatasetDone
from lakewright.pipelines.status import read_status


@pytest.mark.shows("06.unaligned-fan-in", 6)
def test_a_branch_that_throws_is_false_and_the_others_are_still_processed(spark: SparkSession) -> None:
    def hour(number: int):  # type: ignore[no-untyped-def]
        if number == 1:
            raise ValueError("hour 01 is broken")
        return spark.createDataFrame([(number, f"v{number}")], "hour int, visit string")

    outcomes = collect_outcomes({f"{n:02d}": lambda n=n: hour(n) for n in range(3)})  # type: ignore[misc]
    assert {name: bool(one) for name, one in outcomes.items()} == {"00": True, "01": False, "02": True}
    assert str(outcomes["01"].error) == "hour 01 is broken"
    assert rows(union_unaligned(outcomes)) == [(0, "v0", True), (2, "v2", True)]
    # A branch of another day is left out; without the broken one nothing is missing.
    outcomes["99"] = outcomes["00"]
    assert rows(union_unaligned(outcomes, expected=["00", "02"], flag="partial")) == [
        (0, "v0", False), (2, "v2", False),
    ]  # fmt: skip
    # The rule is not met: an error that names the first failure, or the fallback.
    with pytest.raises(InputError, match=r"2 of 3 parts.*at least 3 parts.*01 \(ValueError: hour 01 is broken\)"):
        union_unaligned(outcomes, expected=["00", "01", "02"], rule=AtLeast(3))
    nothing = union_unaligned(
        collect_outcomes({"00": lambda: 1 // 0}), fallback=lambda found: spark.range(found.present)
    )
    assert nothing.count() == 0
    with pytest.raises(ConfigurationError, match="already have a column visit"):
        union_unaligned(outcomes, flag="Visit")
    with pytest.raises(ConfigurationError, match="which is no DataFrame"):
        union_unaligned(collect_outcomes({"00": lambda: 3}))
    with pytest.raises(ConfigurationError, match="no branch to run"):
        collect_outcomes({})


@pytest.mark.shows("06.unaligned-fan-in", 7)
def test_hours_that_there_are_not_do_not_count_and_more_than_there_can_be_is_an_error(spark: SparkSession) -> None:
    raw = [*range(20), 19, 24, -1, 25]  # what a raw table holds: an hour twice, and hours that there are not
    found = measure_completeness(raw, expected=range(24))
    assert (found.present, found.share, found.missing) == (20, 20 / 24, ("20", "21", "22", "23"))
    with pytest.raises(InputError, match="25 parts are there, and 24 are expected"):
        measure_completeness(range(25), expected=24)
    frame = spark.range(1)
    outcomes = collect_outcomes({str(n): frame for n in range(3)})
    with pytest.raises(InputError, match="not taken as complete"):
        union_unaligned(outcomes, expected=2)
    with pytest.raises(InputError, match="at least one"):
        Completeness(0, 0)


CUBE = """
    from lakewright import AtLeast, FileNotifier, JsonFiles, Pipeline, ReadinessMarker, UnalignedFanIn

    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @trend.dataset(event_time="day", layer="gold", rows="reduce",
                   marker=ReadinessMarker(flag_file="COMPLETED", notify=(FileNotifier("notices.jsonl"),)),
                   fan_in=UnalignedFanIn(rule=AtLeast(18), parts="hour"))
    def cube(raw):
        return raw.selectExpr("to_date(at) AS day", "hour(at) AS hour").groupBy("day", "hour").count()
"""


def visits(day: int, *hours: int) -> str:
    return "".join(f'{{"visit": "v{hour}", "at": "2026-01-{day:02d} {hour:02d}:10:00"}}\n' for hour in hours)


@pytest.mark.shows("06.unaligned-fan-in", 1, 2, 3)
def test_a_day_of_18_hours_is_public_with_a_flag_and_whole_when_the_others_come(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/trend.py": CUBE, "landing/1.json": visits(1, *range(18)) + visits(2, 0)})
    flag = opened.folder / ".lakewright/lake/_ready/cube/2026-01-01/COMPLETED"
    notices = opened.folder / "notices.jsonl"

    def told() -> list[str]:
        return [json.loads(line)["message"] for line in notices.read_text().splitlines()]

    def completeness() -> list[tuple[object, ...]]:
        listed = "slice, present, share, array_join(missing, ' '), state, is_public"
        return rows(opened.sql(f"SELECT {listed} FROM completeness WHERE dataset = 'cube'"))

    first = opened.run(at="2026-01-02")
    assert [(o.dataset, o.slice_id) for o in first.made] == [("raw", "arrival-1"), ("cube", "2026-01-01")]
    assert rows(opened.sql("SELECT hour, is_approximate FROM cube")) == sorted(
        ((hour, True) for hour in range(18)), key=str
    )
    missing = " ".join(f"2026-01-01T{hour}" for hour in range(18, 24))
    assert completeness() == [("2026-01-01", 18, 0.75, missing, "live", True)]
    assert len(told()) == 1
    assert "cube 2026-01-01 was published in part: 18 of 24 parts are there (75 %)" in told()[0]
    assert [f.message for f in opened.store.findings.latest("cube") if f.subject == "completeness"] == told()
    assert not flag.exists()
    assert opened.ready("cube", "2026-01-01").reason.startswith("it is partial: 18 of 24 parts are there (75 %)")

    status = {one.name: one.note for one in read_status(opened.store, utc_now()).datasets}
    assert status["cube"].startswith("2026-01-01 is partial: 18 of 24 parts are there")

    # The same state again: nothing to do, nothing to tell.
    assert opened.run(at="2026-01-02").made == []
    assert len(told()) == 1

    # The six hours come, and the day is made of all.
    (opened.folder / "landing/2.json").write_text(visits(1, *range(18, 24)))
    second = opened.run(at="2026-01-02")
    assert [o.slice_id for o in second.made] == ["arrival-2", "2026-01-01"]
    query = "SELECT count(*), count(DISTINCT day, hour), any(is_approximate) FROM cube"
    assert rows(opened.sql(query)) == [(24, 24, False)]
    assert completeness() == [
        ("2026-01-01", 18, 0.75, missing, "superseded", True),
        ("2026-01-01", 24, 1.0, "", "live", True),
    ]
    assert flag.exists()
    assert opened.ready("cube", "2026-01-01").ready
    assert len(told()) == 2
    assert "cube 2026-01-01 was partial since" in told()[1]

    # The logs alone tell the same.
    opened.rebuild_store()
    assert len(completeness()) == 2


STEPS = """
    from lakewright import JsonFiles, Pipeline, UnalignedFanIn

    BROKEN, CALLED = set(), []
    trend = Pipeline("trend", start="2026-01-01")
    trend.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @trend.dataset(event_time="hour", grid="hour", rows="reduce", retries=0)
    def hourly(raw, run):
        if run.interval.start.hour in BROKEN:
            raise ValueError(f"hour {run.interval.start:%H} is broken")
        return raw.selectExpr("date_trunc('hour', at) AS hour").groupBy("hour").count()

    @trend.dataset(event_time="day", layer="gold", rows="reduce", fan_in=UnalignedFanIn(fallback=CALLED.append))
    def daily(hourly):
        return hourly.selectExpr("to_date(hour) AS day", "count").groupBy("day").sum("count").toDF("day", "visits")
"""


@pytest.mark.shows("06.unaligned-fan-in", 4)
def test_failed_hours_do_not_stop_the_day_and_without_any_the_fallback_runs_once(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/trend.py": STEPS, "landing/1.json": visits(1, 5, 6, 7)})
    known = opened.graph["hourly"].function.__globals__

    # Hour 05 fails: the run says so, and the day is made of the other two in the same run.
    known["BROKEN"].add(5)
    first = opened.run(at="2026-01-02")
    assert (first.state, first.failed, first.skipped) == ("failed", ["hourly"], [])
    assert [o.slice_id for o in first.made if o.dataset == "daily"] == ["2026-01-01"]
    assert rows(opened.sql("SELECT visits, is_approximate FROM daily")) == [(2, True)]

    # Repaired: only that hour, and the day from all three.
    known["BROKEN"].clear()
    fixed = opened.run(at="2026-01-02")
    assert [(o.dataset, o.slice_id) for o in fixed.made] == [("hourly", "2026-01-01T05"), ("daily", "2026-01-01")]
    assert rows(opened.sql("SELECT visits, is_approximate FROM daily")) == [(3, True)]

    # No hour of the next day succeeds: the step is not called, the fallback is, once, and the table stays as it is.
    known["BROKEN"].add(9)
    (opened.folder / "landing/2.json").write_text(visits(2, 9))
    before, events = version(opened.lake.resolve("daily")), list[object]()
    none = opened.run(at="2026-01-03", listener=events.append)
    assert [(o.slice_id, o.state) for o in none.outcomes if o.dataset == "daily"] == [("2026-01-02", "skipped")]
    assert any(isinstance(e, DatasetDone) and (e.dataset, e.state) == ("daily", "skipped") for e in events)
    assert opened.run(at="2026-01-03").failed == ["hourly"]
    assert [(report.dataset, report.slice_id, report.completeness.present) for report in known["CALLED"]] == [
        ("daily", "2026-01-02", 0)
    ]
    step = next(s for s in opened.store.steps.of_run(none.run_id) if s.dataset == "daily")
    assert (step.state, step.reason.split(",")[0]) == ("skipped", "unmet: 0 of 24 parts are there (0 %)")
    assert version(opened.lake.resolve("daily")) == before
    assert "daily 2026-01-02 was not made" in opened.store.findings.latest("daily")[0].message
