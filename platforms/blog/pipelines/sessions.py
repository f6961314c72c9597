"""Sessions of the blog's readers: what somebody read in one go."""

from pyspark.sql import DataFrame

from lakewright import After, Pipeline, Repair, Sessions

# Figures of visits may fail without holding up sessions: `clean_visits` is all that they read.
reading = Pipeline("sessions", schedule=After("visits", task="clean_visits"), start="2026-01-01")


@reading.dataset(
    layer="gold",
    sessions=Sessions(keys=["user_id"], gap="30 minutes", collect={"pages": "page"}, max_events=500),
    # Most late visits come within three days: waiting for them costs less than making every later day again.
    wait="3 days",
    late=Repair(within="7 days"),
)
def reading_sessions(clean_visits: DataFrame) -> DataFrame:
    """Which pages a reader saw with at most half an hour between two visits; midnight does not matter."""
    return clean_visits
