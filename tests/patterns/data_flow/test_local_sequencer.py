"""Local Sequencer: steps in order, nothing after a failure, and a repeat goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.patterns.delta import rows, version
from tests.processes import killed

from lakewright.errors import ConfigurationError, DefinitionError, StepFailed
from lakewright.patterns.data_flow.local_sequencer import Step, run_in_sequence


def visits(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("v1", 3), ("v2", -1)], "visit string, pages int")


def keep_read(df: DataFrame) -> DataFrame:
    return df.where("pages > 0")


def add_minutes(df: DataFrame) -> DataFrame:
    return df.selectExpr("*", "pages * 2 AS minutes")


def fail(df: DataFrame) -> DataFrame:
    raise ValueError("no network")


@pytest.mark.shows("06.local-sequencer", 3)
def test_a_repeat_goes_on_from_the_cut_and_gives_it_no_new_version(spark: SparkSession, lake_folder: Path) -> None:
    cut, calls = str(lake_folder / "cut"), []

    def costly(df: DataFrame) -> DataFrame:
        calls.append(1)
        return keep_read(df)

    first = Step("costly", costly, cut=cut)
    with pytest.raises(StepFailed, match=r"step 'final' \(2 of 2\) failed.*no network"):
        run_in_sequence(visits(spark), steps=[first, Step("final", fail)], run="2026-01-05")
    assert version(cut) == 0
    done = run_in_sequence(visits(spark), steps=[first, Step("final", add_minutes)], run="2026-01-05")
    assert rows(done) == [("v1", 3, 6)]
    assert (version(cut), len(calls)) == (0, 1)
    run_in_sequence(visits(spark), steps=[first, Step("final", add_minutes)], run="2026-01-06")
    assert (version(cut), len(calls)) == (1, 2)
    again = run_in_sequence(visits(spark).limit(0), steps=[first, Step("final", add_minutes)], run="2026-01-05")
    assert rows(again) == [("v1", 3, 6)]
    assert len(calls) == 2


def test_wrong_steps_are_refused_and_a_step_without_a_result_is_named(spark: SparkSession) -> None:
    for steps, word in [
        ([], "empty"),
        ([Step("a", keep_read), Step("a", add_minutes)], "name 'a'"),
        ([Step("a", keep_read, cut="x"), Step("b", add_minutes, cut="x")], "cut 'x'"),
    ]:
        with pytest.raises(ConfigurationError, match=word):
            run_in_sequence(visits(spark), steps=steps, run="r")
    with pytest.warns(UserWarning, match="step 'a' is costly and keeps nothing"):
        run_in_sequence(
            visits(spark), steps=[Step("a", keep_read, costly=True), Step("b", add_minutes, costly=True)], run="r"
        )
    with pytest.raises(StepFailed, match=r"step 'a' \(1 of 1\) returned NoneType"):
        run_in_sequence(visits(spark), steps=[Step("a", lambda df: None)], run="r")  # type: ignore[arg-type, return-value]


SEQUENCE = """
    from lakewright import JsonFiles, Pipeline

    FAILURES = []
    CALLS = []
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("wait", JsonFiles("landing"), schema="visit string, pages int, at timestamp", event_time="at")

    @shop.dataset(event_time="at", retries=2)
    def load(wait):
        CALLS.append("load")
        if FAILURES:
            raise FAILURES.pop()
        return wait.where("pages > 0")

    @shop.dataset(event_time="at", layer="gold")
    def expose(load):
        CALLS.append("expose")
        return load.selectExpr("*", "pages * 2 AS minutes")
