"""Where the blog's rows come from: visits as a stream from Kafka, users from PostgreSQL, pages from a file."""

from pathlib import Path

from lakewright import Compactor, CsvFiles, FullLoader, IncrementalLoader, Jdbc, KafkaTopic, Pipeline, load_contract

CONTRACTS = Path(__file__).parent.parent / "contracts"

sources = Pipeline("sources", schedule="@daily", start="2026-01-01")

sources.source(
    "raw_visits",
    KafkaTopic("broker", "visits"),
    contract=load_contract(CONTRACTS / "raw_visits.yaml"),
    mode="stream",
    every="2 seconds",
    max_records=100_000,
    maintenance=Compactor(min_files=4),
)
sources.source(
    "users",
    Jdbc("blog_db", table="users"),
    load=IncrementalLoader(cursor="updated_at", overlap="1 hour", keys=["user_id"]),
    schema="user_id string, login string, country string, device_id string, "
    "registered_at timestamp, updated_at timestamp",
    event_time="updated_at",
    start="2000-01-01",
    description="Users as they were registered or changed",
)
sources.source(
    "pages",
    CsvFiles("landing/pages"),
    load=FullLoader(),
    schema="page string, title string, category string, author string",
    description="The pages of the blog",
)
