"""A Kafka topic whose messages start runs.

Guarantee:
    The offset of a message is committed, for the consumer group, when its event is finished, and not before. A dead
    letter is in its topic before that, at least once, with the reason as a header. A partition that is added later is
    read from its beginning, also where the group began at the end, and while it is listened to.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import in_words
from lakewright.connectors.kafka_groups import begin_at_end, coordinated, positions_of
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.triggers import ChannelContext, Message

__all__ = ["KafkaEvents"]

_TIMEOUT_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_PARTITIONS_SECONDS = 30.0
"""How often it is asked whether the topic has more partitions by now."""


@dataclass(frozen=True, slots=True)
class KafkaEvents:
    """Each message of a topic is an event; ``connection`` is one of the target's."""

    connection: str
    topic: str
    _: KW_ONLY
    group: str | None = None
    """The consumer group; by default of the trigger's name."""
    dead_letter_topic: str | None = None
    """Where dead letters go as well; they are in the store in any case."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a group without offsets begins."""

    def __post_init__(self) -> None:
        if not self.topic or not self.connection:
            raise ConfigurationError('KafkaEvents needs a connection and a topic: KafkaEvents("broker", "releases").')
        if self.start not in ("earliest", "latest"):
            raise ConfigurationError(f"KafkaEvents: start is 'earliest' or 'latest', not '{self.start}'.")
        if self.dead_letter_topic == self.topic:
            raise ConfigurationError("KafkaEvents: dead letters would come back as events. Name another topic.")

    @property
    def name(self) -> str:
        return f"kafka {self.topic}"

    def open(self, ctx: ChannelContext) -> OpenTopic:
        """Go on where the group is."""
        client = KafkaClient.connect(ctx.connections, self.connection, asked_by=f"The trigger '{ctx.trigger}'")
        return OpenTopic(self, client, group=self.group or f"lakewright {ctx.trigger}", once=ctx.once)


@dataclass(slots=True)
class OpenTopic:
    """A consumer with all partitions: the trigger's lease sees to it that there is one."""

    channel: KafkaEvents
    client: KafkaClient
    group: str
    once: bool
    _consumer: Any = field(init=False, default=None)
    _producer: Any = field(init=False, default=None)
    _at_end: set[int] = field(init=False, default_factory=set)
    _ends: dict[int, int] = field(init=False, default_factory=dict)
    _looked: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        topic = self.channel.topic
        state = self.client.state(topic, "read_committed")
        self._ends = dict(state.high)
        if self.channel.dead_letter_topic is not None:
            self.client.state(self.channel.dead_letter_topic, "read_committed")  # told now, not with the first one
        with self._explained("Nothing was read."):
            self._consumer = Consumer(
                {
                    **self.client.driver_options(),
                    "group.id": self.group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",  # of what was deleted before it was read; never beyond it
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 100,
                }
            )
            if self.channel.start == "latest":
                begin_at_end(self._consumer, state)
            known = coordinated(lambda: positions_of(self._consumer, topic, self._ends))
            places = []
            for partition, low in state.low.items():
                at = known.get(partition, low)
                # A position behind the end is of another topic: this one was made anew.
                places.append(TopicPartition(topic, partition, at if at <= state.high[partition] else low))
                self._reached(partition, places[-1].offset)
            self._consumer.assign(places)
        self._looked = time.monotonic()

    def take(self, timeout_seconds: float) -> Message | None:
        """The next message; None at the end of all partitions, or when the time is over."""
        limit = _TIMEOUT_SECONDS if self.once else timeout_seconds
        until = time.monotonic() + limit
        if not self.once and time.monotonic() - self._looked >= _PARTITIONS_SECONDS:
            self._take_up_new_partitions()
        while not (self.once and len(self._at_end) == len(self._ends)):
            left = until - time.monotonic()
            with self._explained("No event was lost."):
                found = self._consumer.poll(min(max(left, 0.0), _LOOK_SECONDS))
                if found is not None and (message := self._message(found)) is not None:
                    return message
            if time.monotonic() >= until:
                break
        else:
            return None
        if self.once:
            raise TargetError(
                f"{self.client.who}: Kafka at {self.client.servers} did not say within {limit:.0f} s what the topic "
                f"'{self.channel.topic}' holds. No event was lost.",
                hint="Is the broker running? Try again.",
            )
        return None

    def done(self, message: Message) -> None:
        """Commit the offset behind it."""
        from confluent_kafka import TopicPartition

        partition, offset = cast("tuple[int, int]", message.handle)
        with self._explained("The event was handled; it will be handed over once more, which changes nothing."):
            behind = TopicPartition(self.channel.topic, partition, offset + 1)
            coordinated(lambda: self._consumer.commit(offsets=[behind], asynchronous=False))

    def reject(self, body: bytes, event_id: str, reason: str) -> None:
        """Send a dead letter, and wait until the broker has it."""
        topic = self.channel.dead_letter_topic
        if topic is None:
            return
        from confluent_kafka import KafkaException, Producer

        delivered: list[Any] = []
        headers = {"lakewright-event": event_id.encode(), "lakewright-error": reason.encode()}
        with self._explained("The dead letter was not sent; it is tried again."):
            if self._producer is None:
                self._producer = Producer({**self.client.driver_options(), "enable.idempotence": True})
            self._producer.produce(topic, body, headers=headers, on_delivery=lambda error, _: delivered.append(error))
            self._producer.flush(_TIMEOUT_SECONDS)
            if delivered and delivered[-1] is not None:
                raise KafkaException(delivered[-1])
        if not delivered:
            servers = self.client.servers
            raise TargetError(
                f"{self.client.who}: no Kafka broker answers at {servers}, so the dead letter was not sent. It is kept."
            )

    def close(self) -> None:
        """Leave; what was not committed comes again."""
        self._consumer.close()

    def _take_up_new_partitions(self) -> None:
        """Listen to the partitions that the topic has got since, too, from their beginning."""
        from confluent_kafka import TopicPartition

        state = self.client.state(self.channel.topic, "read_committed")
        self._looked = time.monotonic()
        if new := state.high.keys() - self._ends.keys():
            self._consumer.incremental_assign([TopicPartition(state.topic, one, state.low[one]) for one in sorted(new)])
            self._ends |= {one: state.high[one] for one in new}

    def _reached(self, partition: int, offset: int) -> None:
        """What was there when it was opened has been read up to here; markers of transactions alone may follow."""
        if offset >= self._ends[partition]:
            self._at_end.add(partition)

    def _message(self, found: Any) -> Message | None:
        from confluent_kafka import KafkaError, KafkaException

        if (error := found.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(found.partition())
                return None
            raise KafkaException(error)
        self._reached(found.partition(), found.offset() + 1)
        millis = found.timestamp()[1]
        # The time belongs to the place: a topic that was made anew begins at the first offset again.
        place = f"{found.topic()}/{found.partition()}/{found.offset()}@{millis}"
        moment = datetime.fromtimestamp(millis / 1000, UTC) if millis > 0 else None
        return Message(found.value() or b"", place, moment, (found.partition(), found.offset()))

    def _explained(self, effect: str) -> Any:
        return in_words(self.client.explain(self.channel.topic, effect))
