"""Data Overwrite: the slice is replaced, everything else is untouched, and a failure leaves what was there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import live_files, rows, table, version

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError, TargetError
from lakewright.patterns.idempotency.data_overwrite import (
    DataOverwrite,
    current_files,
    overwrite_files,
    overwrite_slice,
    read_version,
    remove_unused_files,
)
from lakewright.patterns.idempotency.delta_paths import DeltaPath
from lakewright.patterns.idempotency.merge_history import truncate

DAY = "event_date = '2026-01-02'"


def visits(spark: SparkSession, *found: tuple[str, str]) -> DataFrame:
    return spark.createDataFrame(list(found), "visit string, event_date string")


@pytest.fixture
def two_days(spark: SparkSession, lake_folder: Path) -> str:
    path = str(lake_folder / "visits")
    both = visits(spark, ("v1", "2026-01-01"), ("v2", "2026-01-02"), ("v3", "2026-01-02"))
    overwrite_slice(both, path, partition_by=["event_date"])
    return path


@pytest.mark.shows("04.data-overwrite", 1)
def test_a_day_loaded_twice_has_no_duplicates_and_other_days_keep_their_files(
    spark: SparkSession, two_days: str
) -> None:
    before = {file for file, at in live_files(two_days).items() if at["event_date"] == "2026-01-01"}
    day = visits(spark, ("v2", "2026-01-02"), ("v3", "2026-01-02"))
    for _ in range(2):
        overwrite_slice(day, two_days, where=DAY)
    assert table(spark, two_days) == [("v1", "2026-01-01"), ("v2", "2026-01-02"), ("v3", "2026-01-02")]
    after = {file for file, at in live_files(two_days).items() if at["event_date"] == "2026-01-01"}
    assert after == before
    assert before


@pytest.mark.shows("04.data-overwrite", 2)
def test_rows_that_a_corrected_input_no_longer_has_are_gone(spark: SparkSession, two_days: str) -> None:
    overwrite_slice(visits(spark, ("v3", "2026-01-02")), two_days, where=DAY)
    assert table(spark, two_days) == [("v1", "2026-01-01"), ("v3", "2026-01-02")]


@pytest.mark.shows("04.data-overwrite", 3)
def test_a_row_outside_the_slice_is_refused_with_the_predicate(
    spark: SparkSession, two_days: str, lake_folder: Path
) -> None:
    before = version(two_days)
    stray = visits(spark, ("v2", "2026-01-02"), ("v9", "2026-01-03"))
    new = str(lake_folder / "new")
    for path in (two_days, new):
        with pytest.raises(InputError, match="event_date = '2026-01-02'"):
            overwrite_slice(stray, path, where=DAY)
    with pytest.raises(Exception, match="REPLACE_WHERE_MISMATCH"):
        DeltaPath(new, spark).replace(stray, where=DAY)
    assert version(two_days) == before
    assert not DeltaPath(new, spark).exists()
    # Judged are the rows of the frame, not those that a join leaves out.
    due = spark.createDataFrame([("2026-01-02",)], "event_date string")
    overwrite_slice(stray.join(due, "event_date").select("visit", "event_date"), new, where=DAY)
    assert table(spark, new) == [("v2", "2026-01-02")]


def test_a_column_that_is_added_may_have_any_name_and_fields_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "visits")
    for columns in (["id"], ["id", "named_struct('user-id', array(named_struct('c.d', id))) AS `p``q`"]):
        overwrite_slice(spark.range(1).selectExpr(*columns), path, new_columns="add")
    told = spark.read.format("delta").load(path).selectExpr("`p``q`.`user-id`[0].`c.d`")
    assert told.collect() == [(0,)]


def test_a_column_lost_gained_or_retyped_is_refused_with_the_cure(
    spark: SparkSession, two_days: str, lake_folder: Path
) -> None:
    spark.sql(f"ALTER TABLE delta.`{two_days}` ADD COLUMNS (pages INT)")
    lost = visits(spark, ("v2", "2026-01-02"))
    day = lost.withColumn("pages", F.lit(1))
    before = version(two_days)
    for unfit, words in (
        (lost, r"column pages is in the table and no longer in the rows.*lit\(None\)\.cast\(\"int\"\)"),
        (day.withColumn("extra", F.lit(1)), r"a column extra that the table lacks.*ADD COLUMNS"),
        (day.withColumn("pages", F.lit("1")), r"pages is int in the table and string in the rows.*cast\(\"int\"\)"),
        (day.withColumn("pages", F.lit(1).cast("bigint")), "and bigint in the rows"),
    ):
        for slice_ in ({"where": DAY}, {"using": ["event_date"]}, {}):
            with pytest.raises(SchemaChangeError, match=words):
                overwrite_slice(unfit, two_days, **slice_)  # type: ignore[arg-type]
    assert version(two_days) == before
    # In other letters it is the same column, a shorter number is one, and a NULL of no type fits every column.
    overwrite_slice(day.selectExpr("NULL AS VISIT", "event_date", "2S AS pages"), two_days, where=DAY)
    overwrite_slice(day.withColumn("extra", F.struct("visit")), two_days, where=DAY, new_columns="add")
    with pytest.raises(SchemaChangeError, match="extra is struct<visit:string> in the table"):
        overwrite_slice(day.withColumn("extra", F.struct("pages")), two_days, where=DAY, new_columns="add")
    assert rows(spark.read.format("delta").load(two_days).selectExpr("visit", "pages", "extra.visit AS extra")) == [
        ("v1", None, None), ("v2", 1, "v2"),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="'refuse' or 'add'"):
        overwrite_slice(day, two_days, new_columns="drop")  # type: ignore[arg-type]
    # What Delta computes by itself the rows need not bring.
    made = str(lake_folder / "made")
    spark.sql(f"CREATE TABLE delta.`{made}` (n INT, twice INT GENERATED ALWAYS AS (n * 2)) USING delta")
    overwrite_slice(spark.sql("SELECT 4 AS n"), made, where="n = 4")
    assert table(spark, made) == [(4, 8)]


@pytest.fixture(params=["static", "dynamic"])
def partition_mode(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """What many clusters set for everybody."""
    name = "spark.sql.sources.partitionOverwriteMode"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.set(name, before)  # type: ignore[arg-type]


@pytest.mark.usefixtures("partition_mode")
def test_without_a_slice_the_whole_table_is_replaced(spark: SparkSession, two_days: str) -> None:
    overwrite_slice(visits(spark, ("v9", "2026-01-09")), two_days)
    assert table(spark, two_days) == [("v9", "2026-01-09")]
    truncate(spark, two_days, datetime(2026, 1, 1, tzinfo=UTC))
    assert table(spark, two_days) == []


def broken(frame: DataFrame) -> DataFrame:
    """Two partitions, of which one is written and the other fails."""
    wide = frame.repartition(2, "visit")
    return wide.withColumn("visit", F.when(F.col("visit") == "bad", F.raise_error(F.lit("boom"))).otherwise("visit"))


@pytest.mark.shows("04.data-overwrite", 4)
@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_a_task_that_fails_half_way_leaves_the_old_files(
    spark: SparkSession, lake_folder: Path, file_format: str
) -> None:
    path = str(lake_folder / "visits")
    old = visits(spark, ("v1", "2026-01-01"), ("v2", "2026-01-02"))
    overwrite_files(old, path, file_format=file_format)  # type: ignore[arg-type]
    new = visits(spark, ("good", "2026-01-03"), ("bad", "2026-01-03"), ("fine", "2026-01-03"))
    with pytest.raises(Exception, match="boom"):
        overwrite_files(broken(new), path, file_format=file_format, empty="allow")  # type: ignore[arg-type]
    read = spark.read.schema(old.schema).format(file_format).load(path)
    assert rows(read) == [("v1", "2026-01-01"), ("v2", "2026-01-02")]
    assert len([found for found in (lake_folder / ".visits.versions").iterdir() if found.is_dir()]) == 1


@pytest.mark.shows("04.data-overwrite", 4)
def test_a_task_that_fails_half_way_leaves_the_old_version(spark: SparkSession, two_days: str) -> None:
    before = table(spark, two_days)
    new = visits(spark, ("good", "2026-01-02"), ("bad", "2026-01-02"), ("fine", "2026-01-02"))
    with pytest.raises(Exception, match="boom"):
        overwrite_slice(broken(new), two_days, where=DAY, empty="allow")
    assert table(spark, two_days) == before


def test_swapped_files_are_the_new_ones_and_an_open_reader_keeps_the_old(
    spark: SparkSession, lake_folder: Path
) -> None:
    (lake_folder / "mount").symlink_to(lake_folder)
    path = str(lake_folder / "mount" / "visits")  # a folder above it may be a link of its own
    overwrite_files(visits(spark, ("v1", "d")), path)
    opened = spark.read.parquet(current_files(path))
    overwrite_files(visits(spark, ("v2", "d")), path)
    assert rows(spark.read.parquet(path)) == [("v2", "d")]
    assert rows(opened) == [("v1", "d")]
    overwrite_files(spark.read.parquet(path).union(visits(spark, ("v3", "d"))), path)
    assert rows(spark.read.parquet(path)) == [("v2", "d"), ("v3", "d")]
    kept = [found for found in (lake_folder / ".visits.versions").iterdir() if found.is_dir()]
    assert len(kept) == 2


def test_what_a_killed_writer_left_is_removed_and_a_second_writer_is_refused(
    spark: SparkSession, lake_folder: Path
) -> None:
    path = str(lake_folder / "visits")
    overwrite_files(visits(spark, ("v1", "d")), path)
    left = lake_folder / ".visits.versions" / "half"
    left.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl,sys; f=open(sys.argv[1]); fcntl.flock(f, 2); print('held', flush=True); "
         "sys.stdin.read()", str(left.parent / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(TargetError, match="another process"):
            overwrite_files(visits(spark, ("v2", "d")), path)
    finally:
        holder.communicate(b"")
    overwrite_files(visits(spark, ("v2", "d")), path)
    assert not left.exists()


def test_an_ordinary_folder_is_not_replaced(spark: SparkSession, lake_folder: Path) -> None:
    os.mkdir(lake_folder / "visits")
    with pytest.raises(ConfigurationError, match="ln -s"):
        overwrite_files(visits(spark, ("v1", "d")), str(lake_folder / "visits"))
    with pytest.raises(ConfigurationError, match="Delta"):
        overwrite_files(visits(spark, ("v1", "d")), "s3a://bucket/visits")


@pytest.fixture
def few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """VACUUM lists by 10,000 tasks otherwise: 40 s for a handful of files."""
    name = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before)  # type: ignore[arg-type]


@pytest.mark.shows("04.data-overwrite", 6)
@pytest.mark.usefixtures("few_listing_tasks")
def test_the_version_before_can_be_read_until_vacuum_passes_the_retention(spark: SparkSession, two_days: str) -> None:
    overwrite_slice(visits(spark, ("v9", "2026-01-02")), two_days, where=DAY)
    old = [("v1", "2026-01-01"), ("v2", "2026-01-02"), ("v3", "2026-01-02")]
    remove_unused_files(spark, two_days)
    assert rows(read_version(spark, two_days, 0)) == old
    with pytest.raises(ConfigurationError, match="deletedFileRetentionDuration"):
        remove_unused_files(spark, two_days, keep="0 hours")
    assert rows(read_version(spark, two_days, 0)) == old
    property_ = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    spark.sql(f"ALTER TABLE delta.`{two_days}` SET TBLPROPERTIES ({property_})")
    remove_unused_files(spark, two_days, keep="0 hours")
    with pytest.raises(TargetError, match=r"version 0 .* is no longer available"):
        read_version(spark, two_days, 0)
    with pytest.raises(TargetError, match=r"version 77 .* is no longer available"):
        read_version(spark, two_days, 77)
    assert table(spark, two_days) == [("v1", "2026-01-01"), ("v9", "2026-01-02")]


@pytest.mark.shows("04.data-overwrite", 7)
def test_an_empty_input_is_refused_and_the_data_kept(spark: SparkSession, two_days: str) -> None:
    before, at = table(spark, two_days), version(two_days)
    with pytest.raises(InputError, match="empty"):
        overwrite_slice(visits(spark, ("v", "d")).limit(0), two_days, where=DAY)
    assert (table(spark, two_days), version(two_days)) == (before, at)
    overwrite_slice(visits(spark, ("v", "d")).limit(0), two_days, where=DAY, empty="allow")
    assert table(spark, two_days) == [("v1", "2026-01-01")]


def test_the_days_that_a_feed_brings_are_replaced_without_naming_them(spark: SparkSession, lake_folder: Path) -> None:
    path, schema = str(lake_folder / "visits"), "day string, page string"
    loaded = spark.createDataFrame([("d1", "/a"), ("d1", "/b"), ("d2", "/a")], schema)
    loaded.write.format("delta").save(path)
    again = spark.createDataFrame([("d1", "/c"), ("d3", "/a")], schema)
    with pytest.raises(ConfigurationError, match="deletion vectors"):
        overwrite_slice(again, path, using=["day"])
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for _ in range(2):
        overwrite_slice(again, path, using=["day"])
        assert table(spark, path) == [("d1", "/c"), ("d2", "/a"), ("d3", "/a")]
    new = str(lake_folder / "new")
    for _ in range(2):  # a table that it makes can be replaced in this way, too
        overwrite_slice(again, new, using=["day"])
    assert table(spark, new) == [("d1", "/c"), ("d3", "/a")]
    for where in (path, new):
        with pytest.raises(InputError, match="day is NULL in a row"):
            overwrite_slice(spark.createDataFrame([(None, "/x")], schema), where, using=["day"])
    with pytest.raises(MissingColumnsError, match="Did you mean 'day'"):
        overwrite_slice(again, path, using=["dy"])
    with pytest.raises(ConfigurationError, match="not both"):
        overwrite_slice(again, path, using=["day"], where="day = 'd1'")


def test_a_wrong_option_is_refused_before_spark_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="'allow' or 'fail'"):
        DataOverwrite(empty="maybe")  # type: ignore[arg-type]
