"""A topic as the destination of another topic: each arrival is copied as it is in one transaction, and proven.

Guarantee:
    Key, value, headers, partition and the order within each partition stay. What was sent is read back and compared,
    message by message, before the transaction is committed: readers of committed messages see the whole arrival, or,
    where something differs or dies, nothing of it. Nothing is sent to a topic that is missing or has fewer partitions
    than the source. An attempt that was overtaken publishes nothing. A repeat of an arrival on purpose sends it again,
    as to any topic: of each ``lw-slice`` the highest ``lw-number`` counts.
Consequences:
    - Each message gets headers of ours after its own: where it comes from (``lakewright-partition``,
      ``lakewright-offset``, ``lakewright-timestamp``), and which copy it belongs to. Offset and timestamp are the
      target's own.
    - The messages go through the driver, in one transaction per arrival: bound an arrival by ``max_records`` of the
      source. A stream of its own is ``replicate_topic``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from lakewright.connectors.kafka import KafkaTopic
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_ledger import Entry, KafkaLog, Ledger
from lakewright.connectors.kafka_messages import MessageMaker
from lakewright.connectors.kafka_producer import ANSWER_TIMEOUT, Headers, Message, Sent, Transaction
from lakewright.connectors.kafka_reading import read_messages
from lakewright.connectors.kafka_replica import PLACE_HEADERS, refuse_narrow
from lakewright.connectors.kafka_table import MessageTable
from lakewright.connectors.kafka_windows import ranges_of
from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.protocols import Source, SourceContext
from lakewright.model.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lakewright.model.receipts import Commit

__all__ = ["TopicCopy"]


@dataclass(frozen=True, slots=True)
class TopicCopy:
    """A topic that receives another one as it is: ``to=TopicCopy("staging", "visits")`` of ``Pipeline.replicate``."""

    connection: str
    topic: str
    _: KW_ONLY
    ledger: str = "lakewright.ledger"
    transaction_timeout: str = "5 minutes"
    answer_timeout: str = ANSWER_TIMEOUT
    """How long the broker may take no message before the arrival is given up."""

    def __post_init__(self) -> None:
        for name in ("connection", "topic", "ledger"):
            if not getattr(self, name):
                raise ConfigurationError(f"TopicCopy: the {name} is empty.")
        if self.topic == self.ledger:
            raise ConfigurationError(f"TopicCopy: '{self.topic}' cannot be both topic and ledger.")
        for timeout in (self.transaction_timeout, self.answer_timeout):
            parse_duration(timeout)

    @property
    def shown(self) -> str:
        return f"{self.connection}: {self.topic}"

    @property
    def adds_arrivals(self) -> bool:
        """Each arrival is added to those before it."""
        return True

    @property
    def resends(self) -> bool:
        """A repeat adds messages: the earlier ones stay in the topic and no longer count."""
        return True

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse all but another topic."""
        if not isinstance(source, KafkaTopic):
            raise ConfigurationError(
                f"{dataset}: {type(source).__name__} has no messages that could be copied to {self.shown}.",
                hint='Copy a topic: KafkaTopic("broker", "visits").',
            )
        if (source.connection, source.topic) == (self.connection, self.topic):
            raise ConfigurationError(f"{dataset}: the topic '{self.topic}' cannot be a copy of itself.")

    def log(self, dataset: str, *, connections: Connections) -> KafkaLog:
        client = KafkaClient.connect(connections, self.connection, asked_by=dataset)
        return KafkaLog(Ledger(client, self.ledger), dataset, self.shown)

    def open(
        self,
        dataset: str,
        identity: Identity,
        *,
        connections: Connections,
        spark: SparkSession,
        still_mine: Callable[[], bool] = lambda: True,
    ) -> OpenedCopy:
        client = KafkaClient.connect(connections, self.connection, asked_by=dataset)
        return OpenedCopy(
            client, self.topic, self.ledger, MessageMaker(dataset), identity, spark=spark, still_mine=still_mine,
            timeout=self.transaction_timeout, path=self.shown, answer_timeout=self.answer_timeout,
        )  # fmt: skip


