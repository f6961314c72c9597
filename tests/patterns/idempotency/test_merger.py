"""Merger: changes by key, twice the same as once, and nothing written when the input is ambiguous."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import live_files, rows, table, version

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, SchemaChangeError, TargetError
from lakewright.patterns.idempotency.merger import Merger, keep_last_change, merge_changes
from lakewright.patterns.idempotency.scd2 import Scd2, chain_versions
from lakewright.patterns.idempotency.versions import read_version
from lakewright.patterns.ingestion.vacuum import vacuum_table

FLAGGED = "type string, name string, is_deleted boolean"


def devices(spark: SparkSession, *found: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(found), "type string, name string")


def flagged(spark: SparkSession, *found: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(found), FLAGGED)


def given(frame: DataFrame, path: str) -> None:
    """A table that is there already; how a first merge makes one is another test's matter."""
    frame.write.format("delta").save(path)


@pytest.fixture
def path(lake_folder: Path) -> str:
    return str(lake_folder / "devices")


@pytest.mark.shows("04.merger", 1, 4)
def test_the_same_changes_twice_and_a_correction_leave_one_row_per_key(spark: SparkSession, path: str) -> None:
    changes = devices(spark, ("phone", "X1"), ("watch", "W1"))
    first = merge_changes(changes, path, keys=["type"])
    once = table(spark, path)
    merge_changes(changes, path, keys=["type"])
    assert first is not None
    assert first.rows == 2
    assert table(spark, path) == once == [("phone", "X1"), ("watch", "W1")]
    merge_changes(devices(spark, ("phone", "X2")), path, keys=["type"])
    assert table(spark, path) == [("phone", "X2"), ("watch", "W1")]


@pytest.mark.shows("04.merger", 2, 3)
def test_a_flagged_row_is_removed_where_known_and_never_inserted(spark: SparkSession, path: str) -> None:
    first = flagged(spark, ("phone", "X1", False), ("watch", "W1", None), ("radio", "R1", True))
    merge_changes(first, path, keys=["type"], deleted="is_deleted")
    # A NULL flag means "not deleted".
    assert table(spark, path) == [("phone", "X1", False), ("watch", "W1", False)]
    again = flagged(spark, ("phone", "X1", True), ("watch", "W2", None))
    merge_changes(again, path, keys=["type"], deleted="is_deleted")
    assert table(spark, path) == [("watch", "W2", False)]


@pytest.mark.shows("04.merger", 2, 3)
def test_a_soft_delete_keeps_the_row_with_its_flag(spark: SparkSession, path: str) -> None:
    first = flagged(spark, ("phone", "X1", False), ("radio", "R1", True))
    merge_changes(first, path, keys=["type"], deleted="is_deleted", delete="soft")
    assert table(spark, path) == [("phone", "X1", False)]
    gone = flagged(spark, ("phone", "X1", True))
    merge_changes(gone, path, keys=["type"], deleted="is_deleted", delete="soft")
    assert table(spark, path) == [("phone", "X1", True)]


@pytest.mark.shows("04.merger", 5)
def test_replaying_an_old_batch_shows_the_old_state_until_the_later_ones_follow(spark: SparkSession, path: str) -> None:
    feed = {
        "08:00": [("A", "updated", False), ("B", "new", False)],
        "09:00": [("B", "new", True), ("C", "new", False)],
        "10:00": [("M", "new", False), ("N", "new", False), ("O", "new", False)],
    }

    def apply(hour: str) -> str:
        merge_changes(flagged(spark, *feed[hour]), path, keys=["type"], deleted="is_deleted")
        return "".join(str(row[0]) for row in table(spark, path))

    given(flagged(spark, ("A", "new", False)), path)
    assert [apply(hour) for hour in feed] == ["AB", "AC", "ACMNO"]
    assert apply("08:00") == "ABCMNO"
    assert apply("09:00") == "ACMNO"


@pytest.mark.shows("04.merger", 6)
def test_several_changes_of_a_key_without_an_order_are_refused_with_samples(spark: SparkSession, path: str) -> None:
    given(devices(spark, ("phone", "X1")), path)
    before = version(path)
    twice = devices(spark, ("watch", "W1"), ("watch", "W2"), ("phone", "X2"))
    for found in (twice, twice.selectExpr("*", "1 AS price")):
        with pytest.raises(InputError, match=r"type='watch'.*Nothing was written"):
            merge_changes(found, path, keys=["type"], new_columns="add")
    with pytest.raises(MissingColumnsError, match="Did you mean 'type'"):
        merge_changes(twice.selectExpr("*", "1 AS price"), path, keys=["typ"], new_columns="add")
    assert version(path) == before


