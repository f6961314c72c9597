"""Topics for tests of triggers, and what readers find in a topic that a dataset goes to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

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
    found = []
    for message in _messages(kafka, topic):
        headers = {name: value.decode() for name, value in message.headers() or ()}
        key, value = (None if part is None else part.decode() for part in (message.key(), message.value()))
        found.append(Told(headers["lw-slice"], int(headers["lw-number"]), key, value))
    return found


COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
"""Settings of a topic that the broker cleans as soon as it may."""
_NUDGE = b"nudge"


def after_cleaning(kafka: Kafka, topic: str) -> list[tuple[bytes, bytes | None]]:
    """Keys and values that are left when the broker's own cleaner has been at work, which this waits for.

    The newest segment is never cleaned: a message under a key of its own, which says that the key is gone, lets the
    broker begin another one.
    """
    producer, until = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0}), time.monotonic() + 60
    while True:
        producer.produce(topic, key=_NUDGE, value=None)
        assert producer.flush(30) == 0
        found = [(one.key(), one.value()) for one in _messages(kafka, topic) if one.key() != _NUDGE]
        if len(found) == len({key for key, _ in found}):
            return found
        assert time.monotonic() < until, f"{topic} is not cleaned: {found}"
        time.sleep(0.2)


def _messages(kafka: Kafka, topic: str) -> Iterator[Message]:
    """Committed messages from the beginning to the end that the topic has now."""
    partitions = KafkaClient("test", kafka.bootstrap).state(topic, "read_committed").high
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "test", "isolation.level": "read_committed",
         "enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    ended = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"{topic}: nothing comes, and the end is not reached"
        if message.error() is not None:
            ended.add(message.partition())
        else:
            yield message
    consumer.close()
