"""A consumer of a topic that says itself when a record counts as read: the Checkpointer without Spark.

Guarantee:
    The position is kept by the broker, for the group. Confirmed *after* the work, a crash in between has records
    handled again, and none is lost; confirmed *before*, they are lost, and none is handled twice. Where the broker no
    longer has the records at the position, it is an error, never a silent start elsewhere. A group that begins at the
    end has confirmed it before it waits: the next call gives what came since. Several members of a group share the
    partitions: each call ends at the end of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import in_words, timed_out
from lakewright.connectors.kafka_groups import begin_at_end, positions_of
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.times import parse_duration

__all__ = ["Commit", "Start", "consume_topic"]

Commit = Literal["after", "before"]
Start = Literal["earliest", "latest"]
_POLL_SECONDS = 0.5


def consume_topic(
    servers: str,
    topic: str,
    handle: Callable[[Any], None],
    *,
    group: str,
    commit: Commit = "after",
    start: Start = "earliest",
    every: int = 1,
    answer_timeout: str = "2 minutes",
    options: Mapping[str, str] | None = None,
) -> int:
    """Call ``handle`` with each message up to the end of the topic; gives how many there were.

    ``start`` counts only where the group has no position yet, of no partition: one that it has none of came later, and
    is read from its beginning. ``every`` is the number of messages between two confirmations: a larger one is faster,
    and more is repeated, or lost, after a crash. It gives up where nothing is heard for ``answer_timeout``; keep it
    above ``session.timeout.ms``, for which a group waits for a member that died.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError

    _check(commit, start, every)
    patience = parse_duration(answer_timeout).total_seconds()
    client = KafkaClient(f"the group {group}", servers, dict(options or {}))
    state = client.state(topic, "read_committed")  # tells a broker or topic that is not there
    settings = {
        **client.driver_options(),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 100,
    }
    consumer = Consumer(settings)
    batch: list[Any] = []
    left: set[int] | None = None
    """The partitions whose end was not seen yet; None while the group has given us none."""

    def begin(who: Any, places: list[Any]) -> None:
        nonlocal left
        with in_words(client.explain(topic, "Nothing was read.")):
            known = positions_of(who, topic, [place.partition for place in places])
        for place in places:
            place.offset = known.get(place.partition, OFFSET_BEGINNING)
        who.assign(places)
        left = {place.partition for place in places}

    def hand_over(who: Any, places: list[Any]) -> None:
        nonlocal left
        left = None
        batch.clear()  # not confirmed: whoever has the partition next reads them again

    handled = 0
    try:
        if start == "latest":
            with in_words(client.explain(topic, "Nothing was read.")):
                begin_at_end(consumer, state)
        consumer.subscribe([topic], on_assign=begin, on_revoke=hand_over)
        until = time.monotonic() + patience
        while left is None or left:
            message: Any = consumer.poll(_POLL_SECONDS)
            if message is None:
                if time.monotonic() > until:
                    raise _silent(topic, group, patience, handled)
                continue
            until = time.monotonic() + patience
            if message.error() is not None:
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise _told(message.error(), topic, group)
                (left or set()).discard(message.partition())
                continue
            batch.append(message)
            if len(batch) >= every:
                handled += _settle(consumer, batch, handle, commit)
                until = time.monotonic() + patience
        return handled + _settle(consumer, batch, handle, commit)
    finally:
        consumer.close()


def _settle(consumer: Any, batch: list[Any], handle: Callable[[Any], None], commit: Commit) -> int:
    """Handle the messages at hand, and confirm them before or after."""
    if not batch:
        return 0
    if commit == "before":
        _confirm(consumer, batch)
    for message in batch:
        handle(message)
    if commit == "after":
        _confirm(consumer, batch)
    count = len(batch)
    batch.clear()
    return count


def _confirm(consumer: Any, batch: list[Any]) -> None:
    from confluent_kafka import TopicPartition

    last = {message.partition(): message for message in batch}
    places = [TopicPartition(one.topic(), partition, one.offset() + 1) for partition, one in last.items()]
    consumer.commit(offsets=places, asynchronous=False)


def _told(error: Any, topic: str, group: str) -> Exception:
    if error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
        return InputError(
            f"The group {group} has not read records of {topic} that the broker no longer has. It neither skips them "
            "nor begins anew by itself.",
            hint="If the loss is accepted, choose another group and a start.",
        )
    return InputError(f"The group {group} cannot read {topic}: {error.str()}.")


def _silent(topic: str, group: str, seconds: float, handled: int) -> TargetError:
    error = TargetError(
        f"The group {group} has heard nothing of {topic} for {seconds:g} s. {handled:,} messages were handled before.",
        hint="Is the broker running? Perhaps another member of the group keeps it waiting: one that died is let go of "
        "after its session.timeout.ms, one that is busy after its max.poll.interval.ms.",
    )
    error.__cause__ = timed_out("no message came")
    return error


def _check(commit: str, start: str, every: int) -> None:
    if commit not in get_args(Commit):
        raise ConfigurationError(f"consume_topic: commit is 'after' or 'before', not {commit!r}.")
    if start not in get_args(Start):
        raise ConfigurationError(f"consume_topic: start is 'earliest' or 'latest', not {start!r}.")
    if every < 1:
        raise ConfigurationError(f"consume_topic: every is 1 or more, not {every}.")
