"""The messages of some offsets, read by the driver: in the order of each partition, never beyond the end asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from lakewright.connectors.kafka_client import Isolation, KafkaClient
from lakewright.connectors.kafka_errors import in_words, timed_out
from lakewright.errors import TargetError

__all__ = ["read_messages"]

_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def read_messages(
    client: KafkaClient, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: Isolation
) -> Iterator[Any]:
    """The client's own messages with ``first <= offset < end`` of each partition; gives up when none comes for long."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    ends = {partition: end for partition, (first, end) in ranges.items() if end > first}
    if not ends:
        return
    settings: dict[str, Any] = {
        **client.driver_options(),
        "group.id": "lakewright.copy",  # asked for, but no group is joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "fetch.wait.max.ms": 10,
    }
    with in_words(client.explain(topic, "Nothing was published.")):
        consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in sorted(ends)])
        until = time.monotonic() + _SECONDS
        while ends:
            with in_words(client.explain(topic, "Nothing was published.")):
                message = consumer.poll(_LOOK_SECONDS)
                error = None if message is None else message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
            if message is None:
                if time.monotonic() > until:
                    raise TargetError(
                        f"{client.who}: the topic '{topic}' gave no message for {_SECONDS:.0f} s. Nothing was "
                        "published.",
                        hint="Is the broker well? Run again: the same messages are copied.",
                    ) from timed_out("no message came")
                continue
            until = time.monotonic() + _SECONDS
            partition, offset = cast(int, message.partition()), cast(int, message.offset())
            if partition not in ends:
                continue
            if offset >= ends[partition]:  # a message of later, or the end: what is between are marks of transactions
                del ends[partition]
            elif error is None:
                yield message
                if offset + 1 >= ends[partition]:
                    del ends[partition]
    finally:
        consumer.close()
