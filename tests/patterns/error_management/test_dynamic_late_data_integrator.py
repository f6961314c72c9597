"""Dynamic Late Data Integrator: which partitions changed after they were processed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import rows, table

from lakewright.errors import ConfigurationError, InputError
from lakewright.patterns.error_management.dynamic_late_data_integrator import (
    PartitionState,
    changed_partitions,
    slices_with_late_rows,
)
from lakewright.patterns.error_management.late_entities import repair_entities


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2024-{text}")


@pytest.mark.shows("03.dynamic-late-data-integrator", 1)
def test_of_the_two_rows_of_the_example_one_is_late() -> None:
    states = [
        PartitionState("2024-12-17", processed=at("12-17T10:20"), updated=at("12-17T03:00")),
        PartitionState("2024-12-18", processed=at("12-18T09:55"), updated=at("12-20T10:12")),
    ]
    assert slices_with_late_rows(states, current="2024-12-20").selected == ("2024-12-18",)
    # Neither the current partition, nor what somebody has claimed, nor what was never processed.
    more = [
        PartitionState("2024-12-19", processed=at("12-19T10:00"), updated=at("12-20T10:12"), claimed=True),
        PartitionState("2024-12-20", processed=at("12-20T10:00"), updated=at("12-20T10:12")),
        PartitionState("2024-12-16", processed=None, updated=at("12-20T10:12")),
    ]
    assert slices_with_late_rows([*more, *states], current="2024-12-20").selected == ("2024-12-18",)


@pytest.mark.shows("03.dynamic-late-data-integrator", 7)
def test_what_depends_on_the_past_is_made_on_to_the_newest_and_what_is_too_old_is_told() -> None:
    states = [PartitionState(f"2024-09-{day:02d}", 5, 9 if day in (3, 21) else 2) for day in range(1, 31)]
    found = slices_with_late_rows(states, current="2024-09-25", oldest="2024-09-10", stateful=True)
    assert found.selected == ("2024-09-21", "2024-09-22", "2024-09-23", "2024-09-24")
    assert found.skipped == ("2024-09-03",)
    # One that somebody else is making would be made of a history that is not right yet, and nobody would notice.
    claimed = [replace(state, claimed=state.partition == "2024-09-23") for state in states]
    with pytest.raises(InputError, match="2024-09-21 received late rows, and 2024-09-23, which is made of it, is cl"):
        slices_with_late_rows(claimed, current="2024-09-25", oldest="2024-09-10", stateful=True)
    before = slices_with_late_rows(claimed, current="2024-09-23", oldest="2024-09-10", stateful=True)
    assert before.selected == ("2024-09-21", "2024-09-22")


@pytest.mark.shows("03.dynamic-late-data-integrator", 8)
def test_a_state_that_is_missing_or_contradicts_itself_is_refused() -> None:
    with pytest.raises(InputError, match="state is empty"):
        slices_with_late_rows([], current="2024-12-20")
    with pytest.raises(InputError, match="2024-12-18 twice"):
        slices_with_late_rows([PartitionState("2024-12-18", 1, 2)] * 2, current="2024-12-20")
    with pytest.raises(ConfigurationError, match="compares a time with a version"):
        slices_with_late_rows([PartitionState("2024-12-18", 1, at("12-18T09:55"))], current="2024-12-20")


@pytest.mark.shows("03.dynamic-late-data-integrator", 3, 8)
def test_the_log_tells_what_changed_and_compaction_is_no_change(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "visits")
    for day in ("2024-12-17", "2024-12-18", "2024-12-17"):
        rows = spark.sql(f"SELECT '{day}' AS day, 1 AS pages")
        rows.write.format("delta").mode("append").partitionBy("day").save(path)
    assert changed_partitions(spark, path, column="day", after=-1) == {"2024-12-17": 2, "2024-12-18": 1}
    assert changed_partitions(spark, path, column="day", after=1) == {"2024-12-17": 2}
    spark.sql(f"OPTIMIZE delta.`{path}`")
    assert changed_partitions(spark, path, column="day", after=2) == {}
    with pytest.raises(ConfigurationError, match="not partitioned by 'month'"):
        changed_partitions(spark, path, column="month", after=-1)
    with pytest.raises(InputError, match=r"version 50 was processed, and .* is at version 3"):
        changed_partitions(spark, path, column="day", after=50)
    log = Path(path) / "_delta_log"
    second, text = log / f"{1:020d}.json", (log / f"{1:020d}.json").read_text()
    second.write_text(text[: text.index('"dataChange"')])  # as a machine that lost its power leaves it
    for _ in ("by its checksum", "by its text"):
        with pytest.raises(InputError, match=r"a commit in the log of .* is damaged"):
            changed_partitions(spark, path, column="day", after=0)
        (log / f".{second.name}.crc").unlink(missing_ok=True)
    second.unlink()
    with pytest.raises(InputError, match="has no version 1, though later ones are there"):
        changed_partitions(spark, path, column="day", after=0)
    second.write_text(text)
    for version in (0, 1):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InputError, match="begins with version 2, and changes after version 0"):
        changed_partitions(spark, path, column="day", after=0)
    with pytest.raises(InputError, match="no Delta table"):
        changed_partitions(spark, f"{path}-other", column="day", after=0)


def test_a_table_without_rows_has_changed_nowhere_and_one_whose_log_has_other_names_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, mode in (("empty", "none"), ("mapped", "name")):
        spark.sql(
            f"CREATE TABLE delta.`{tmp_path / name}` (day STRING, pages INT) USING delta PARTITIONED BY (day) "
            f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')"
        )
        assert changed_partitions(spark, str(tmp_path / name), column="day", after=-1) == {}
        with pytest.raises(ConfigurationError, match="not partitioned by 'pages'"):
            changed_partitions(spark, str(tmp_path / name), column="pages", after=-1)
    spark.sql(f"INSERT INTO delta.`{tmp_path / 'mapped'}` VALUES ('2024-12-17', 1)")
    with pytest.raises(ConfigurationError, match="a table with column mapping") as refused:
        changed_partitions(spark, str(tmp_path / "mapped"), column="day", after=-1)
    assert "change feed" in str(refused.value.hint)


def test_only_the_entities_that_received_late_rows_are_made_again(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(tmp_path / "visits"), str(tmp_path / "figures")
    schema, keys = "day string, user string, pages int", ["day", "user"]
    feed, vectors = {"delta.enableChangeDataFeed": "true"}, {"delta.enableDeletionVectors": "true"}

    def add(*found: tuple[str | None, ...], **options: str) -> None:
        rows = spark.createDataFrame(list(found), schema).coalesce(1)
        rows.write.format("delta").mode("append").options(**options).save(source)

    made: list[list[tuple[object, ...]]] = []

    def figures(visits: DataFrame) -> DataFrame:
        made.append(rows(visits.select(*keys).distinct()))
        return visits.where("pages > 0").groupBy(*keys).agg(F.sum("pages").alias("pages"))

    def repair(after: int) -> int:
        return repair_entities(spark, source, target, keys=keys, after=after, make=figures)

    with pytest.raises(InputError, match="there are no results at"):
        repair(-1)
    add(("d1", "a", 1), ("d1", "b", 2), ("d2", "a", 4), **feed)
    figures(spark.read.format("delta").load(source)).write.format("delta").options(**vectors).save(target)
    assert repair(0) == 0
    add(("d1", "a", 8), ("d2", "c", 16))
    made.clear()
    assert repair(0) == 1
    assert table(spark, target) == [("d1", "a", 9), ("d1", "b", 2), ("d2", "a", 4), ("d2", "c", 16)]
    assert made == [[("d1", "a"), ("d2", "c")]]
    spark.sql(f"DELETE FROM delta.`{source}` WHERE user = 'c' OR pages = 8")
    assert repair(0) == 2, "what was made already is made again with it, and stays the same"
    assert table(spark, target) == [("d1", "a", 1), ("d1", "b", 2), ("d2", "a", 4)]
    with pytest.raises(InputError, match=r"version 9 was processed, and .* is at version 2"):
        repair(9)
    # It still has a row, and none that counts: what was made of the others does not stay.
    spark.sql(f"UPDATE delta.`{source}` SET pages = 0 WHERE day = 'd2'")
    assert repair(2) == 3
    assert table(spark, target) == [("d1", "a", 1), ("d1", "b", 2)]
    add(("d1", None, 1))
    with pytest.raises(InputError, match="day or user is NULL"):
        repair(3)
