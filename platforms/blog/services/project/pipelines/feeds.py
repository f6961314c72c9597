"""What others are told as it happened: messages in the order of each reader's own."""

from pyspark.sql import DataFrame

from lakewright import After, BinPackOrderer, FifoOrderer, KafkaMessages, MetadataDecorator, Pipeline, SingleRunner

# One day after another: what a reader did on Monday is sent before what the same one did on Tuesday. Sent once a week,
# after the first visits of it; whether a backfill of visits is sent again, somebody decides.
feeds = Pipeline(
    "feeds",
    schedule=After("visits", every="week", backfills="ask"),
    start="2026-01-01",
    grid="day",
    runs=SingleRunner(depends_on_past=True),
)


@feeds.dataset(
    layer="gold",
    event_time="event_time",
    into=KafkaMessages(
        "broker",
        "visit-feed",
        key="user_id",
        order=FifoOrderer(by="event_time", per="user_id", then=["visit_id"]),
        ledger="feeds-ledger",
    ),
    metadata=MetadataDecorator(["job_version", "batch"], where="native", version="1.2.0"),
)
def visit_feed(clean_visits: DataFrame) -> DataFrame:
    """Visits as messages; their headers tell which release of this step made them, and of which day."""
    return clean_visits.select("visit_id", "event_time", "user_id", "page", "country")


@feeds.dataset(
    layer="gold",
    into=KafkaMessages(
        "broker",
        "user-changes",
        key="user_id",
        order=BinPackOrderer(per="user_id", by="updated_at"),
        ledger="feeds-ledger",
    ),
)
def user_changes(users: DataFrame) -> DataFrame:
    """Who came, and who moved where."""
    return users.select("user_id", "country", "updated_at")
