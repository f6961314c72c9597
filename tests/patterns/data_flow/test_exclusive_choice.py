"""Exclusive Choice: one branch for each slice, by what is known of it, with the reason on record."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.patterns.delta import rows, version
from tests.pipelines.dying import dying_after_commit
from tests.pipelines.shop import ok
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.errors import ConfigurationError, StepFailed
from lakewright.model.times import utc_now
from lakewright.patterns.data_flow.exclusive_choice import (
    CsvOutput,
    DeltaOutput,
    OutputTypes,
    choose_branch,
    choose_by_schema,
)
from lakewright.pipelines.progress import DatasetDone
from lakewright.pipelines.project import Project
from lakewright.pipelines.status import read_status
from lakewright.testing.plugin import write_files

WIDTH = {"legacy": lambda schema: len(schema) < 3, "new": lambda schema: len(schema) >= 3}


@pytest.mark.shows("06.exclusive-choice", 4)
def test_what_is_not_one_of_the_branches_is_refused_with_their_names() -> None:
    branches = {"old": 1, "new": 2}
    assert choose_branch("new", branches) == 2
    for wrong in (None, "newest", ["old", "new"], 3):
        with pytest.raises(ConfigurationError, match=r"old, new\. None of them has run"):
            choose_branch(wrong, branches)
    with pytest.raises(ConfigurationError, match="at least two branches"):
        choose_by_schema(None, {"legacy": len})  # type: ignore[arg-type, dict-item]


@pytest.mark.shows("06.exclusive-choice", 6)
@pytest.mark.classic_only("counts Spark jobs")
def test_the_columns_decide_without_a_job(spark: SparkSession) -> None:
    two = spark.createDataFrame([("phone", "X1")], "type string, full_name string")
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    assert choose_by_schema(two, WIDTH) == "legacy"
    assert choose_by_schema(two.selectExpr("*", "'7' AS version").schema, WIDTH) == "new"
    with pytest.raises(StepFailed, match="no branch was chosen"):
        choose_by_schema(two, {"a": lambda schema: False, "b": lambda schema: False})
    with pytest.raises(StepFailed, match="one branch is wanted: a, b"):
        choose_by_schema(two, {"a": lambda schema: True, "b": lambda schema: True})
    assert len(tracker.getJobIdsForGroup(None)) == before


@pytest.mark.shows("06.exclusive-choice", 5)
@pytest.mark.parametrize("words", [[], ["--output_type", "avro"], ["--output_type"]])
def test_a_job_without_a_known_output_type_ends_before_spark_starts(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    types = OutputTypes(DeltaOutput, CsvOutput)
    assert types.from_arguments(["--output_type", "csv", "--other", "1"]).name == "csv"
    with pytest.raises(SystemExit) as ended:
        types.from_arguments(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "--output_type" in told
    assert "delta" in told or words == ["--output_type"]


@pytest.mark.shows("06.exclusive-choice", 8)
def test_a_new_output_type_is_a_class_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    class ParquetOutput:
        name: ClassVar[str] = "parquet"
        settings: ClassVar[dict[str, str]] = {}

        def write(self, df: DataFrame, folder: str) -> None:
            df.write.mode("overwrite").parquet(folder)

    before = OutputTypes(DeltaOutput, CsvOutput)
    types = before.with_type(ParquetOutput)
    assert (before.names, types.names) == (("delta", "csv"), ("delta", "csv", "parquet"))
    devices = spark.createDataFrame([("phone", "X1")], "type string, version string")
    for name in types.names:
        for _ in range(2):  # again is the same
            types.named(name).write(devices, str(tmp_path / name))
        found = spark.read.format(name).options(header="true").load(str(tmp_path / name))
        assert rows(found) == [("phone", "X1")]
    assert len(list((tmp_path / "csv").glob("*.csv"))) == 1
    with pytest.raises(ConfigurationError, match="one of delta, csv, not 'parquet'"):
        before.named("parquet")
    with pytest.raises(ConfigurationError, match="are both called 'csv'"):
        types.with_type(type("OtherCsv", (CsvOutput,), {}))


MIGRATION = """
    from lakewright import ByDate, ExclusiveChoice, JsonFiles, Pipeline

    BROKEN = set()
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @shop.dataset(event_time="at")
    def old_visits(raw):
        return raw.selectExpr("at", "visit", "'old' AS made_by")

    @shop.dataset(event_time="at", retries=0)
    def new_visits(raw, run):
        if run.interval.start.day in BROKEN:
            raise ValueError("broken")
        return raw.selectExpr("at", "visit", "'new' AS made_by")

    @shop.dataset(event_time="at")
    def all_visits(old_visits, new_visits):
        return old_visits.unionByName(new_visits)

    shop.choose("migration", ExclusiveChoice(
        by=ByDate("2026-01-02", before="old", after="new"),
        branches={"old": "old_visits", "new": "new_visits"},
    ))
