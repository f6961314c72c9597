"""Joining a reference as of a moment: exactly the left rows, each with the version of its own time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.patterns.delta import rows

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.data_value.static_joiner import join_as_of

VISITS = "visit int, user int, at int"
USERS = "user int, country string, valid_from int, valid_to int"
VERSIONS = [(1, "FR", 2, 4), (1, "PL", 4, None), (2, "DE", 3, 5)]


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.lists(st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(0, 7)), max_size=8),
    before_first=st.sampled_from(["null", "extend"]),
)
def test_each_row_gets_the_version_of_its_time_and_none_is_lost_or_doubled(
    spark: SparkSession, found: list[tuple[int | None, int | None]], before_first: str
) -> None:
    visits = spark.createDataFrame([(n, *visit) for n, visit in enumerate(found)], VISITS)
    users = spark.createDataFrame(VERSIONS, USERS)
    joined = join_as_of(visits, users, keys=["user"], at="at", before_first=before_first)  # type: ignore[arg-type]

    def expected(user: int | None, at: int | None) -> str | None:
        if user is None or at is None:
            return None
        known = [version for version in VERSIONS if version[0] == user]
        for n, (_, country, begin, end) in enumerate(known):
            early = n == 0 and before_first == "extend"
            if (early or begin <= at) and (end is None or at < end):
                return country
        return None

    assert rows(joined) == rows(visits.sparkSession.createDataFrame(
        [(n, *visit, expected(*visit)) for n, visit in enumerate(found)], f"{VISITS}, country string"
    ))  # fmt: skip


def test_keys_of_two_columns_and_other_names_for_the_times(spark: SparkSession) -> None:
    sales = spark.createDataFrame([("FR", 1, 5), ("PL", 1, 5)], "shop string, item int, at int")
    prices = spark.createDataFrame([("FR", 1, 9, 1, None)], "shop string, item int, price int, since int, until int")
    joined = join_as_of(sales, prices, keys=["shop", "item"], at="at", valid_from="since", valid_to="until")
    assert rows(joined) == [("FR", 1, 5, 9), ("PL", 1, 5, None)]


def test_what_cannot_be_joined_is_refused_by_name(spark: SparkSession) -> None:
    visits = spark.createDataFrame([(1, 1, 1)], VISITS)
    users = spark.createDataFrame(VERSIONS, USERS)
    with pytest.raises(MissingColumnsError, match="left side"):
        join_as_of(visits, users, keys=["user"], at="att")
    with pytest.raises(MissingColumnsError, match="reference"):
        join_as_of(visits, users, keys=["visit"], at="at")
    with pytest.raises(ConfigurationError, match="both sides have a column country"):
        join_as_of(visits.selectExpr("*", "'x' AS country"), users, keys=["user"], at="at")
    with pytest.raises(ConfigurationError, match="before_first"):
        join_as_of(visits, users, keys=["user"], at="at", before_first="guess")  # type: ignore[arg-type]