"""
LINE = '{{"visit": "v{0}", "pages": {0}, "at": "2026-01-0{0} 10:00:00"}}\n'


def log_of(opened) -> list[tuple[str, str, int]]:  # type: ignore[no-untyped-def]
    run = opened.store.runs.latest(limit=1)[0]
    return [(step.dataset, step.state, step.attempt) for step in opened.store.steps.of_run(run.run_id)]


@pytest.mark.shows("06.local-sequencer", 1, 2, 4, 8)
def test_a_pipeline_is_a_sequence_that_stops_resumes_and_is_repeated_in_part(project, spark: SparkSession) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/shop.py": SEQUENCE, "landing/1.json": LINE.format(1)})
    failures = opened.graph["load"].function.__globals__["FAILURES"]

    # Two failures that pass by themselves: wait once, load three times, expose once and last.
    failures[:] = [ConnectionError("reset"), ConnectionError("reset")]
    assert opened.run(at="2026-01-02").state == "ok"
    assert log_of(opened) == [
        ("wait", "ok", 1), ("load", "failed", 1), ("load", "failed", 2), ("load", "ok", 3), ("expose", "ok", 1),
    ]  # fmt: skip
    exposed = opened.show("expose").collect()

    # The same logic as one job gives the same rows.
    raw = spark.read.schema("visit string, pages int, at timestamp").json(f"{opened.folder}/landing")
    one_job = run_in_sequence(raw, steps=[Step("load", keep_read), Step("expose", add_minutes)], run="r")
    assert rows(opened.show("expose").select(*one_job.columns)) == rows(one_job)

    # Load fails for good: expose does not run, and readers see what they saw before.
    (opened.folder / "landing/2.json").write_text(LINE.format(2))
    failures[:] = [ValueError("broken")]
    failed = opened.run(at="2026-01-03")
    assert (failed.state, failed.skipped) == ("failed", ["expose"])
    assert log_of(opened) == [("wait", "ok", 1), ("load", "failed", 1)]
    assert opened.show("expose").collect() == exposed

    # The next run goes on from the failed step.
    assert opened.retry().state == "ok"
    assert [step[0] for step in log_of(opened)] == ["load", "expose"]
    assert opened.show("expose").count() == 2

    # A backfill from load on does not touch wait, and changes no number.
    before = version(opened.lake.resolve("wait"))
    assert opened.backfill("2026-01-01", "2026-01-03", select=["load"]).state == "ok"
    assert sorted(step[0] for step in log_of(opened)) == ["expose", "expose", "load", "load"]
    assert version(opened.lake.resolve("wait")) == before
    assert opened.show("expose").count() == 2


@pytest.mark.shows("06.local-sequencer", 6)
def test_files_that_vanish_after_they_were_recorded_are_looked_for_again(project) -> None:  # type: ignore[no-untyped-def]
    from lakewright.failpoints import arm

    opened = project({"pipelines/shop.py": SEQUENCE, "landing/1.json": LINE.format(1)})
    arm({"LAKEWRIGHT_FAILPOINT": "leased", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        assert opened.run(at="2026-01-02").state == "failed"
    finally:
        arm({})
    (opened.folder / "landing/1.json").rename(opened.folder / "away.json")
    failed = opened.run(at="2026-01-02")
    assert failed.state in ("failed", "refused")
    assert "1.json" in str(failed.errors[0])
    assert failed.skipped == ["load", "expose"]
    assert not opened.lake.log("load").exists()
    (opened.folder / "away.json").rename(opened.folder / "landing/1.json")
    assert opened.run(at="2026-01-02").state == "ok"
    assert opened.show("expose").count() == 1


@pytest.mark.shows("06.local-sequencer", 7)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("@shop.dataset()\ndef one(two): return two\n@shop.dataset()\ndef two(one): return one\n", "one.*two"),
        ("@shop.dataset()\ndef wait(load): return load\n", "'wait' is declared twice"),
        ("@shop.dataset()\ndef other(laod): return laod\n", "other reads 'laod'.*Did you mean 'load'"),
    ],
)
def test_a_cycle_a_name_given_twice_and_an_unknown_one_are_refused_before_anything_runs(
    project,
    more: str,
    words: str,  # type: ignore[no-untyped-def]
) -> None:
    import textwrap

    opened = project({"pipelines/shop.py": textwrap.dedent(SEQUENCE) + more, "landing/1.json": LINE.format(1)})
    with pytest.raises(DefinitionError, match=words):
        opened.run(at="2026-01-02")
    assert opened.store.runs.latest() == []


UNIT = """
    from lakewright import DataOverwrite, JsonFiles, Pipeline, PrivateOutput

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="visit string, pages int, at timestamp", event_time="at")

    @shop.dataset(event_time="at", outputs={"data": PrivateOutput(DataOverwrite())}, rows="reduce")
    def state(raw):
        last = raw.groupBy().agg({"at": "max"}).toDF("at")
        return {"data": raw, "state": last}
"""
RUN = """
import sys
from lakewright import Project
with Project(sys.argv[1]) as project:
    project.run(at="2026-01-02")
"""


@pytest.mark.shows("06.local-sequencer", 5)
def test_a_unit_killed_between_data_and_state_is_repeated_as_a_whole(project, connect_url: str) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/shop.py": UNIT, "landing/1.json": LINE.format(1)})
    killed(opened.folder, "-c", RUN, str(opened.folder), failpoint="private_written", master=connect_url)
    opened.graph  # noqa: B018  (declares the names)
    assert opened.lake.log("data").exists()
    assert not opened.lake.log("state").exists()
    assert opened.run(at="2026-01-02").state == "ok"
    assert opened.show("data").count() == opened.show("state").count() == 1
    assert opened.run(at="2026-01-02").made == []
