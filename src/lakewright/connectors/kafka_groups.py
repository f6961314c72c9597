"""The positions of a consumer group, which the broker keeps.

Guarantee:
    A group begins once, for all partitions of its topic together: one that begins at the end has confirmed every end
    before it reads. A partition without a position after that has come later, and is read from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from lakewright.connectors.kafka_client import TopicState
from lakewright.connectors.kafka_errors import code_of

__all__ = ["begin_at_end", "coordinated", "positions_of"]

T = TypeVar("T")
_TIMEOUT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_NOT_YET = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
_HAS_MEMBERS = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS")


def positions_of(consumer: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Where the consumer's group goes on, for those partitions that it has a position of."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(topic, partition) for partition in partitions]
    if not asked:
        return {}
    found = {}
    for partition, place in zip((one.partition for one in asked), consumer.committed(asked, timeout=10), strict=True):
        if place.error is not None:  # it is not known to have none
            raise KafkaException(place.error)
        if place.offset >= 0:
            found[partition] = int(place.offset)
    return found


def begin_at_end(consumer: Any, state: TopicState) -> None:
    """Confirm the end of every partition for a group that has no position at all; one that has any has begun already.

    To be called before the consumer joins its group: a group that has members has begun, and the broker refuses this
    from one that is none.
    """
    from confluent_kafka import TopicPartition

    if coordinated(lambda: positions_of(consumer, state.topic, state.high)):
        return
    ends = [TopicPartition(state.topic, partition, end) for partition, end in state.high.items()]
    try:
        coordinated(lambda: consumer.commit(offsets=ends, asynchronous=False))
    except Exception as error:
        if code_of(error) not in _HAS_MEMBERS:
            raise


def coordinated(ask: Callable[[], T]) -> T:
    """Ask about the offsets of a group; a broker that was started a moment ago does not know them all at once."""
    until = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except Exception as error:
            if code_of(error) not in _NOT_YET or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS)
