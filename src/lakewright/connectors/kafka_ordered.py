"""A topic that ordered records are delivered to, by the tasks that hold them.

Guarantee:
    The producer numbers its requests and waits for all replicas (idempotence, ``acks=all``), so a topic's partition
    holds what was sent in the order of sending; settings that would lose it are refused. The entity is the message's
    key; its headers tell the record's id (``lw-id``) and its place (``lw-sequence``). Values are sent as they are.
Consequences:
    - Each task has a producer of its own and no transaction: what was acknowledged before a failure stays. For all of a
      slice or nothing, use ``into=KafkaMessages(..., order=...)``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.errors import ConfigurationError, TargetError
from lakewright.patterns.data_value.fifo_orderer import check_producer
from lakewright.patterns.data_value.ordered_sinks import Commits, Outgoing, RequestLostError

__all__ = ["KafkaSink"]

_WHO = "KafkaSink"
_DECIDES = (
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
)
_NUMBERED = {"acks": "all", "enable.idempotence": "true", "linger.ms": "5"}
_PASSES = ("_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT", "_PURGE_QUEUE",
           "_PURGE_INFLIGHT")  # fmt: skip
_SERVE_EVERY = 1000


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic at some brokers: ``KafkaSink("localhost:9092", "visits")``."""

    servers: str
    topic: str
    _: KW_ONLY
    topics: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Output -> its topic, where there are several outputs."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Settings of the client, in librdkafka's names."""
    bulk_limit: int = 10_000
    timeout_seconds: float = 30.0
    """How long the producer tries by itself to send a message."""
    producer: Mapping[str, str] = field(default_factory=lambda: dict(_NUMBERED), hash=False)
    """How the producer keeps order; an orderer tells."""

    def __post_init__(self) -> None:
        if not self.servers or not (self.topic or self.topics):
            raise ConfigurationError(f"{_WHO}: name the servers and a topic.")
        if self.bulk_limit < 1 or self.timeout_seconds <= 0:
            raise ConfigurationError(f"{_WHO}: bulk_limit is at least 1, timeout_seconds more than 0.")
        check_producer({**self.producer, **{name: self.options[name] for name in _DECIDES if name in self.options}})

    @property
    def shown(self) -> str:
        return f"the topic '{self.topic or ', '.join(self.topics.values())}'"

    @property
    def commits(self) -> Commits:
        """A request is one batch of a partition: taken whole, and numbered."""
        return "full"

    @property
    def pipelined(self) -> bool:
        return True

    def prepared(self, producer: Mapping[str, str]) -> KafkaSink:
        """The same, with a producer that keeps order as an orderer wants it; a topic that is not there is refused.

        A broker may make a topic for whoever sends to it: a name with a mistake would become one.
        """
        client = KafkaClient(_WHO, self.servers, self.options)
        for topic in {self.topic, *self.topics.values()} - {""}:
            client.state(topic, "read_committed")
        return replace(self, producer={**_NUMBERED, **producer})

    def open(self, output: str = "") -> OpenTopic:
        if output and self.topics and output not in self.topics:
            raise ConfigurationError(f"{_WHO}: no topic is named for '{output}': {', '.join(self.topics)}.")
        return OpenTopic(self, self.topics.get(output, self.topic))


class OpenTopic:
    """A topic with a producer: fulfils ``OpenSink`` and ``PipelinedSink``."""

    def __init__(self, sink: KafkaSink, topic: str) -> None:
        from confluent_kafka import Producer

        self._client = KafkaClient(_WHO, sink.servers, sink.options)
        self._topic, self._seconds = topic, sink.timeout_seconds
        settings: dict[str, Any] = {
            **self._client.driver_options(),
            **sink.producer,
            # As Java's and Spark's producers choose it, so that a key keeps its partition whoever sends it.
            "partitioner": "murmur2_random",
            "message.timeout.ms": int(sink.timeout_seconds * 1000),
        }
        self._producer = Producer(settings)
        self._failed: list[tuple[str, Any]] = []
        self._posted = 0

    def send(self, records: Sequence[Outgoing]) -> Mapping[int, str]:
        for record in records:
            self._hand_over(record)
        self._wait()
        if not self._failed:
            return {}
        reasons = {key: self._reason(error) for key, error in self._failed}
        self._failed.clear()
        return {place: reasons[record.key] for place, record in enumerate(records) if record.key in reasons}

    def post(self, record: Outgoing) -> None:
        self._hand_over(record)
        self._posted += 1
        if self._posted % _SERVE_EVERY == 0:
            self._producer.poll(0)
            self._raise_failed()

    def flush(self) -> None:
        self._wait()
        self._raise_failed()

    def close(self) -> None:
        if len(self._producer):  # only after a failure: what was not acknowledged must not come later
            self._producer.purge()
            self._producer.flush(1.0)

    def _hand_over(self, record: Outgoing) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            ("lw-id", record.id.encode()),
            ("lw-sequence", str(record.sequence).encode()),
        ]
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=headers, on_delivery=self._answered
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except Exception as error:
                raise self._explained(error) from error

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(((message.key() or b"").decode(), error))

    def _wait(self) -> None:
        until = time.monotonic() + self._seconds + 5
        while self._producer.flush(0.5):
            if time.monotonic() > until:
                raise RequestLostError(f"no Kafka broker answers within {self._seconds:g} s")

    def _raise_failed(self) -> None:
        if self._failed:
            key, error = self._failed[0]
            why = self._reason(error)
            raise TargetError(
                f"{_WHO}: the record of '{key[:80]}' was not taken by the topic '{self._topic}': {why}. "
                f"{len(self._failed):,} records were not delivered.",
                hint="Run again once the broker is well: what was sent before comes again, with the same ids.",
            )

    def _reason(self, error: Any) -> str:
        """Why, where it may pass; raised where it will not."""
        from confluent_kafka import KafkaException

        if error.retriable() or error.name() in _PASSES:
            return str(error.str()).strip().rstrip(".")
        raise self._explained(KafkaException(error))

    def _explained(self, error: Exception) -> Exception:
        told = self._client.explain(self._topic, "What was acknowledged before stays; nothing after it was sent.")
        return told(error) or error