@pytest.mark.shows("04.merger", 7)
def test_a_null_key_or_a_missing_one_is_refused_and_makes_no_version(spark: SparkSession, path: str) -> None:
    given(devices(spark, ("phone", "X1")), path)
    before = version(path)
    for sequence in (None, "name"):
        with pytest.raises(InputError, match=r"\(type\) is NULL"):
            merge_changes(devices(spark, (None, "X2")), path, keys=["type"], sequence=sequence)
        with pytest.raises(MissingColumnsError, match="Did you mean 'type'"):
            merge_changes(devices(spark, ("phone", "X2")), path, keys=["typ"], sequence=sequence)
        assert version(path) == before


def test_a_column_that_the_table_lacks_is_refused(spark: SparkSession, path: str) -> None:
    given(devices(spark, ("phone", "X1")), path)
    wider = spark.createDataFrame([("phone", "X2", 3)], "type string, name string, price int")
    with pytest.raises(SchemaChangeError, match="price"):
        merge_changes(wider, path, keys=["type"])
    # A flag that the table never had is applied and not stored.
    merge_changes(flagged(spark, ("phone", "X1", True)), path, keys=["type"], deleted="is_deleted")
    assert table(spark, path) == []
    # The other choice: it is added, and a flag is still none of the table's columns.
    merge_changes(wider.selectExpr("*", "false AS gone"), path, keys=["type"], deleted="gone", new_columns="add")
    assert spark.read.format("delta").load(path).columns == ["type", "name", "price"]
    assert table(spark, path) == [("phone", "X2", 3)]
    # A soft delete needs its mark: without one the row would be updated, and live.
    gone = flagged(spark, ("phone", "X1", True)).withColumn("price", F.lit(0))
    soft = {"keys": ["type"], "deleted": "is_deleted", "delete": "soft"}
    with pytest.raises(SchemaChangeError, match="no column is_deleted, by which deleted rows would be marked"):
        merge_changes(gone, path, **soft)  # type: ignore[arg-type]
    merge_changes(gone, path, **soft, new_columns="add")  # type: ignore[arg-type]
    assert table(spark, path) == [("phone", "X1", 0, True)]


def test_the_last_change_by_sequence_counts(spark: SparkSession, path: str) -> None:
    # A dot in a name is part of it.
    changes = spark.createDataFrame(
        [("a", 1, 10), ("a", 2, 30), ("a", 3, 20), ("b", 4, None)], "`k.id` string, v int, `seq.no` int"
    )
    merge_changes(changes, path, keys=["k.id"], sequence="seq.no")
    assert table(spark, path) == [("a", 2, 30), ("b", 4, None)]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert detail["properties"]["delta.enableDeletionVectors"] == "true"


def test_a_version_whose_marks_of_changed_rows_were_vacuumed_is_no_longer_there(spark: SparkSession, path: str) -> None:
    given(spark.range(20).selectExpr("CAST(id AS STRING) AS k", "0 AS v").coalesce(1), path)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    for number in (1, 2):
        merge_changes(spark.createDataFrame([(str(number), number)], "k string, v int"), path, keys=["k"])
    vacuum_table(spark, path, retention="0 seconds", unsafe=True)
    assert read_version(spark, path, 3).where("v > 0").count() == 2
    # All of its data is still there, and a RESTORE would take it.
    with pytest.raises(TargetError, match=r"version 2 .* is no longer available: 1 of its files of marked rows"):
        read_version(spark, path, 2)


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(found=st.lists(st.tuples(st.sampled_from("ab"), *[st.none() | st.integers(0, 2)] * 3), max_size=6))
@example(found=[("a", 1, None, 2), ("a", 1, 2, None)])
def test_which_change_is_the_last_does_not_depend_on_the_order_of_rows(
    spark: SparkSession, found: list[tuple[str, int | None, int | None, int | None]]
) -> None:
    schema = "k string, seq int, v int, w int"
    one = keep_last_change(spark.createDataFrame(found, schema), keys=["k"], sequence="seq")
    other = keep_last_change(spark.createDataFrame(found[::-1], schema), keys=["k"], sequence="seq")
    assert rows(one) == rows(other)
    assert [row[0] for row in rows(one)] == sorted({k for k, *_ in found})


def test_only_the_partitions_that_the_changes_name_are_read(spark: SparkSession, path: str) -> None:
    schema = "day date, visit string, pages int"
    days = "SELECT DATE'2026-01-01' AS day, 'v1' AS visit, 1 AS pages UNION ALL SELECT DATE'2026-01-02', 'v1', 2"
    spark.sql(days).write.format("delta").partitionBy("day").save(path)
    away = [Path(path, file) for file, at in live_files(path).items() if at["day"] == "2026-01-01"]
    for file in away:
        file.rename(file.with_suffix(".away"))
    changes = spark.sql("SELECT DATE'2026-01-02' AS day, 'v1' AS visit, 7 AS pages UNION ALL "
                        "SELECT DATE'2026-01-03', \"it's\", 1")  # fmt: skip
    merge_changes(changes, path, keys=["day", "visit"])
    for file in away:
        file.with_suffix(".away").rename(file)
    assert [row[1:] for row in table(spark, path)] == [("v1", 1), ("v1", 7), ("it's", 1)]
    assert (
        spark.read.format("delta").load(path).schema.simpleString()
        == f"struct<{schema.replace(' ', ':').replace(',:', ',')}>"
    )


