"""Windowed Deduplicator in batch: one row per key, always the same one, and rows without a key stay."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.patterns.delta import rows

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.error_management.windowed_deduplicator import WindowedDeduplicator, drop_repeats

SCHEMA = "visit string, page string, at int"
TRIPLE = [("v1", "/b", 2), ("v1", "/a", 1), ("v1", "/c", 3), ("v2", "/a", None), ("v2", "/z", 1)]


@pytest.mark.shows("03.windowed-deduplicator", 1)
def test_of_three_visits_the_newest_or_the_oldest_is_kept(spark: SparkSession) -> None:
    visits = spark.createDataFrame(TRIPLE, SCHEMA)
    newest = drop_repeats(visits, keys=["visit"], order_by=["at"], keep="last")
    oldest = drop_repeats(visits.where("at IS NOT NULL"), keys=["visit"], order_by=["at"])
    assert rows(newest) == [("v1", "/c", 3), ("v2", "/z", 1)]
    assert rows(oldest) == [("v1", "/a", 1), ("v2", "/z", 1)]


@pytest.mark.shows("03.windowed-deduplicator", 2)
def test_a_visit_of_yesterday_is_dropped_only_with_the_wider_scope(spark: SparkSession) -> None:
    yesterday = spark.createDataFrame([("v1", "/a", 1)], SCHEMA)
    today = spark.createDataFrame([("v1", "/a", 1), ("v2", "/a", 2), (None, "/a", 3)], SCHEMA)
    assert len(rows(drop_repeats(today, keys=["visit"]))) == 3
    wider = drop_repeats(today, keys=["visit"], known=yesterday.withColumn("more", yesterday.at))
    assert rows(wider) == [("v2", "/a", 2), (None, "/a", 3)]
    assert wider.columns == today.columns


VISIT = st.tuples(st.none() | st.sampled_from("ab"), st.sampled_from("xy"), st.none() | st.integers(0, 2))


@pytest.mark.shows("03.windowed-deduplicator", 7)
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(VISIT, max_size=8))
def test_a_repeat_gives_the_same_rows_in_whatever_order_they_come(
    spark: SparkSession, found: list[tuple[str | None, str, int | None]]
) -> None:
    once = rows(drop_repeats(spark.createDataFrame(found, SCHEMA), keys=["visit"], order_by=["at"]))
    again = rows(
        drop_repeats(spark.createDataFrame(found[::-1], SCHEMA).repartition(3), keys=["visit"], order_by=["at"])
    )
    assert once == again
    assert len([row for row in once if row[0] is None]) == len([row for row in found if row[0] is None])
    kept = [row[0] for row in once if row[0] is not None]
    assert sorted(kept) == sorted({row[0] for row in found if row[0] is not None})  # type: ignore[type-var]


def test_rows_with_maps_can_be_compared(spark: SparkSession) -> None:
    visits = spark.sql("SELECT 'v1' AS visit, map('a', 1) AS tags UNION ALL SELECT 'v1', map('a', 1)")
    assert drop_repeats(visits, keys=["visit"]).count() == 1


def test_a_key_of_two_columns_with_one_missing_is_no_key(spark: SparkSession) -> None:
    visits = spark.createDataFrame([("v1", None, 1), ("v1", None, 1), ("v1", "/a", 1), ("v1", "/a", 2)], SCHEMA)
    assert len(rows(drop_repeats(visits, keys=["visit", "page"]))) == 3


def test_missing_columns_and_wrong_options_are_refused(spark: SparkSession) -> None:
    visits = spark.createDataFrame(TRIPLE, SCHEMA)
    with pytest.raises(MissingColumnsError, match="Did you mean 'visit' for 'visitt'"):
        drop_repeats(visits, keys=["visitt"])
    with pytest.raises(MissingColumnsError, match="known"):
        drop_repeats(visits, keys=["visit"], known=visits.drop("visit"))
    for options in ({"keys": "visit"}, {"keys": []}, {"keys": ["v"], "order_by": "at"}, {"keys": ["v"], "keep": "any"}):
        with pytest.raises(ConfigurationError):
            WindowedDeduplicator(**options)  # type: ignore[arg-type]