"""


def landing(*days: int) -> str:
    return "".join(f'{{"visit": "v{day}", "at": "2026-01-{day:02d} 10:00:00"}}\n' for day in days)


@pytest.mark.shows("06.exclusive-choice", 1, 2, 3, 7)
def test_the_day_decides_the_other_branch_is_skipped_and_what_reads_both_goes_on(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/shop.py": MIGRATION, "landing/1.json": landing(1, 2, 3)})

    def outcomes(summary) -> dict[str, dict[str, str]]:  # type: ignore[no-untyped-def]
        found: dict[str, dict[str, str]] = {}
        for one in summary.outcomes:
            found.setdefault(one.slice_id, {})[one.dataset] = one.state
        return found

    # The day before the cutoff, the day itself, and the one after, each by a run of its own.
    events: list[object] = []
    first = opened.run(at="2026-01-02", listener=events.append)
    assert outcomes(first)["2026-01-01"] == {"old_visits": "ok", "new_visits": "skipped", "all_visits": "ok"}
    assert any(isinstance(e, DatasetDone) and (e.dataset, e.state) == ("new_visits", "skipped") for e in events)
    assert (first.state, first.skipped, first.closing_line().split(". ", 1)[1]) == (
        "ok", [], "3 ok, 0 warnings, 0 failed, 1 skipped.",
    )  # fmt: skip
    for at, day in (("2026-01-03", "2026-01-02"), ("2026-01-04", "2026-01-03")):
        found = outcomes(opened.run(at=at))[day]
        assert found == {"old_visits": "skipped", "new_visits": "ok", "all_visits": "ok"}
    by_day = "SELECT string(to_date(at)), made_by FROM all_visits"
    made = [("2026-01-01", "old"), ("2026-01-02", "new"), ("2026-01-03", "new")]
    assert rows(opened.sql(by_day)) == made

    # On record, and seen in the plan: neither missing nor stale.
    steps = {(s.dataset, s.state): s.reason for s in opened.store.steps.of_run(first.run_id)}
    reason = "migration chose old: 2026-01-01 is before 2026-01-02"
    assert steps["new_visits", "skipped"] == f"skipped: {reason}"
    assert steps["old_visits", "ok"].endswith(f"; {reason}")
    status = {one.name: (one.state, one.note) for one in read_status(opened.store, utc_now()).datasets}
    skipped = "2026-01-03 skipped: migration chose new: 2026-01-03 is not before 2026-01-02"
    assert status["old_visits"] == ("skipped", skipped)
    plan = opened.plan(at="2026-01-04")
    assert {s.slice.id: s.status for s in plan["old_visits"].states} == {
        "2026-01-02": "skipped", "2026-01-03": "skipped",
    }  # fmt: skip
    assert not plan["old_visits"].to_make
    assert not plan["all_visits"].states

    # Long after the cutoff a day before it is made again, by the branch of its day.
    again = opened.backfill("2026-01-01", "2026-01-02", select=["raw"])
    assert [(o.dataset, o.slice_id) for o in again.made] == [
        ("old_visits", "2026-01-01"), ("all_visits", "2026-01-01"),
    ]  # fmt: skip
    assert opened.store.steps.of_run(again.run_id)[0].reason.endswith(reason)
    assert rows(opened.sql(by_day)) == made

    # The chosen branch fails: what reads both does not run, though the other one was only skipped.
    opened.graph["new_visits"].function.__globals__["BROKEN"].add(4)
    (opened.folder / "landing/4.json").write_text(landing(4))
    before = version(opened.lake.resolve("all_visits"))
    failed = opened.run(at="2026-01-05")
    assert outcomes(failed)["2026-01-04"] == {"old_visits": "skipped", "new_visits": "failed"}
    assert (failed.failed, failed.skipped) == (["new_visits"], ["all_visits"])
    assert version(opened.lake.resolve("all_visits")) == before

    # Mended; its process dies after the commit of the chosen branch, which the next run finds, and goes on with.
    opened.graph["new_visits"].function.__globals__["BROKEN"].clear()
    with dying_after_commit(opened, "new_visits"):
        assert opened.run(at="2026-01-05").skipped == ["all_visits"]
    assert [o.dataset for o in opened.run(at="2026-01-05").made] == ["all_visits"]
    assert rows(opened.sql(by_day)) == [*made, ("2026-01-04", "new")]


DEVICES = """
    from lakewright import BySchema, ExclusiveChoice, ParquetFiles, Pipeline

    BOTH = set()
    devices = Pipeline("devices")
    devices.source("raw_devices", ParquetFiles("landing"))

    @devices.dataset()
    def legacy_devices(raw_devices):
        return raw_devices.select("type", "full_name")

    @devices.dataset()
    def new_devices(raw_devices):
        return raw_devices

    devices.choose("by_columns", ExclusiveChoice(
        by=BySchema("raw_devices", {"legacy": lambda schema: len(schema) < 3,
                                    "new": lambda schema: len(schema) >= 3 or bool(BOTH)}),
        branches={"legacy": "legacy_devices", "new": "new_devices"},
    ))
