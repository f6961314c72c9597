"""A project whose visits come from a topic, as a stream. For tests only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

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
