"""Horizontal Partitioner: rows lie where their value says, readers touch only what they ask for."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.patterns.delta import live_files, table

from lakewright.errors import ConfigurationError, InputError, LimitExceeded, MissingColumnsError, TargetError
from lakewright.patterns.storage import repartition
from lakewright.patterns.storage.horizontal_partitioner import (
    HorizontalPartitioner,
    list_partitions,
    partition_rows,
    write_partitioned,
)
from lakewright.patterns.storage.repartition import repartition_table

BY_DAY = HorizontalPartitioner(by=["day"], derive={"day": "to_date(at)"})
BY_LOAD = HorizontalPartitioner(by=["load_date"])
BY_COUNTRY = HorizontalPartitioner(by=["country"])


def visits(spark: SparkSession, *found: tuple[str, str | None]) -> DataFrame:
    return spark.createDataFrame(list(found), "visit string, at string")


@pytest.fixture
def path(lake_folder: Path) -> str:
    return str(lake_folder / "visits")


def partitions(spark: SparkSession, path: str) -> dict[tuple[str, ...], int]:
    return {tuple(str(v) for v in found.values.values()): found.rows for found in list_partitions(spark, path)}


@pytest.mark.shows("08.horizontal-partitioner", 1)
def test_the_four_day_job_reads_the_files_of_four_days(
    spark: SparkSession, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    days = [str(date(2026, 1, 1) + timedelta(days=n)) for n in range(30)]
    month = visits(spark, *[(f"v{n}", f"{day} 12:00:00") for n, day in enumerate(days)])
    write_partitioned(month.coalesce(1), path, layout=BY_DAY)
    job = spark.read.format("delta").load(path).where("day > '2026-01-26'").groupBy().count()
    assert len(live_files(path)) == 30
    assert sorted({file.split("day=")[1][:10] for file in job.inputFiles()}) == days[-4:]
    job.explain()
    assert "PartitionFilters: [isnotnull(day" in capsys.readouterr().out
    # The other days' files are not even there any more: a scan of one of them would fail.
    for file, at in live_files(path).items():
        if at["day"] <= "2026-01-26":
            Path(path, file).unlink()
    assert job.first()[0] == 4  # type: ignore[index]


@pytest.mark.shows("08.horizontal-partitioner", 2)
@pytest.mark.parametrize("run_value", [None, {"load_date": "2026-01-02"}])
def test_a_day_written_twice_replaces_that_partition_alone(
    spark: SparkSession, path: str, run_value: dict[str, str] | None
) -> None:
    layout = BY_LOAD if run_value else BY_DAY

    def write(day: str, *found: tuple[str, str | None]) -> None:
        write_partitioned(
            visits(spark, *found), path, layout=layout, run_value={"load_date": day} if run_value else None
        )

    write("2026-01-01", ("v1", "2026-01-01 10:00:00"))
    before = set(live_files(path))
    for _ in range(2):
        write("2026-01-02", ("v2", "2026-01-02 10:00:00"), ("v3", "2026-01-02 11:00:00"))
    assert partitions(spark, path) == {("2026-01-01",): 1, ("2026-01-02",): 2}
    assert before < set(live_files(path))


@pytest.mark.shows("08.horizontal-partitioner", 3)
def test_late_rows_go_to_their_own_day_and_by_run_date_to_that_of_the_run(
    spark: SparkSession, lake_folder: Path
) -> None:
    by_event, by_run = str(lake_folder / "by_event"), str(lake_folder / "by_run")
    write_partitioned(visits(spark, ("v1", "2026-01-03 10:00:00")), by_event, layout=BY_DAY)
    today = visits(spark, ("v2", "2026-01-05 10:00:00"), ("late", "2026-01-03 23:00:00"))
    for _ in range(2):
        write_partitioned(today, by_event, layout=BY_DAY, mode="add", batch=("visits", 5))
        write_partitioned(today, by_run, layout=BY_LOAD, run_value={"load_date": "2026-01-05"})
    assert partitions(spark, by_event) == {("2026-01-03",): 2, ("2026-01-05",): 1}
    assert partitions(spark, by_run) == {("2026-01-05",): 2}


@pytest.mark.shows("08.horizontal-partitioner", 4)
def test_more_values_than_the_limit_are_refused_before_the_write(spark: SparkSession, path: str) -> None:
    layout = HorizontalPartitioner(by=["country", "visit"], limit=2)
    found = spark.createDataFrame([("FR", f"v{n}", n) for n in range(5)], "country string, visit string, n int")
    with pytest.raises(LimitExceeded, match=r"column visit has 5 distinct values, more than the limit of 2.*Bucket"):
        write_partitioned(found, path, layout=layout)
    assert not Path(path).exists()
    write_partitioned(found.limit(2), path, layout=layout)
    assert partitions(spark, path) == {("FR", "v0"): 1, ("FR", "v1"): 1}


@pytest.mark.shows("08.horizontal-partitioner", 5)
@pytest.mark.parametrize("missing", [None, ""])
@pytest.mark.parametrize("limit", [None, 10])
def test_a_missing_value_is_refused_or_goes_to_the_default(
    spark: SparkSession, path: str, missing: str | None, limit: int | None
) -> None:
    found = spark.createDataFrame([("v1", "FR"), ("v2", missing)], "visit string, country string")
    with pytest.raises(InputError, match=r"partition column country is NULL.*Nothing was written"):
        write_partitioned(found, path, layout=HorizontalPartitioner(by=["country"], limit=limit))
    assert not Path(path, "_delta_log", f"{0:020d}.json").exists()
    write_partitioned(found, path, layout=HorizontalPartitioner(by=["country"], default="unknown", limit=limit))
    assert table(spark, path) == [("v1", "FR"), ("v2", "unknown")]


def test_nested_keys_prune_by_any_of_their_levels(spark: SparkSession, path: str) -> None:
    layout = HorizontalPartitioner(
        by=["year", "month", "country"], derive={"year": "year(to_date(at))", "month": "month(to_date(at))"}
    )
    found = spark.createDataFrame(
        [("v1", "2025-12-31", "FR"), ("v2", "2026-01-01", "FR"), ("v3", "2026-01-01", "PL")],
        "visit string, at string, country string",
    )
    write_partitioned(found, path, layout=layout)
    read = spark.read.format("delta").load(path)
    assert len(read.where("year = 2026").inputFiles()) == 2
    assert len(read.where("country = 'FR'").inputFiles()) == 2
    assert len(read.where("year = 2026 AND country = 'PL'").inputFiles()) == 1


def test_the_metadata_of_partitions_tells_rows_files_bytes_and_time(spark: SparkSession, path: str) -> None:
    write_partitioned(visits(spark, ("v1", "2026-01-01 10:00:00")), path, layout=BY_DAY)
    write_partitioned(
        visits(spark, ("v2", "2026-01-01 11:00:00")), path, layout=BY_DAY, mode="add", batch=("visits", 1)
    )
    (found,) = list_partitions(spark, path)
    sizes = [Path(path, file).stat().st_size for file in live_files(path)]
    assert (found.rows, found.files, found.bytes) == (2, 2, sum(sizes))
    assert found.values == {"day": date(2026, 1, 1)}
    assert found.last_update is not None


def test_a_wrong_layout_or_call_is_refused(spark: SparkSession, path: str) -> None:
    for options in ({"by": "day"}, {"by": []}, {"by": ["a"], "limit": 0}, {"by": ["a"], "derive": {"b": "1"}},
                    {"by": ["a"], "default": ""}):  # fmt: skip
        with pytest.raises(ConfigurationError):
            HorizontalPartitioner(**options)  # type: ignore[arg-type]
    one = visits(spark, ("v1", "2026-01-01 10:00:00"))
    with pytest.raises(ConfigurationError, match="batch"):
        write_partitioned(one, path, layout=BY_DAY, mode="add")
    with pytest.raises(ConfigurationError, match="run_value"):
        write_partitioned(one, path, layout=BY_DAY, run_value={"dya": "2026-01-01"})
    with pytest.raises(MissingColumnsError, match="country"):
        write_partitioned(one, path, layout=HorizontalPartitioner(by=["country"]))
    one.write.format("delta").save(path)
    with pytest.raises(ConfigurationError, match="no partitions"):
        list_partitions(spark, path)


def test_a_table_is_laid_out_by_other_columns_with_the_same_rows(spark: SparkSession, path: str, monkeypatch) -> None:
    visits = spark.createDataFrame([("v1", "FR", 1), ("v2", "DE", 2)], "visit string, country string, day int")
    visits.write.format("delta").partitionBy("country").save(path)

    done = repartition_table(spark, path, layout=HorizontalPartitioner(by=["day"]))

    assert (done.before, done.after, done.rows, done.version) == (("country",), ("day",), 2, 1)
    assert [found.values for found in list_partitions(spark, path)] == [{"day": 1}, {"day": 2}]
    assert sorted(spark.read.format("delta").load(path).collect()) == sorted(visits.collect())
    with pytest.raises(ConfigurationError, match="no Delta table"):
        repartition_table(spark, f"{path}_nowhere", layout=BY_LOAD)

    def meanwhile(frame: DataFrame, **options: object) -> DataFrame:
        visits.write.format("delta").mode("append").save(path)
        return partition_rows(frame, layout=BY_COUNTRY)

    monkeypatch.setattr(repartition, "partition_rows", meanwhile)
    with pytest.raises(TargetError, match="put back"):
        repartition_table(spark, path, layout=BY_COUNTRY)
    assert spark.read.format("delta").load(path).count() == 4
    assert [found.values for found in list_partitions(spark, path)] == [{"day": 1}, {"day": 2}]