def test_history_keeps_each_version_whatever_the_order_of_arrival(spark: SparkSession, path: str) -> None:
    schema = "`user.id` int, country string, since int"
    history = Scd2(valid_from="since", valid_to="until", current="now")
    for batch in [[(1, "PL", 5)], [(1, "FR", 1), (2, "DE", 2)], [(1, "FR", 1)], [(1, "IT", 3)]]:
        merge_changes(spark.createDataFrame(batch, schema), path, keys=["user.id"], history=history)
    louder = spark.createDataFrame([(1, "IT", 3)], schema.replace("country", "Country"))
    merge_changes(louder, path, keys=["user.id"], history=history)
    wider = spark.createDataFrame([(1, "IT", 3, 7)], f"{schema}, age int")
    with pytest.raises(SchemaChangeError, match="a column age that the table lacks"):
        merge_changes(wider, path, keys=["user.id"], history=history)
    assert table(spark, path) == [
        (1, "FR", 1, 3, False),
        (1, "IT", 3, 5, False),
        (1, "PL", 5, None, True),
        (2, "DE", 2, None, True),
    ]


@pytest.mark.parametrize("own", ["valid_to", "Is_Current"])
def test_a_feed_that_has_a_column_of_the_history_is_refused_before_anything_is_written(
    spark: SparkSession, path: str, own: str
) -> None:
    given = {"keys": ["user"], "history": Scd2(valid_from="since")}
    plain = spark.createDataFrame([(1, 5)], "user int, since int")
    taken = spark.createDataFrame([(2, 5, "theirs")], f"user int, since int, {own} string")
    for there in (False, True):
        with pytest.raises(InputError, match=f"a column {own}, which Scd2 makes itself. Nothing was written") as told:
            merge_changes(taken, path, **given, new_columns="add")  # type: ignore[arg-type]
        assert "choose other names for valid_to and current" in (told.value.hint or "")
        with pytest.raises(InputError, match="Scd2 makes itself"):
            chain_versions(taken, None, **given)  # type: ignore[arg-type]
        if there:
            assert table(spark, path) == [(1, 5, None, True)]
        else:
            assert not Path(path).exists()
            merge_changes(plain, path, **given)  # type: ignore[arg-type]
    history = Scd2(valid_from="since", valid_to="until", current="now")
    merge_changes(taken, f"{path}-2", keys=["user"], history=history)
    assert table(spark, f"{path}-2") == [(2, 5, "theirs", None, True)]


VERSION = st.tuples(st.sampled_from([1, 2]), st.integers(0, 5))


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(changes=st.lists(VERSION, min_size=1, max_size=6, unique=True), cut=st.integers(0, 6))
def test_the_versions_of_a_key_form_one_chain(spark: SparkSession, changes: list[tuple[int, int]], cut: int) -> None:
    schema, history = "user int, since int", Scd2(valid_from="since")
    known: list[tuple[object, ...]] = []
    for batch in (changes[:cut], changes[cut:], changes[cut:]):
        if not batch:
            continue
        before = spark.createDataFrame(known, f"{schema}, valid_to int, is_current boolean") if known else None
        chain = chain_versions(spark.createDataFrame(batch, schema), before, keys=["user"], history=history)
        new = rows(chain)
        touched = {user for user, _ in batch}
        known = new + [row for row in known if row[0] not in touched]
    for user in {user for user, _ in changes}:
        starts = sorted(since for of, since in changes if of == user)
        expected = [(user, a, b, b is None) for a, b in zip(starts, [*starts[1:], None], strict=True)]
        assert sorted((row for row in known if row[0] == user), key=lambda row: row[1]) == expected  # type: ignore[return-value, arg-type]


def test_a_wrong_option_is_refused_before_spark_is_needed() -> None:
    for options, word in [
        ({"keys": "user"}, "list"),
        ({"keys": []}, "list"),
        ({"keys": ["a"], "delete": "gone"}, "hard"),
        ({"keys": ["a"], "deleted": "x", "history": Scd2(valid_from="at")}, "history"),
    ]:
        with pytest.raises(ConfigurationError, match=word):
            Merger(**options)  # type: ignore[arg-type]
    for same in ("at", "At"):
        with pytest.raises(ConfigurationError, match="three different"):
            Scd2(valid_from="at", valid_to=same)
    for key in ("at", "Valid_To", "is_current"):
        with pytest.raises(ConfigurationError, match=f"the key {key} is a column of the history"):
            Merger(keys=["user", key], history=Scd2(valid_from="at"))