"""


@pytest.mark.shows("06.exclusive-choice", 4, 6)
def test_recorded_columns_choose_the_table_and_no_spark_is_asked(project, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/devices.py": DEVICES})
    (opened.folder / "landing").mkdir()
    for number, device in enumerate((
        {"type": "phone", "full_name": "X1"}, {"type": "pad", "full_name": "P2", "version": "7"},
    )):  # fmt: skip
        pq.write_table(pa.Table.from_pylist([device]), opened.folder / f"landing/{number}.parquet")
        ok(opened.run(["raw_devices"]))

    # Two branches are named: the run fails with the list, and neither has run.
    both = opened.graph["new_devices"].function.__globals__["BOTH"]
    both.add(1)
    failed = opened.run()
    assert sorted(failed.failed) == ["legacy_devices", "new_devices"]
    assert "['legacy', 'new'] was chosen, and one branch is wanted: legacy, new" in str(failed.errors[0])
    assert not any(opened.lake.log(name).exists() for name in ("legacy_devices", "new_devices"))
    both.clear()

    # The condition alone: without a session it gives the same answer.
    def no_spark(self: Project) -> SparkSession:
        raise AssertionError("a condition reads no rows")

    with monkeypatch.context() as patched:
        patched.setattr(Project, "spark", no_spark)
        with Project(opened.folder) as other:
            plan = other.plan()
    assert {s.slice.id: s.status for s in plan["legacy_devices"].states} == {"arrival-1": "due", "arrival-2": "skipped"}
    assert {s.slice.id: s.status for s in plan["new_devices"].states} == {"arrival-1": "skipped", "arrival-2": "due"}
    assert (
        plan["new_devices"]
        .to_make[0]
        .reason.endswith("by_columns chose new: raw_devices has 3 columns (type, full_name, version)")
    )
    ok(opened.run())
    assert rows(opened.sql("SELECT type FROM legacy_devices")) == [("phone",)]
    assert rows(opened.sql("SELECT type, version FROM new_devices")) == [("pad", "7")]
    # Made again, each stays with its branch.
    again = {(o.dataset, o.slice_id) for o in opened.run(again=True).made}
    assert again == {("legacy_devices", "arrival-1"), ("new_devices", "arrival-2")}


FORMATS = """
    from lakewright import ByParameter, ExclusiveChoice, JsonFiles, Pipeline

    devices = Pipeline("devices", parameters={"output_type": ["delta", "csv"]})
    devices.source("raw_devices", JsonFiles("landing"), schema="type string")

    def step(raw_devices):
        return raw_devices

    for name in ("delta", "csv"):
        devices.add(step, name=f"devices_{name}")
    devices.choose("load_format", ExclusiveChoice(
        by=ByParameter("output_type"), branches={"delta": "devices_delta", "csv": "devices_csv"}))
"""


@pytest.mark.shows("06.exclusive-choice", 5)
@pytest.mark.parametrize("words", [[], ["--param", "output_type=avro"], ["--param", "format=csv"]])
@pytest.mark.parametrize("command", [["run"], ["backfill", "--from", "2026-01-01"], ["plan"]])
def test_a_run_without_a_known_parameter_is_refused_before_spark_starts(
    words: list[str], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(self: Project) -> SparkSession:
        raise AssertionError("nothing was to be started")

    monkeypatch.setattr(Project, "spark", no_spark)
    write_files(tmp_path, {"lakewright.toml": 'name = "devices"\n', "pipelines/devices.py": FORMATS})
    result = CliRunner().invoke(app, [*command, *words, "--project", str(tmp_path)])
    assert result.exit_code == 2
    assert ("delta or csv" in result.stderr) or ("Known: output_type" in result.stderr)
    assert not (tmp_path / ".lakewright/lake").exists()


@pytest.mark.shows("06.exclusive-choice", 7)
def test_the_parameter_of_a_run_is_on_record_and_a_repeat_takes_the_same_branch(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/devices.py": FORMATS, "landing/1.json": '{"type": "phone"}\n'})
    first = opened.run(parameters={"output_type": "csv"})
    assert [o.dataset for o in first.made] == ["raw_devices", "devices_csv"]
    record = opened.store.runs.get(first.run_id)
    assert record.options["parameters"] == {"output_type": "csv"}
    told = {s.dataset: s.reason for s in opened.store.steps.of_run(first.run_id)}
    assert told["devices_delta"] == "skipped: load_format chose csv: output_type = csv"
    assert told["devices_csv"].endswith("load_format chose csv: output_type = csv")
    again = opened.run(again=True, parameters={"output_type": "csv"})
    assert [o.dataset for o in again.made] == ["devices_csv"]
