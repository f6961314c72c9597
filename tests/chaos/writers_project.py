"""A small project that has every writer, fed by files and by a topic: what `test_every_writer` kills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakewright.connectors.postgres_keeper import set_up_keeper
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

__all__ = ["AT", "DAYS", "Places", "files_of", "prepare"]

AT = "2026-01-05"
"""The clock of every run: all days are over."""
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")

PIPELINE = """
    from pyspark.sql import functions as F

    from lakewright import (DataOverwrite, DeadLetter, FileProxy, JsonFiles, KafkaMessages, KafkaTopic,
                            KeyedIdempotency, Merger, Pipeline, PostgresParts, PostgresProxy, PostgresTable,
                            PostgresVersions, Scd2, StatefulMerger)

    every = Pipeline("every", start="2026-01-01")
    every.source("changes", JsonFiles("landing/changes"), schema="id int, seq int, gone boolean, at timestamp",
                 event_time="at")
    every.source("fixes", JsonFiles("landing/fixes"), schema="id int, seq int, gone boolean")
    every.source("events", KafkaTopic("broker", "{events}"), schema="id int, at timestamp, page string",
                 event_time="at", mode="stream", max_records=1000)


    def totals(rows):
        return rows.groupBy(F.to_date("at").alias("day")).agg(F.count("*").alias("n"), F.sum("id").alias("ids"))


    # In the lake, of files.

    @every.dataset(event_time="at", guards_in={"changes": [DeadLetter(rules={"has_id": "id IS NOT NULL"},
                                                                   record="whole")]})
    def days(changes):
        return changes

    @every.dataset(writer=Merger(keys=["id"], sequence="seq", deleted="gone", delete="soft"))
    def current(changes):
        return changes.where("id IS NOT NULL").select("id", "seq", "gone")

    @every.dataset(writer=Merger(keys=["id"], history=Scd2(valid_from="at")))
    def versions(changes):
        return changes.where("id IS NOT NULL").select("id", "seq", "at")

    @every.dataset(writer=StatefulMerger(keys=["id"], sequence="seq", deleted="gone"))
    def exact(fixes):
        return fixes

    # In the lake, of a stream.

    @every.dataset(mode="stream", event_time="at",
                   guards_in={"events": [DeadLetter(rules={"has_page": "page IS NOT NULL"})]})
    def paged(events):
        return events

    @every.dataset(mode="stream", writer=Merger(keys=["id"]))
    def followed(current):
        return current.select("id", "seq", "gone")

    @every.dataset(event_time="at", rows="preserve")
    def event_days(events):
        return events

    # In PostgreSQL.

    @every.dataset(event_time="at", into=PostgresTable("db", "pg_days"))
    def pg_days(changes):
        return changes.where("id IS NOT NULL")

    @every.dataset(writer=Merger(keys=["id"], sequence="seq", deleted="gone"), into=PostgresTable("db", "pg_current"))
    def pg_current(changes):
        return changes.where("id IS NOT NULL").select("id", "seq", "gone")

    @every.dataset(writer=StatefulMerger(keys=["id"], sequence="seq", deleted="gone"),
                   into=PostgresTable("db", "pg_exact"))
    def pg_exact(fixes):
        return fixes

    @every.dataset(event_time="at", into=PostgresTable("db", "pg_events"))
    def pg_events(events):
        return events

    @every.dataset(event_time="at", into=PostgresParts("db", "pg_parts", clean="drop"))
    def pg_parts(changes):
        return changes.where("id IS NOT NULL")

    @every.dataset(into=PostgresProxy("loading", "pg_proxy", keeper="{keeper}"))
    def pg_proxy(days):
        return totals(days)

    @every.dataset(into=PostgresVersions("db", "pg_versions"))
    def pg_versions(event_days):
        return totals(event_days)

    # In files.

    @every.dataset(into=FileProxy("exports"))
    def exported(days):
        return totals(days)

    # In topics.

    @every.dataset(event_time="at", into=KafkaMessages("broker", "{told}", ledger="{told}.ledger"))
    def told(events):
        return events

    @every.dataset(event_time="at", into=KafkaMessages("broker", "{keyed}", key="row_key", ledger="{told}.ledger"),
                   guards_in={"changes": [KeyedIdempotency(columns=["id", "seq"], into="row_key")]})
    def keyed(changes):
        return changes
"""
# Room for several at once on two cores: what a kill meets is many writers under way.
TOML = """
    name = "every"
    [targets.dev]
    fast_start = true
    master = "local[2]"
    driver_memory = "1g"
    parallel = 4
    [targets.dev.spark]
    "spark.sql.adaptive.enabled" = "false"
    "spark.sql.codegen.wholeStage" = "false"
    "spark.sql.codegen.factoryMode" = "NO_CODEGEN"
    [connections.db]
    url = "{db}"
    password = "secret://env/CHAOS_DB_PASSWORD"
    [connections.loading]
    url = "{loading}"
    password = "secret://env/CHAOS_LOADER_PASSWORD"
    [connections.broker]
    url = "kafka://{broker}"
"""


@dataclass(frozen=True)
class Places:
    """Where the project reads and writes: a database of its own, and topics of its own."""

    database: Postgres
    vault: Postgres
    """Another one, for what a keeper protects: its loader may create, and nothing else."""
    kafka: Kafka
    loader: str
    keeper: str
    events: str
    told: str
    keyed: str


def prepare(postgres: Postgres, kafka: Kafka, *, environment: Any) -> Places:
    """Make the database, the roles and the topics; the passwords go into the environment of the processes."""
    at, vault = postgres.database(), postgres.database()
    loader, keeper = f"loader_{vault.name}", f"keeper_{vault.name}"
    with vault.connect() as session:
        session.execute(f"CREATE ROLE {loader} LOGIN PASSWORD 'of-this-test'".encode())
        session.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {loader}".encode())
    environment.setenv("CHAOS_DB_PASSWORD", at.password)
    environment.setenv("CHAOS_LOADER_PASSWORD", "of-this-test")
    owner = Connection("vault", _url(vault, vault.user), Secret("secret://env/CHAOS_DB_PASSWORD"))
    set_up_keeper(owner, keeper=keeper, loader=loader)
    compacted = {"cleanup.policy": "compact"}
    return Places(
        at, vault, kafka, loader, keeper, kafka.topic(partitions=2), kafka.topic(partitions=2),
        kafka.topic(partitions=2, settings=compacted),
    )  # fmt: skip


def files_of(places: Places) -> Mapping[str, str]:
    """The project's files."""
    at = places.database
    text, settings = PIPELINE, TOML
    for name in ("events", "told", "keyed", "keeper"):
        text = text.replace(f"{{{name}}}", getattr(places, name))
    for name, value in {
        "db": _url(at, at.user), "loading": _url(places.vault, places.loader), "broker": places.kafka.bootstrap,
    }.items():  # fmt: skip
        settings = settings.replace(f"{{{name}}}", value)
    return {"lakewright.toml": settings, "pipelines/every.py": text}


def _url(at: Postgres, user: str) -> str:
    return f"postgresql://{user}@{at.host}:{at.port}/{at.name}"
