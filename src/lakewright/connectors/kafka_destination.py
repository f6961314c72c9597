"""A topic as the destination of a dataset: each slice is sent in one transaction, with a record in a ledger.

Problem:
    A job that sends messages dies half-way; its repeat sends some of them twice, and nobody can tell which count.
Guarantee:
    Readers of committed messages see all messages of a sending or none. A message carries its slice and the number of
    its sending (headers ``lw-dataset``, ``lw-slice``, ``lw-number``): of each slice the highest number counts. A repeat
    sends the slice again with the same keys. A run that was overtaken publishes nothing, whenever it wakes up.
Consequences:
    - A transaction has one producer: the rows go through the driver, one Spark partition at a time (split large ones).
      Measured on two busy cores: 27,000 messages of 200 bytes a second, in memory that does not grow; what waits to be
      sent is at most 64 MB.
    - Messages are sent in the frame's order, and those of one key stay in it: sort the result where the order matters.
    - A topic cannot take messages back. On a compacted one, keys of the earlier sending that are gone get tombstones;
      for that, what was sent since then is read back. A key should belong to one slice: of a key in two slices the one
      that was sent last stands, also when that was a repeat of the older one.
    - A slice must be sent within ``transaction_timeout`` (the broker's ``transaction.max.timeout.ms`` allows 15 minutes
      by default). A writer that is killed holds back readers of committed messages until its slice is made again, or
      for that long.
    - Two projects that share a broker and a dataset's name need ledgers of their own (``ledger``), which keep their
      records apart as well as their producers (``transactional.id``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import in_words
from lakewright.connectors.kafka_ledger import KafkaLog, Ledger
from lakewright.connectors.kafka_messages import MessageMaker
from lakewright.connectors.kafka_producer import ANSWER_TIMEOUT, Transactions
from lakewright.connectors.kafka_table import MessageTable
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connections
from lakewright.model.identity import Identity
from lakewright.model.protocols import Writer
from lakewright.model.times import parse_duration
from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer
from lakewright.patterns.data_value.fifo_orderer import FifoOrderer
from lakewright.patterns.idempotency.transactional_writer import check_transaction_timeout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KafkaMessages", "write_messages"]

_NOBODY_KNOWS = (
    "Look into the topic once the broker is well, before you send them again: no ledger tells, and if they were "
    "published, readers would get them twice."
)


@dataclass(frozen=True, slots=True)
class KafkaMessages:
    """A topic to send to: ``into=KafkaMessages("broker", "alerts", key="user_id")``."""

    connection: str
    topic: str
    _: KW_ONLY
    key: str | None = None
    """The column that is the message's key."""
    value: str | None = None
    """A column (text or bytes) that is the message's value as it is; without it: all columns as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Header -> the column that gives it; NULL leaves it out."""
    partition_of: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Key -> partition, for keys that must not go by their hash."""
    other: int | None = None
    """The partition of all other keys; without it: by their hash."""
    order: FifoOrderer | BinPackOrderer | None = None
    """The order in which a slice is sent; the header ``lw-sequence`` tells a message's place among its entity's."""
    ledger: str = "lakewright.ledger"
    transaction_timeout: str = "5 minutes"
    answer_timeout: str = ANSWER_TIMEOUT
    """How long the broker may take no message before the slice is given up, and tried again as the dataset says."""

    def __post_init__(self) -> None:
        for name in ("connection", "topic", "ledger"):
            if not getattr(self, name):
                raise ConfigurationError(f"KafkaMessages: the {name} is empty.")
        if self.topic == self.ledger:
            raise ConfigurationError(f"KafkaMessages: '{self.topic}' cannot be both topic and ledger.")
        for timeout in (self.transaction_timeout, self.answer_timeout):
            parse_duration(timeout)
        check_order(self.order, self.key)
        self.maker("KafkaMessages")

    @property
    def shown(self) -> str:
        return f"{self.connection}: {self.topic}"

    @property
    def resends(self) -> bool:
        """A repeat adds messages: the earlier ones stay in the topic and no longer count."""
        return True

    @property
    def carries_metadata(self) -> bool:
        """A message has headers."""
        return True

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Only a writer that replaces a slice as a whole can be repeated in a topic."""
        from lakewright.patterns.idempotency.data_overwrite import DataOverwrite

        if not isinstance(writer, DataOverwrite):
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} cannot write to the topic '{self.topic}': a topic takes messages "
                "and knows no rows that could be merged.",
                hint="Use writer=DataOverwrite(): each slice is sent as a whole. To merge, write a table of the lake "
                "and send from there.",
            )

    def check_timeout(self, dataset: str, timeout: timedelta | None) -> None:
        """Refuse a transaction that would end before the step that fills it may."""
        if timeout is not None:
            check_transaction_timeout(dataset, self.transaction_timeout, longest=timeout)

    def log(self, dataset: str, *, connections: Connections) -> KafkaLog:
        """What the ledger says of a dataset."""
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
    ) -> MessageTable:
        """The topic, to be sent to by one attempt."""
        client = KafkaClient.connect(connections, self.connection, asked_by=dataset)
        return MessageTable(
            client, self.topic, self.ledger, self.maker(dataset), identity, spark=spark, still_mine=still_mine,
            timeout=self.transaction_timeout, path=self.shown, order=self.order, answer_timeout=self.answer_timeout,
        )  # fmt: skip

    def maintain(self, dataset: str, *, connections: Connections, dry_run: bool, now: datetime) -> tuple[bool, str]:
        """Nothing is done to a topic: its settings are read, and what they mean for readers is told."""
        from lakewright.connectors.kafka_compaction import check_log_compaction

        client = KafkaClient.connect(connections, self.connection, asked_by=dataset)
        return False, " ".join(check_log_compaction(client, self.topic).findings)

    def maker(self, who: str) -> MessageMaker:
        """How rows become messages."""
        return MessageMaker(who, self.key, self.value, self.headers, self.partition_of, self.other)


