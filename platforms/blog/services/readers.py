"""Those who read what the blog publishes: analysts in PostgreSQL, and consumers of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import psycopg
from confluent_kafka import Consumer, TopicPartition

__all__ = ["Received", "fresh_schema", "keys_of", "messages_of", "rows_and_tables"]

SCHEMA = "analytics"
TIMEOUT_SECONDS = 30.0


def fresh_schema(url: str) -> None:
    """An empty schema for analysts; what an earlier demo has left there goes with its ledger."""
    with psycopg.connect(url) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())


def rows_and_tables(url: str, view: str) -> tuple[int, int]:
    """How many rows a view shows, and how many tables of its name lie beside it."""
    behind = "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
    with psycopg.connect(url) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {SCHEMA}.{view}".encode()).fetchone() or (0,)
        (tables,) = connection.execute(behind, (SCHEMA, f"{view}_")).fetchone() or (0,)
    return rows, tables


class Received(NamedTuple):
    """A message, as a consumer sees it."""

    key: str
    value: str
    headers: Mapping[str, str]


def keys_of(servers: str, topic: str) -> list[str]:
    """The keys of all committed messages of a topic of one partition, in their order."""
    return [message.key for message in messages_of(servers, topic)]


def messages_of(servers: str, topic: str) -> list[Received]:
    """All committed messages of a topic of one partition, in their order."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "demo", "isolation.level": "read_committed", "log_level": 2,
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Received] = []
    try:
        while (message := consumer.poll(TIMEOUT_SECONDS)) is not None and message.error() is None:
            headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
            found.append(Received((message.key() or b"").decode(), (message.value() or b"").decode(), headers))
    finally:
        consumer.close()
    return found
