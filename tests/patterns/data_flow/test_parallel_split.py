"""Parallel Split: the input is computed once, and each branch lives, fails and is repeated alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.counting import computed, count_computed
from tests.patterns.delta import rows, table, version

from lakewright.errors import ConfigurationError, TargetError
from lakewright.patterns.data_flow import parallel_split
from lakewright.patterns.data_flow.aligned_fan_in import join_aligned, union_aligned
from lakewright.patterns.data_flow.local_sequencer import Step, run_in_sequence
from lakewright.patterns.data_flow.parallel_split import DeltaBranch, FilesBranch, run_branches

SCHEMA = "type string, full_name string, version string"


def devices(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("phone", "X", "1"), ("watch", "W", "2")], SCHEMA)


def enrich(df: DataFrame) -> DataFrame:
    return df.withColumn("full_name", F.concat_ws(" ", "full_name", "version"))


def fail(df: DataFrame) -> DataFrame:
    raise ValueError("no such place")


def statuses(report: parallel_split.SplitReport) -> dict[str, str]:
    return {name: outcome.status for name, outcome in report.branches.items()}


@pytest.mark.shows("06.parallel-split", 1)
@pytest.mark.parametrize("broken", [False, True])
def test_the_source_is_computed_once_and_the_cache_released(spark: SparkSession, tmp_path: Path, broken: bool) -> None:
    source = count_computed(devices(spark), "type", tmp_path / "read")
    branches = {
        "raw": DeltaBranch(f"{tmp_path}/raw"),
        "enriched": DeltaBranch(f"{tmp_path}/enriched", transform=fail if broken else enrich),
    }
    report = run_branches(source, branches=branches, job="devices", batch=1)
    assert report.rows == 2
    assert statuses(report) == {"raw": "written", "enriched": "failed" if broken else "written"}
    assert computed(tmp_path / "read") == 2
    assert not source.is_cached
    assert not source.storageLevel.useMemory


@pytest.mark.shows("06.parallel-split", 2, 7)
def test_a_batch_is_written_once_and_an_older_one_never_passes_for_a_success(
    spark: SparkSession, tmp_path: Path
) -> None:
    branches = {"raw": DeltaBranch(f"{tmp_path}/raw"), "new": DeltaBranch(f"{tmp_path}/new", transform=enrich)}
    found = [statuses(run_branches(devices(spark), branches=branches, job="devices", batch=7)) for _ in range(3)]
    assert found == [{"raw": "written", "new": "written"}] + [{"raw": "skipped", "new": "skipped"}] * 2
    assert [row[0] for row in table(spark, tmp_path / "raw")] == ["phone", "watch"]
    assert [row[1] for row in table(spark, tmp_path / "new")] == ["W 2", "X 1"][::-1]
    late = run_branches(devices(spark), branches=branches, job="devices", batch=3)
    assert statuses(late) == {"raw": "failed", "new": "failed"}
    assert "skipped, version 3 <= last committed 7" in late.branches["raw"].detail
    with pytest.raises(TargetError, match="2 of 2 branches failed"):
        late.raise_failures()
    assert version(tmp_path / "raw") == 0


@pytest.mark.shows("06.parallel-split", 3)
def test_after_a_crash_the_branch_that_was_written_is_skipped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(df: DataFrame) -> DataFrame:
        raise KeyboardInterrupt

    both = {"one": DeltaBranch(f"{tmp_path}/one"), "two": DeltaBranch(f"{tmp_path}/two", transform=crash)}
    source = devices(spark)
    with pytest.raises(KeyboardInterrupt):
        run_branches(source, branches=both, job="devices", batch=1, parallel=1)
    assert not source.is_cached
    again = run_branches(source, branches={**both, "two": DeltaBranch(f"{tmp_path}/two")}, job="devices", batch=1)
    assert statuses(again) == {"one": "skipped", "two": "written"}
    assert len(table(spark, tmp_path / "one")) == len(table(spark, tmp_path / "two")) == 2


@pytest.mark.shows("06.parallel-split", 4)
def test_a_failed_csv_branch_alone_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    raw = DeltaBranch(f"{tmp_path}/raw")
    csv = FilesBranch(f"{tmp_path}/csv", file_format="csv", transform=fail)
    first = run_branches(devices(spark), branches={"raw": raw, "csv": csv}, job="devices", batch=1)
    assert statuses(first) == {"raw": "written", "csv": "failed"}
    with pytest.raises(TargetError, match=r"csv: ValueError: no such place.*Done: raw"):
        first.raise_failures()
    csv = FilesBranch(f"{tmp_path}/csv", file_format="csv")
    for _ in range(2):
        again = run_branches(devices(spark), branches={"raw": raw, "csv": csv}, job="devices", batch=1)
        assert statuses(again.raise_failures()) == {"raw": "skipped", "csv": "written"}
    run_branches(devices(spark).limit(1), branches={"raw": raw, "csv": csv}, job="devices", batch=2)
    written = spark.read.schema(f"{SCHEMA}, batch int").csv(f"{tmp_path}/csv")
    assert rows(written.groupBy("batch").count()) == [(1, 2), (2, 1)]
    assert len(table(spark, tmp_path / "raw")) == 3


@pytest.mark.shows("06.parallel-split", 8)
def test_bad_input_fails_before_any_branch_and_two_branches_into_one_table_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"type": "phone"}\n{"type": \n')
    bad = spark.read.schema(SCHEMA).option("mode", "FAILFAST").json(f"{tmp_path}/bad.json")
    both = {"one": DeltaBranch(f"{tmp_path}/one"), "two": FilesBranch(f"{tmp_path}/two")}
    with pytest.raises(Exception, match=r"MALFORMED|FAILED_READ_FILE"):
        run_branches(bad, branches=both, job="devices", batch=1)
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()
    same = {"one": DeltaBranch(f"{tmp_path}/one"), "two": DeltaBranch(f"{tmp_path}/x/../one", transform=enrich)}
    with pytest.raises(ConfigurationError, match="'one' and 'two' both write to"):
        run_branches(devices(spark), branches=same, job="devices", batch=1)
    with pytest.raises(ConfigurationError, match="at least two"):
        run_branches(devices(spark), branches={"one": DeltaBranch("x")}, job="devices", batch=1)


def test_a_stream_is_chained_put_together_and_split_a_batch_at_a_time_each_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"type": "phone", "full_name": "X", "version": "1"}\n')
    stream = spark.readStream.schema(SCHEMA).json(f"{tmp_path}/in")
    branches = {"one": DeltaBranch(f"{tmp_path}/one"), "two": DeltaBranch(f"{tmp_path}/two")}
    steps = [Step("enrich", enrich)]
    with pytest.raises(ConfigurationError, match="the input is a stream") as refused:
        run_branches(stream, branches=branches, job="devices", batch=1)
    assert "foreachBatch" in str(refused.value.hint)
    with pytest.raises(ConfigurationError, match="'enrich' has a cut, and the input is a stream"):
        run_in_sequence(stream, steps=[Step("enrich", enrich, cut=f"{tmp_path}/cut")], run="r")
    with pytest.raises(ConfigurationError, match="cannot be counted of a stream"):
        join_aligned(stream, stream.select("type"), keys=["type"])
    both = union_aligned({"new": run_in_sequence(stream, steps=steps, run="r"), "old": stream})

    def split(rows: DataFrame, number: int) -> None:
        run_branches(rows, branches=branches, job="devices", batch=number).raise_failures()

    # The second query has lost the checkpoint of the first: the same batch comes once more, and is skipped.
    for checkpoint in ("first", "second"):
        writer = both.writeStream.foreachBatch(split).option("checkpointLocation", f"{tmp_path}/{checkpoint}")
        writer.trigger(availableNow=True).start().awaitTermination()
    for name in branches:
        assert sorted(str(row[1]) for row in table(spark, tmp_path / name)) == ["X", "X 1"]


def test_a_cache_of_the_caller_is_left_to_the_caller(spark: SparkSession, tmp_path: Path) -> None:
    source = devices(spark).persist()
    branches = {"one": FilesBranch(f"{tmp_path}/one"), "two": FilesBranch(f"{tmp_path}/two")}
    run_branches(source, branches=branches, job="devices", batch=1)
    assert source.storageLevel.useMemory
    source.unpersist()


SPLIT = """
    from lakewright import DataOverwrite, JsonFiles, Pipeline, PrivateOutput, SingleRunner

    main = Pipeline("main", start="2026-01-01", runs=SingleRunner(depends_on_past=True))
    main.source("raw", JsonFiles("landing"), schema="visit string, at timestamp", event_time="at")

    @main.dataset(event_time="at", outputs={"pages": PrivateOutput(DataOverwrite())})
    def clean(raw):
        return {"clean": raw, "pages": raw.drop("visit")}

    export = Pipeline("export", start="2026-01-01")

    @export.dataset(event_time="at", layer="gold")
    def slow_copy(clean):
        raise ValueError("the slow branch is still broken")
