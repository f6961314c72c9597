"""Figures of days and weeks for those who plan the blog."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakewright import DistributedAggregator, LocalAggregator, Pipeline

insights = Pipeline("insights", schedule="0 0 * * MON", start="2026-01-01", grid="day")

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


@insights.dataset(layer="gold", event_time="week", grid="week", rows="reduce")
def weekly_cube(daily_cube: DataFrame) -> DataFrame:
    """The same per week, made of the days: who came on two of them is one visitor."""
    weeks = daily_cube.withColumn("week", F.expr("CAST(date_trunc('week', event_date) AS DATE)"))
    return CUBE.combined(weeks, by=["week"])


@insights.dataset(layer="gold", rows="reduce")
def users_by_country(current_users: DataFrame) -> DataFrame:
    """Where users live now: a small table, summed up by one task, so that no row is moved."""
    return BY_COUNTRY.rows(current_users)