class OpenedCopy(MessageTable):
    """`TopicCopy` opened for one attempt: fulfils ``OutsideTable`` and ``CopiesSource``."""

    def copy_source(
        self, source: Source, arrival: Arrival, *, schema: StructType | None, ctx: SourceContext
    ) -> Commit | None:
        """Send the messages of an arrival, read them back, and commit; None where a newer attempt was first."""
        assert isinstance(source, KafkaTopic)
        reader = KafkaClient.connect(ctx.connections, source.connection, asked_by=ctx.dataset)
        refuse_narrow(reader, source.topic, self._client, self._topic)
        ours = self._headers(self.identity.number)

        def send(transaction: Transaction, earlier: Entry | None) -> Entry:
            original = _Digest()
            for message in read_messages(reader, source.topic, ranges_of(arrival.window), source.isolation):
                original.add(message, _headers(message))
                transaction.send(self._topic, _copied(message, ours))
            transaction.flush()
            failpoint("kafka.sent")
            sent = transaction.sent.get(self._topic, Sent())
            proof = self._prove(original, sent, ours)
            entry = self._entry(
                topic=self._topic,
                ranges={str(partition): ends for partition, ends in sorted(sent.ranges.items())},
                rows=sum(original.counts.values()),
                replaced=0 if earlier is None else earlier.rows,
                size=sent.bytes,
            )
            proven = replace(self.identity, details={**self.identity.details, "proof": proof})
            return replace(entry, identity=proven.to_json())

        return self._transact(send, largest=int(self._client.settings(self._topic)["max.message.bytes"]))

    def _prove(self, original: _Digest, sent: Sent, ours: Headers) -> str:
        """Read the copy back as the broker holds it; refused, and so taken back, where it differs."""
        copy = _Digest()
        ranges = {partition: (first, last + 1) for partition, (first, last) in sent.ranges.items()}
        added = len(ours) + len(PLACE_HEADERS)
        for message in read_messages(self._client, self._topic, ranges, "read_uncommitted"):
            found = _headers(message)
            if found[-len(ours) :] == list(ours):  # others may send to the topic at the same time
                copy.add(message, found[:-added])
        if copy.told() == original.told():
            return copy.told()
        raise TargetError(
            f"{self.identity.dataset}, {self.identity.slice_id}: the source has {original.told()}, and the copy in "
            f"'{self._topic}' {copy.told()}. Nothing was published.",
            hint="Something between changes messages: look at the brokers' settings, and run again.",
        )


@dataclass(slots=True)
class _Digest:
    """Number and checksum of messages, in the order of each partition."""

    counts: dict[int, int] = field(default_factory=dict)
    sums: dict[int, Any] = field(default_factory=dict)

    def add(self, message: Any, headers: Iterable[tuple[str, bytes | None]]) -> None:
        partition = message.partition()
        found = self.sums.setdefault(partition, hashlib.sha256())
        self.counts[partition] = self.counts.get(partition, 0) + 1
        parts = [message.key(), message.value(), *[part for name, value in headers for part in (name.encode(), value)]]
        for part in parts:
            found.update(b"-" if part is None else b"%d:" % len(part) + part)  # NULL is not the empty text
        found.update(b";")

    def told(self) -> str:
        whole = hashlib.sha256()
        for partition in sorted(self.sums):
            whole.update(b"%d:" % partition + self.sums[partition].digest())
        return f"{sum(self.counts.values()):,} messages in order, checksum {whole.hexdigest()[:32]}"


def _headers(message: Any) -> list[tuple[str, bytes | None]]:
    return [(name, value) for name, value in message.headers() or ()]


def _copied(message: Any, ours: Headers) -> Message:
    place = (message.partition(), message.offset(), message.timestamp()[1])
    told = [(name, str(value).encode()) for name, value in zip(PLACE_HEADERS, place, strict=True)]
    headers = cast(Headers, [*_headers(message), *told, *ours])
    return Message(message.key(), message.value(), headers, message.partition())
