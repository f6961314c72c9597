"""Visits of the blog: raw events in, daily figures out. Where the rows come from is said in ``sources.py``."""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakewright import (
    After,
    AsOf,
    DeadLetter,
    FilterInterceptor,
    HorizontalPartitioner,
    Merger,
    Pipeline,
    ReadinessMarker,
    Repair,
    Revisit,
    Scd2,
    SingleRunner,
    WindowedDeduplicator,
    join_as_of,
    load_contract,
)

CONTRACTS = Path(__file__).parent.parent / "contracts"

# Each night's run begins when that of the sources has succeeded, for the same time.
visits = Pipeline("visits", schedule=After("sources"), start="2026-01-01", runs=SingleRunner())


@visits.dataset(layer="silver", writer=Merger(keys=["user_id"], history=Scd2(valid_from="updated_at")))
def users_history(users: DataFrame) -> DataFrame:
    """Every version of a user, with the time it was valid."""
    return users


@visits.dataset(
    layer="silver",
    contract=load_contract(CONTRACTS / "clean_visits.yaml"),
    late=Repair(within="7 days"),
    layout=HorizontalPartitioner(by=["event_date"], derive={"event_date": "to_date(event_time)"}),
    inputs={"users_history": AsOf("event_time")},
    guards_in={
        "raw_visits": [
            DeadLetter(rules={"has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'"}, stop_above=0.2),
            WindowedDeduplicator(keys=["visit_id"]),
        ]
    },
    rows="preserve",
)
def clean_visits(raw_visits: DataFrame, users_history: DataFrame) -> DataFrame:
    """Visits that can be trusted, with the visitor's country at the time."""
    visits = raw_visits.select(
        "visit_id",
        F.col("event_time").cast("timestamp").alias("event_time"),
        "user_id",
        "page",
        "device_id",
        F.col("context.referral").alias("referral"),
        F.col("context.technical.browser").alias("browser"),
        F.col("context.technical.device_type").alias("device_type"),
    )
    versions = users_history.select("user_id", "country", "updated_at", "valid_to")
    located = join_as_of(
        visits, versions, keys=["user_id"], at="event_time", valid_from="updated_at", valid_to="valid_to"
    )
    return located.withColumn("event_date", F.to_date("event_time"))


@visits.dataset(layer="gold", event_time="event_date", rows="reduce", marker=ReadinessMarker(flag_file="_COMPLETED"))
def daily_pages(clean_visits: DataFrame, pages: DataFrame) -> DataFrame:
    """Visits and visitors per page and day."""
    figures = clean_visits.groupBy("event_date", "page").agg(
        F.count("*").alias("visits"), F.countDistinct("user_id").alias("visitors")
    )
    return figures.join(F.broadcast(pages.select("page", "category")), "page", "left")


visits.sql(
    "daily_countries",
    """
    SELECT event_date, country, count(*) AS visits, count(DISTINCT user_id) AS visitors
    FROM clean_visits
    GROUP BY ALL
    """,
    event_time="event_date",
    rows="reduce",
    # The figures of a country stay open for two weeks; then they have been paid for.
    late=Revisit("14 days", placement="after", only_late=True),
    guards_in={
        "clean_visits": [FilterInterceptor(filters={"known_visitor": "country IS NOT NULL"}, stop_above=0.5)],
    },
    description="Visits and visitors per country and day, of visitors whose country is known",
)
