"""Topics for tests of triggers."""

from __future__ import annotations

import time

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.errors import InputError
from lakewright.testing.kafka import Kafka


def fresh_topic(kafka: Kafka, *, partitions: int = 1) -> str:
    """An empty topic that the broker knows to tell of: it may make one a moment before it does."""
    topic, client, until = (
        kafka.topic(partitions=partitions),
        KafkaClient("test", kafka.bootstrap),
        time.monotonic() + 20,
    )
    while True:
        try:
            client.state(topic, "read_committed")
        except InputError:
            if time.monotonic() > until:
                raise
        else:
            return topic
