"""Visits of legacy producers: they write to a table of PostgreSQL, of which every change is captured."""

from pyspark.sql import DataFrame

from lakewright import ChangeDataCapture, LatestValue, Pipeline

# Every other night is enough for what others read; meanwhile the changes wait in their topic.
legacy = Pipeline("legacy", schedule="0 0 2-30/2 * *", start="2026-01-01", grid="day")

legacy.source(
    "visit_changes",
    ChangeDataCapture("blog_db", ["legacy_visits"]).of("legacy_visits"),
    schema="visit_id string, visited_at timestamp, user_id string, page string, seconds decimal(8,2), note string",
    mode="stream",
    description="Every change of the legacy visits, in the order of the database's log",
)


@legacy.dataset(mode="stream", writer=LatestValue(keys=["visit_id"]))
def legacy_visits(visit_changes: DataFrame) -> DataFrame:
    """Visits as they stand in the legacy database."""
    return visit_changes
