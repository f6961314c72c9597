"""What others get of the blog's data: copies that lie outside the lake, each day of them proven."""

from lakewright import Pipeline, TransformationReplicator

exports = Pipeline("exports", schedule="@weekly", start="2026-01-01", grid="day")

# The contract of clean_visits says which columns are personal; those do not leave.
exports.replicate(
    "visits_for_partners",
    "clean_visits",
    TransformationReplicator(tags={"personal": None}),
    to="exports/partners/visits",
    event_time="event_time",
    description="Visits without what tells who made them",
)
