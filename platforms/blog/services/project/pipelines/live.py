"""What is known of visits within seconds: those that came in time, their sessions, and readers of the old site too."""

from pyspark.sql import DataFrame

from lakewright import After, DynamicJoiner, LateDataDetector, Pipeline, Sessions, Wrapper

live = Pipeline("live", schedule=After("sources"), start="2026-01-01")


@live.dataset(
    mode="stream",
    event_time="event_time",
    # By the visit that is furthest on, as the watermark of what follows is: it then leaves none out.
    guards_in={"raw_visits": [LateDataDetector("2 hours", across="max", stop_above=0.9)]},
    wrap=Wrapper(
        {
            "event_time": "CAST(event_time AS TIMESTAMP)",
            "user_id": "user_id",
            "section": "split_part(page, '/', 2)",
        }
    ),
)
def visits_in_time(raw_visits: DataFrame) -> DataFrame:
    """Visits that were sent within two hours, as they came, and what was made of them; others are in the late table."""
    return raw_visits


@live.dataset(
    mode="stream",
    layer="gold",
    # What `reading_sessions` declares for days, and how late a visit may be.
    sessions=Sessions(
        keys=["user_id"], gap="30 minutes", collect={"pages": "page"}, max_events=500, lateness="2 hours"
    ),
)
def live_sessions(visits_in_time: DataFrame) -> DataFrame:
    """What a reader saw in one go, as soon as it is over; a visit that was sent twice counts twice here."""
    known = visits_in_time.where("raw.visit_id IS NOT NULL AND raw.page LIKE '/%'")
    return known.select("user_id", "event_time", "raw.page")


@live.dataset(
    mode="stream",
    event_time="event_time",
    inputs={
        "pairs": DynamicJoiner(
            left="visits_in_time",
            right="visit_changes",
            keys=["user_id"],
            left_time="event_time",
            right_time="visited_at",
            within="1 hour",
            left_watermark="2 hours",
            right_watermark="7 days",  # so long are visits of the old site corrected
        )
    },
)
def visits_of_both_sites(pairs: DataFrame) -> DataFrame:
    """Readers who were on the new site and on the old one within an hour: each visit here with each change there."""
    return pairs.select("user_id", "event_time", "section", "visited_at", "page")
