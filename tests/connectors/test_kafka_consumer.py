"""A consumer that shares a topic with others, and one whose broker is gone; without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from lakewright.connectors.kafka_client import KafkaClient, TopicState
from lakewright.connectors.kafka_consumer import consume_topic
from lakewright.errors import TargetError
from lakewright.lake.delta_errors import is_transient


class Member:
    """One member of a group: what its polls bring, one after the other. A list of numbers is a new assignment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *polls: Any) -> None:
        self.polls, self.confirmed, self.closed, self.now = list(polls), [], False, 0.0
        self.failure: KafkaError | None = None
        state = TopicState("visits", "id", {0: 0, 1: 0}, {0: 9, 1: 9})
        monkeypatch.setattr(KafkaClient, "state", lambda client, topic, isolation: state)
        monkeypatch.setattr("confluent_kafka.Consumer", lambda settings: self)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("lakewright.connectors.kafka_consumer.time", clock)

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def poll(self, seconds: float) -> Any:
        self.now += 10
        if not self.polls:
            return None
        found = self.polls.pop(0)
        if isinstance(found, list):
            self.on_revoke(self, [])
            self.on_assign(self, [TopicPartition("visits", partition) for partition in found])
            return None
        return found

    def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        return [SimpleNamespace(offset=OFFSET_INVALID, error=self.failure) for _ in places]

    def assign(self, places: list[TopicPartition]) -> None: ...

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self.confirmed += [(one.partition, one.offset) for one in offsets]

    def close(self) -> None:
        self.closed = True


def message(partition: int, offset: int, error: Any = None) -> Any:
    told = {"partition": partition, "offset": offset, "error": error, "topic": "visits"}
    return SimpleNamespace(**{name: (lambda value=value: value) for name, value in told.items()})


def end(partition: int) -> Any:
    return message(partition, 9, KafkaError(KafkaError._PARTITION_EOF))


def consumed(handled: list[tuple[int, int]], **options: Any) -> int:
    def handle(one: Any) -> None:
        handled.append((one.partition(), one.offset()))

    return consume_topic("nowhere:1", "visits", handle, group="alerts", **options)


def test_a_member_of_a_group_ends_at_the_end_of_its_own_partitions(monkeypatch):
    member, handled = Member(monkeypatch, None, [1], message(1, 0), end(1)), []
    assert (consumed(handled), handled, member.confirmed, member.closed) == (1, [(1, 0)], [(1, 1)], True)
    Member(monkeypatch, [])  # more members than partitions: there is nothing for it to do
    assert consumed([]) == 0


def test_what_was_not_confirmed_when_the_group_is_dealt_anew_is_left_to_whoever_reads_it_next(monkeypatch):
    polls = ([0, 1], message(0, 0), end(1), [0], message(0, 0), message(0, 1), end(0))
    member, handled = Member(monkeypatch, *polls), []
    assert (consumed(handled, every=2), handled) == (2, [(0, 0), (0, 1)])
    assert member.confirmed == [(0, 2)]


def test_a_broker_that_is_gone_is_told_after_a_while_and_what_was_handled_with_it(monkeypatch):
    member = Member(monkeypatch, [0, 1], *[message(0, offset) for offset in range(9)])
    with pytest.raises(TargetError, match=r"heard nothing of visits for 60 s\. 9 messages were handled") as silent:
        consumed([], answer_timeout="1 minute")
    assert (is_transient(silent.value), member.closed, "Is the broker running" in (silent.value.hint or "")) == (
        True, True, True,
    )  # fmt: skip


def test_a_position_that_could_not_be_looked_up_is_not_taken_for_none(monkeypatch):
    member = Member(monkeypatch, [0], end(0))
    member.failure = KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(TargetError, match="Kafka refused"):
        consumed([], start="latest")
    assert (member.confirmed, member.closed) == ([], True)
