"""A topic opened for one attempt: each call is one transaction, recorded in the ledger.

Guarantee:
    An attempt whose number is not higher than the one recorded for its slice sends nothing. The order makes it so: the
    producer's name is taken over first, which ends the transaction of any other attempt at the slice and shuts it out;
    only then is the ledger read. A producer's name is known to the whole cluster: the ledger is part of it, so that
    projects with ledgers of their own do not shut each other out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from lakewright.connectors.kafka_client import KafkaClient, TopicState
from lakewright.connectors.kafka_errors import in_words, is_fenced
from lakewright.connectors.kafka_ledger import Entry, KafkaLog, Ledger
from lakewright.connectors.kafka_messages import MessageMaker
from lakewright.connectors.kafka_producer import ANSWER_TIMEOUT, Headers, Message, Sent, Transaction, Transactions
from lakewright.connectors.kafka_records import read_ranges
from lakewright.errors import LakewrightError, LeaseHeldError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit
from lakewright.model.times import parse_duration
from lakewright.patterns.data_value.ordered_rows import refuse_unordered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer
    from lakewright.patterns.data_value.fifo_orderer import FifoOrderer

__all__ = ["MessageTable", "producer_name"]

_NOTHING = "Nothing was published."
_FINDS_OUT = (
    "Run again once the broker is well: that finds out, or sends them again under a higher number, which then counts."
)
_PLACE = "_lw_sequence"


class MessageTable:
    """Fulfils ``model.outside.OutsideTable``."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        ledger: str,
        maker: MessageMaker,
        identity: Identity,
        *,
        spark: SparkSession,
        still_mine: Callable[[], bool],
        timeout: str,
        path: str,
        order: FifoOrderer | BinPackOrderer | None = None,
        answer_timeout: str = ANSWER_TIMEOUT,
    ) -> None:
        self._order = order
        self._client = client
        self._topic = topic
        self._ledger = Ledger(client, ledger)
        self._maker = maker
        self.identity = identity
        self._spark = spark
        self._still_mine = still_mine
        self._timeout = timeout
        self._answer_timeout = answer_timeout
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    @property
    def spark(self) -> SparkSession:
        return self._spark

    def exists(self) -> bool:
        """Always: a fence is needed also where nothing was sent yet."""
        return True

    def schema(self) -> StructType:
        self._refuse("has no columns of its own")

    def read(self) -> DataFrame:
        self._refuse("cannot be read back as a table")

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        self._refuse("takes no MERGE")

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs the jobs that send the slice in one transaction; None where a newer attempt was first."""
        maker = self._maker
        maker.prepare(frame)
        if (order := self._order) is not None:
            refuse_unordered(frame, per=order.entity, by=order.by, what=self.identity.dataset)
            frame, maker = order.arrange(frame, into=_PLACE), replace(maker, system={"lw-sequence": _PLACE})
        state = self._client.state(self._topic, "read_committed")
        self._maker.check_partitions(self._topic, len(state.high))
        settings = self._client.settings(self._topic)
        compacted = "compact" in settings["cleanup.policy"]

        def send(transaction: Transaction, earlier: Entry | None) -> Entry:
            gone = self._keys_of(earlier) if compacted and earlier is not None else set()
            headers = self._headers(self.identity.number)
            rows = 0
            for message in maker.messages(frame, system=[*headers, *self._metadata()]):
                transaction.send(self._topic, message)
                gone.discard(message.key or b"")
                rows += 1
            for key in sorted(gone):
                transaction.send(self._topic, Message(key, None, headers, self._maker.partition(key)))
            transaction.flush()
            failpoint("kafka.sent")
            sent = transaction.sent.get(self._topic, Sent())
            return self._entry(
                topic=self._topic,
                ranges={str(partition): ends for partition, ends in sorted(sent.ranges.items())},
                rows=rows,
                tombstones=len(gone),
                replaced=0 if earlier is None else earlier.rows,
                size=sent.bytes,
            )

        return self._transact(send, largest=int(settings["max.message.bytes"]))

    def touch(self) -> Commit | None:
        """Record the number and nothing else, so that whatever an older attempt still sends is refused."""
        return self._transact(lambda transaction, earlier: self._entry())

    def _transact(self, send: Callable[[Transaction, Entry | None], Entry], largest: int = 1_000_000) -> Commit | None:
        app_id, ledger = self.identity.app_id, self._ledger
        with in_words(self._explained):
            self._refuse_lost_lease()
            ledger.create()
            producer = Transactions(
                self._client, producer_name(ledger.topic, app_id), timeout=parse_duration(self._timeout),
                largest=largest, answer_timeout=self._answer_timeout, in_doubt=_FINDS_OUT,
            )  # fmt: skip
            own = [entry for entry in ledger.refresh_all() if entry.app_id == app_id]
            if any(entry.number >= self.identity.number for entry in own):
                return None
            earlier = next((entry for entry in reversed(own) if entry.topic == self._topic), None)
            with producer.begin() as transaction:
                entry = send(transaction, earlier)
                self._refuse_lost_lease()
                transaction.send(ledger.topic, Message(self.identity.dataset.encode(), entry.to_json(), partition=0))
                transaction.flush()
                failpoint("kafka.recorded")
                transaction.commit()
            failpoint(f"committed.{self.identity.part}")
        offset = transaction.sent[ledger.topic].ranges[0][1]
        return KafkaLog(ledger, self.identity.dataset, self._path).at_offset(offset)

    def _entry(self, **sent: object) -> Entry:
        one = self.identity
        return Entry(one.to_json(), one.app_id, one.number, one.dataset, **sent)  # type: ignore[arg-type]

    def _headers(self, number: int) -> Headers:
        told = {"lw-dataset": self.identity.dataset, "lw-slice": self.identity.slice_id, "lw-number": str(number)}
        return [(name, text.encode()) for name, text in told.items()]

    def _metadata(self) -> Headers:
        """What a Metadata Decorator tells of the run."""
        told = self.identity.details.get("metadata")
        return [(str(name), str(one).encode()) for name, one in told.items()] if isinstance(told, dict) else []

    def _keys_of(self, earlier: Entry) -> set[bytes]:
        """The keys of the slice's earlier sending whose newest message is still one of it, and no tombstone.

        Runs a job that reads the topic from there on. What compaction has removed, a newer message has replaced.
        """
        from pyspark.sql import functions as F

        state = self._client.state(self._topic, "read_committed")
        ranges = _still_there(earlier, state)
        if not ranges:
            return set()
        own = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
        options = {**self._client.spark_options(), **own}
        messages = read_ranges(self._spark, self._topic, ranges, options)
        mine = F.lit(True)
        for name, value in self._headers(earlier.number):
            mine = mine & F.array_contains(
                "headers", F.struct(F.lit(name).alias("key"), F.lit(bytearray(value)).alias("value"))
            )
        newest = F.max_by(F.struct(mine.alias("mine"), F.col("value").isNotNull().alias("alive")), "offset")
        last = messages.groupBy("partition", "key").agg(newest.alias("last")).where("last.mine AND last.alive")
        return {bytes(row["key"]) for row in last.select("key").toLocalIterator() if row["key"] is not None}

    def _refuse_lost_lease(self) -> None:
        if not self._still_mine():
            raise LeaseHeldError(
                f"{self.identity.dataset}, slice {self.identity.slice_id}: another run has taken over. {_NOTHING}",
                name=self.identity.dataset,
                owner="another run",
            )

    def _explained(self, error: BaseException) -> LakewrightError | None:
        if is_fenced(error):
            self._refuse_lost_lease()
            return TargetError(
                f"{self.identity.dataset}, slice {self.identity.slice_id}: another producer took this one's place, or "
                f"the slice was not sent within {self._timeout}. {_NOTHING}",
                hint="A slice that takes longer needs a longer `transaction_timeout`.",
            )
        return self._client.explain(self._topic, _NOTHING)(error)

    def _refuse(self, why: str) -> NoReturn:
        raise TargetError(
            f"{self.identity.dataset}: the topic '{self._topic}' {why}.",
            hint="To read it, declare a KafkaTopic as a source.",
        )


def producer_name(ledger: str, app_id: str) -> str:
    """The ``transactional.id`` of an attempt: whoever else is to take its place reads the same ledger.

    >>> producer_name("dev.ledger", "lw:alerts:2026-01-05:main")
    'lw:52b32736f77a:alerts:2026-01-05:main'
    """
    return f"lw:{hashlib.sha256(ledger.encode()).hexdigest()[:12]}:{app_id.removeprefix('lw:')}"


def _still_there(earlier: Entry, state: TopicState) -> dict[int, tuple[int, int]]:
    """From the beginning of a sending to the end of the topic, by partition, as far as the topic holds it."""
    begins = {int(partition): first for partition, (first, _) in earlier.ranges.items()}
    found = {p: (max(first, state.low[p]), state.high[p]) for p, first in begins.items() if p in state.low}
    return {p: (first, end) for p, (first, end) in found.items() if end > first}
