"""What others get of the blog's data: copies that lie outside the lake, tables of PostgreSQL and messages."""

from pyspark.sql import DataFrame

from lakewright import (
    KafkaMessages,
    KeyedIdempotency,
    Pipeline,
    PostgresParts,
    PostgresProxy,
    StatefulMerger,
    TransformationReplicator,
    WhenReady,
)

# On Sundays, once the figures of Saturday are marked as complete.
exports = Pipeline(
    "exports",
    schedule="@weekly",
    start="2026-01-01",
    grid="day",
    waits_for=WhenReady("daily_pages", within="12 hours"),
)

# The contract of clean_visits says which columns are personal; those do not leave.
exports.replicate(
    "visits_for_partners",
    "clean_visits",
    TransformationReplicator(tags={"personal": None}),
    to="exports/partners/visits",
    event_time="event_time",
    description="Visits without what tells who made them",
)


@exports.dataset(
    layer="gold",
    event_time="event_time",
    rows="reduce",
    into=PostgresParts("blog_db", "analytics.visits", clean="drop"),
)
def analyst_visits(clean_visits: DataFrame) -> DataFrame:
    """Visits for those who ask in PostgreSQL: each day is a table of its own, and is made again by DROP."""
    return clean_visits.select("visit_id", "event_time", "page", "referral", "browser", "country")


@exports.dataset(layer="gold", into=PostgresProxy("blog_db", "analytics.devices"))
def device_catalogue(devices: DataFrame) -> DataFrame:
    """Every release of the devices stays as it was; the view shows the newest."""
    return devices


@exports.dataset(
    layer="gold",
    event_time="event_date",
    rows="reduce",
    guards_in={"daily_pages": [KeyedIdempotency(columns=["event_date", "page"], into="figure")]},
    into=KafkaMessages("broker", "page-figures", key="figure", ledger="page-figures-ledger"),
)
def page_figures(daily_pages: DataFrame) -> DataFrame:
    """The figures of a day as messages, in one transaction; a figure that is sent again has the same key."""
    return daily_pages


@exports.dataset(layer="gold", writer=StatefulMerger(keys=["user_id"], sequence="updated_at"), history="30 days")
def current_users(users: DataFrame) -> DataFrame:
    """Users as they are now; an arrival that is repeated takes the table back to what it had found."""
    return users
