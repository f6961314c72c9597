"""A project whose visits come from a topic, as a stream. For tests only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime

from lakewright.testing.kafka import Kafka

VISITS = """
    from lakewright import DeadLetter, KafkaTopic, Merger, Pipeline, Whole

    visits = Pipeline("visits", schedule="@daily", start="2026-01-01")
    visits.source("raw", KafkaTopic("broker", "{topic}"), schema="id string, at timestamp, page string",
                  event_time="at", mode="stream", max_records={max_records})

    @visits.dataset(event_time="at", rows="preserve")
    def clean(raw):
        '''Visits that can be trusted.'''
        return raw
"""


def visits_project(kafka: Kafka, topic: str, more: str = "", *, max_records: int = 1000) -> dict[str, str]:
    """The files of the project; ``more`` declares further datasets."""
    text = VISITS.replace("{topic}", topic).replace("{max_records}", str(max_records))
    settings = f'name = "visits"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    return {"lakewright.toml": settings, "pipelines/visits.py": text + more}


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.1)


def visit(number: int, at: str = "2026-01-01T10:00:00Z", page: str = "/") -> dict[str, object]:
    return {"id": f"v{number}", "at": at, "page": page}


def send(kafka: Kafka, topic: str, values: Iterable[dict[str, object] | str | None], partition: int = 0) -> None:
    """Send messages and wait until the broker has them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for value in values:
        text = json.dumps(value) if isinstance(value, dict) else value
        producer.produce(topic, value=text, partition=partition)
    assert producer.flush(30) == 0


def send_at(kafka: Kafka, topic: str, at: datetime, values: Iterable[dict[str, object]], partition: int = 0) -> None:
    """Send messages whose own time is ``at``, and wait until the broker has them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value=json.dumps(value), partition=partition, timestamp=int(at.timestamp() * 1000))
    assert producer.flush(30) == 0


def delete_before(kafka: Kafka, topic: str, offset: int, partition: int = 0) -> None:
    """Let the broker delete what lies before an offset, as its retention would."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin, place = AdminClient({"bootstrap.servers": kafka.bootstrap}), TopicPartition(topic, partition, offset)
    admin.delete_records([place])[place].result(30)


def make_anew(kafka: Kafka, topic: str, partitions: int = 1) -> None:
    """Delete a topic, and make another one under its name."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])[topic].result(30)