"""


@pytest.mark.shows("06.parallel-split", 5)
def test_a_branch_in_its_own_pipeline_does_not_hold_up_the_main_one(project) -> None:  # type: ignore[no-untyped-def]
    day = '{{"visit": "v{0}", "at": "2026-01-0{0} 10:00:00"}}\n'
    opened = project({"pipelines/split.py": SPLIT, "landing/1.json": day.format(1)})
    assert opened.run(["pipeline:main"], at="2026-01-02").state == "ok"
    assert opened.run(["pipeline:export"], at="2026-01-02").state == "failed"
    (opened.folder / "landing/2.json").write_text(day.format(2))
    # The slow pipeline is at work (its lease is held) and has failed before: the next run of the main one goes ahead.
    holder = opened.store.leases
    from datetime import timedelta

    from lakewright.model.times import utc_now
    from lakewright.store import this_process

    owner = this_process()
    holder.register(owner, timedelta(minutes=5), utc_now())
    holder.acquire("pipeline:export", "*", owner_id=owner.owner_id, run_id="slow", now=utc_now())
    try:
        assert opened.run(["pipeline:main"], at="2026-01-03").state == "ok"
    finally:
        holder.forget(owner.owner_id)
    assert opened.show("clean").count() == opened.show("pages").count() == 2
    assert not opened.lake.log("slow_copy").exists()


APPLICATIONS = """
    from lakewright import JsonFiles, Pipeline
    from pyspark.sql import functions as F

    main = Pipeline("main", start="2026-01-01")
    main.source("devices", JsonFiles("landing"), schema="type string")

    def where(rows):
        '''Which Spark application made it, and with which settings.'''
        conf = rows.sparkSession.conf
        return rows.withColumns({
            "app": F.lit(conf.get("spark.app.id")),
            "master": F.lit(conf.get("spark.master")),
            "memory": F.lit(conf.get("spark.driver.memory")),
        })

    light = Pipeline("light", start="2026-01-01")

    @light.dataset(layer="gold")
    def counted(devices):
        return where(devices)

    heavy = Pipeline("heavy", start="2026-01-01")

    @heavy.dataset(layer="gold")
    def sorted_devices(devices):
        return where(devices)
