"""The blog's legacy producers: they write visits into a table of PostgreSQL, correct some and delete others."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

__all__ = ["apply_changes", "fresh_table", "rows", "wait_for_messages"]

TABLE = """
DROP TABLE IF EXISTS legacy_visits;
CREATE TABLE legacy_visits (
    visit_id text PRIMARY KEY,
    visited_at timestamptz NOT NULL,
    user_id text,
    page text NOT NULL,
    seconds numeric(8, 2),
    note text
);
"""
WRITE = """
INSERT INTO legacy_visits
SELECT 'legacy-' || n, timestamptz '2026-01-01 00:00:00+00' + n * interval '7 minutes',
       CASE WHEN n %% 5 > 0 THEN 'u-' || lpad((n %% 90)::text, 7, '0') END, '/posts/' || n %% 20, n / 8.0,
       CASE WHEN n %% 3 = 0 THEN 'déjà vu' END
FROM generate_series(%s::int, %s::int) n
"""
ROWS = """
SELECT visit_id, to_char(visited_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), user_id, page, seconds::text, note
FROM legacy_visits ORDER BY visit_id
"""
FIRST, DAILY = 100, 40
TIMEOUT_SECONDS = 60.0


def fresh_table(url: str) -> int:
    """Make the table anew, with the visits of earlier days; returns how many."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
        return connection.execute(WRITE, (1, FIRST)).rowcount


def apply_changes(url: str, day: int) -> Counter[str]:
    """What the producers do on a day (1, 2, ...), each statement by itself; counts ``insert``, ``update``, ``delete``.

    Some rows change twice, and one that was deleted comes back under its key.
    """
    newest = FIRST + day * DAILY
    number = "substr(visit_id, 8)::int"
    statements: list[tuple[str, str, tuple[Any, ...]]] = [
        ("insert", WRITE, (newest - DAILY + 1, newest)),
        ("update", f"UPDATE legacy_visits SET page = '/moved/' || %s WHERE {number} %% 6 = %s", (day, day)),
        ("update", f"UPDATE legacy_visits SET note = NULL, seconds = seconds + 1 WHERE {number} %% 12 = %s", (day,)),
        ("delete", f"DELETE FROM legacy_visits WHERE {number} %% 15 = %s", (day,)),
        ("insert", WRITE, (15 + day, 15 + day)),
    ]
    done: Counter[str] = Counter()
    with psycopg.connect(url, autocommit=True) as connection:
        for kind, statement, values in statements:
            done[kind] += connection.execute(statement, values).rowcount  # type: ignore[arg-type]
    return done


def rows(url: str) -> list[tuple[str | None, ...]]:
    """The table as it stands, in the order of its key, times and figures as text."""
    with psycopg.connect(url) as connection:
        return connection.execute(ROWS).fetchall()


def wait_for_messages(servers: str, topic: str, count: int) -> int:
    """Wait until a topic of one partition holds so many committed messages; returns how many there are then."""
    found, deadline = 0, time.monotonic() + TIMEOUT_SECONDS
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "demo", "isolation.level": "read_committed", "log_level": 2}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while found < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            found += message is not None and message.error() is None
    finally:
        consumer.close()
    return found
