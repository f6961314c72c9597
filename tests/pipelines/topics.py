"""Topics for tests of triggers, and what readers find in a topic that a dataset goes to."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

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


class Told(NamedTuple):
    """A message of a dataset: of which slice, by which sending, with what."""

    slice_id: str
    number: int
    key: str | None
    value: str | None


def committed(kafka: Kafka, topic: str) -> list[Told]:
    """What a reader of committed messages sees, in the order of each partition."""
    partitions = KafkaClient("test", kafka.bootstrap).state(topic, "read_committed").high
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "test", "isolation.level": "read_committed",
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"{topic}: nothing comes, and the end is not reached"
        if message.error() is not None:
            ended.add(message.partition())
            continue
        headers = {name: value.decode() for name, value in message.headers() or ()}
        key, value = (None if part is None else part.decode() for part in (message.key(), message.value()))
        found.append(Told(headers["lw-slice"], int(headers["lw-number"]), key, value))
    consumer.close()
    return found
