"""Where the blog's rows come from: files that land in a folder.

The steps know sources by their names alone, so this is the one file that another way in replaces: with
``services/project/pipelines/sources.py`` in its place, visits come from Kafka and users from PostgreSQL.
"""

from pathlib import Path

from lakewright import Compactor, CsvFiles, FullLoader, JsonFiles, Pipeline, load_contract

CONTRACTS = Path(__file__).parent.parent / "contracts"

sources = Pipeline("sources", schedule="@daily", start="2026-01-01")

sources.source(
    "raw_visits",
    JsonFiles("landing/visits"),
    contract=load_contract(CONTRACTS / "raw_visits.yaml"),
    maintenance=Compactor(),
)
sources.source(
    "users",
    JsonFiles("landing/users"),
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
