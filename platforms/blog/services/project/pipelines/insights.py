"""Figures of days and weeks for those who plan the blog."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakewright import (
    ByMetadata,
    ConcurrentRunner,
    DistributedAggregator,
    ExclusiveChoice,
    LocalAggregator,
    Pipeline,
    UnalignedFanIn,
    WhenReady,
)
from lakewright.patterns.data_flow.exclusive_choice import ChoiceFacts

# Other people's figures: their weeks need each other as little as they need to be first, and they begin when the visits
# of Sunday are there.
insights = Pipeline(
    "insights",
    schedule="0 0 * * MON",
    start="2026-01-01",
    grid="day",
    runs=ConcurrentRunner(limit=2, pool="reports"),
    waits_for=WhenReady("clean_visits", within="12 hours"),
)

CUBE = DistributedAggregator(
    by=["event_date"],
    cube=["country", "device_type"],
    measures={"visits": "count(*)", "visitors": "count(DISTINCT user_id)"},
    keep_parts=True,
)
BY_COUNTRY = LocalAggregator({"users": "count(*)"}, by=["country"], layout="one task")


@insights.dataset(layer="gold", event_time="event_date", rows="reduce")
def daily_cube(clean_visits: DataFrame) -> DataFrame:
    """Visits and visitors per day, by country and device, and over all of them."""
    return CUBE.cells(clean_visits)


# A week without one of its days is better than none: each row tells, and the day makes the week anew when it comes.
@insights.dataset(layer="gold", event_time="week", grid="week", rows="reduce", fan_in=UnalignedFanIn())
def weekly_cube(daily_cube: DataFrame) -> DataFrame:
    """The same per week, made of the days: who came on two of them is one visitor."""
    weeks = daily_cube.withColumn("week", F.expr("CAST(date_trunc('week', event_date) AS DATE)"))
    return CUBE.combined(weeks, by=["week"])


@insights.dataset(layer="gold", rows="reduce")
def users_by_country(current_users: DataFrame) -> DataFrame:
    """Where users live now: a small table, summed up by one task, so that no row is moved."""
    return BY_COUNTRY.rows(current_users)


@insights.dataset(layer="gold", rows="reduce")
def many_users_by_country(current_users: DataFrame) -> DataFrame:
    """The same for a table that is too large for one task."""
    return current_users.groupBy("country").agg(F.count("*").alias("users"))


def by_size(facts: ChoiceFacts) -> str:
    """By the rows that receipts tell: none is counted for it."""
    return "many" if (facts.rows or 0) > 5_000_000 else "few"


insights.choose(
    "size_of_users",
    ExclusiveChoice(
        by=ByMetadata(by_size, of="current_users"),
        branches={"few": "users_by_country", "many": "many_users_by_country"},
    ),
)