"""
PROFILES = """
    name = "split"
    [targets.dev]
    [targets.cpu]
    master = "local[2]"
    driver_memory = "512m"
    fast_start = true
    [targets.memory]
    master = "local[1]"
    driver_memory = "768m"
    fast_start = true
"""


@pytest.mark.classic_only("the branches are Spark applications of their own")
@pytest.mark.shows("06.parallel-split", 6)
def test_branches_run_as_two_applications_with_their_own_resources(project) -> None:  # type: ignore[no-untyped-def]
    files = {"lakewright.toml": PROFILES, "pipelines/split.py": APPLICATIONS, "landing/1.json": '{"type": "phone"}\n'}
    opened = project(files)
    assert opened.run(["pipeline:main"], at="2026-01-02").state == "ok"
    branches = {"light": "cpu", "heavy": "memory"}
    words = {name: ["run", "--select", f"pipeline:{name}", "--target", target] for name, target in branches.items()}
    started = [
        subprocess.Popen([sys.executable, "-m", "lakewright", *words[name]], cwd=opened.folder, stderr=subprocess.PIPE)
        for name in branches
    ]
    for child in started:
        _, told = child.communicate(timeout=180)
        assert child.returncode == 0, told.decode()
    (light,), (heavy,) = opened.lake.read("counted").collect(), opened.lake.read("sorted_devices").collect()
    assert (light["master"], light["memory"]) == ("local[2]", "512m")
    assert (heavy["master"], heavy["memory"]) == ("local[1]", "768m")
    assert light["app"] != heavy["app"]
    read = [opened.store.receipts.history(name)[0].inputs["devices"] for name in ("counted", "sorted_devices")]
    assert read[0] == read[1]