def check_order(order: object, key: str | None) -> None:
    """Refuse an order that a topic could not keep: it keeps that of a partition, to which the key leads."""
    if order is None:
        return
    if not isinstance(order, FifoOrderer | BinPackOrderer):
        raise ConfigurationError(f"KafkaMessages: order is a FifoOrderer or a BinPackOrderer, not {order!r}.")
    if order.entity and order.entity != (key,):
        raise ConfigurationError(
            f"KafkaMessages: the order is per {', '.join(order.entity)}, but the key is {key or 'not given'}: a topic "
            "keeps the order of a partition, and the key decides on it.",
            hint=f'Say key="{order.entity[0]}".',
        )


def write_messages(
    df: DataFrame,
    *,
    servers: str,
    topic: str,
    key: str | None = None,
    value: str | None = None,
    headers: Mapping[str, str] | None = None,
    partition_of: Mapping[str, int] | None = None,
    other: int | None = None,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
    timeout: str = "5 minutes",
    answer_timeout: str = ANSWER_TIMEOUT,
) -> int:
    """Runs the jobs that send every row as one message, all in one transaction; returns how many were sent.

    Two writers of the same ``name`` (by default that of the topic) take each other's place: the older one fails and
    has published nothing. A repeat sends everything again.
    """
    maker = MessageMaker("write_messages", key, value, headers or {}, partition_of or {}, other)
    maker.prepare(df)
    client = KafkaClient("write_messages", servers, dict(options or {}))
    maker.check_partitions(topic, len(client.state(topic, "read_committed").high))
    largest = int(client.settings(topic).get("max.message.bytes", "1000000"))
    count = 0
    with in_words(client.explain(topic, "Nothing was published.")):
        producer = Transactions(
            client, name or f"lw:{topic}", timeout=parse_duration(timeout), largest=largest,
            answer_timeout=answer_timeout, in_doubt=_NOBODY_KNOWS,
        )  # fmt: skip
        with producer.begin() as transaction:
            for message in maker.messages(df):
                transaction.send(topic, message)
                count += 1
            transaction.flush()
            transaction.commit()
    return count
