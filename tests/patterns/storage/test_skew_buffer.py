"""The skew buffer's split: each row once, at most the quota of a partition, the same line every time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.storage.skew_buffer import SkewBuffer, split_by_quota


def test_of_each_partition_the_first_rows_are_within_and_null_is_a_partition(spark: SparkSession) -> None:
    places = [("a", 3), ("a", 1), ("a", 2), (None, 2), (None, 1), (None, 3), ("b", 9)]
    visits = spark.createDataFrame(places, "part string, place int")

    split = split_by_quota(visits, by="part", order="place", quota=2)

    assert split.within.columns == split.surplus.columns == ["part", "place"]
    assert sorted(split.surplus.collect(), key=str) == [("a", 3), (None, 3)]
    assert sorted(map(tuple, split.within.union(split.surplus).collect()), key=str) == sorted(places, key=str)

    # With a limit no more than so many wait: the oldest go beyond the quota.
    limited = split_by_quota(visits, by=["part"], order=["place"], quota=1, limit=1)
    assert sorted(map(tuple, limited.surplus.collect()), key=str) == [("a", 3), (None, 3)]
    roomy = split_by_quota(visits, by="part", order="place", quota=1, limit=9)
    assert roomy.surplus.count() == 4


def test_rows_at_the_same_place_are_told_apart_by_the_other_columns(spark: SparkSession) -> None:
    rows = [("a", 1, {"x": n}, [n], None) for n in (3, 1, 2)]
    schema = "part string, place int, tags map<string, int>, more array<int>, odd struct<m: map<string, int>>"
    first = split_by_quota(spark.createDataFrame(rows, schema), by="part", order="place", quota=1)
    again = split_by_quota(spark.createDataFrame(rows[::-1], schema).repartition(3), by="part", order="place", quota=1)
    assert [row["more"] for row in first.within.collect()] == [row["more"] for row in again.within.collect()] == [[1]]


@pytest.mark.parametrize(
    "options",
    [{"quota": 0}, {"quota": "many"}, {"quota": True}, {"quota": 1, "limit": 0}, {"quota": 1, "by": []},
     {"quota": 1, "order": [""]}],
)  # fmt: skip
def test_a_wrong_option_is_refused_when_it_is_written(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="Skew buffer"):
        SkewBuffer(**options)  # type: ignore[arg-type]


def test_a_column_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(MissingColumnsError) as caught:
        split_by_quota(spark.createDataFrame([(1, 2)], "part int, place int"), by="part", order="plaze", quota=1)
    assert caught.value.missing == ["plaze"]
