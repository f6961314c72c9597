"""The blog's devices table in PostgreSQL, and the event by which its owners tell that they have released a new one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import psycopg
from confluent_kafka import Producer

__all__ = ["announce", "fresh_table"]

TABLE = """
DROP TABLE IF EXISTS devices;
CREATE TABLE devices (device_id text PRIMARY KEY, type text NOT NULL, full_name text NOT NULL, version text NOT NULL);
"""
TIMEOUT_SECONDS = 30.0


def fresh_table(url: str, file: Path) -> int:
    """Make the table anew from the generated file; returns the number of devices."""
    with file.open(encoding="utf-8", newline="") as lines:
        devices = [tuple(row.values()) for row in csv.DictReader(lines)]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE)
        cursor.executemany("INSERT INTO devices VALUES (%s, %s, %s, %s)", devices)
    return len(devices)


def announce(servers: str, topic: str, release: str) -> None:
    """Tell that devices were released, twice, as brokers sometimes deliver: it is the same event by its id."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2})
    for _ in range(2):
        producer.produce(topic, json.dumps({"id": release, "type": "release"}).encode())
    producer.flush(TIMEOUT_SECONDS)
