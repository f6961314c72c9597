"""The ledger of a Kafka destination: a topic that says which sending of a slice counts.

Guarantee:
    A ledger record is part of the transaction that sent its messages: both are visible or neither is. The position of
    a record is its rank among those of its dataset, in the order of the topic; since a reader of committed records
    sees none beyond the first transaction that is still open, a position never changes.

The topic has one partition, and its records are kept for ever: a dataset's log is what it holds of it. It is read from
its beginning, at some 70,000 records a second; a record is one transaction, so it stays short.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import in_words, timed_out
from lakewright.errors import InputError, TargetError
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit
from lakewright.model.slices import ANY_CELL, Slice

__all__ = ["Entry", "KafkaLog", "Ledger"]

_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_SECONDS = 60.0
"""How long to wait for a transaction to be decided, and for the next record."""
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """One record: who sent what."""

    identity: str
    """The identity as JSON, to the letter."""
    app_id: str
    number: int
    dataset: str
    topic: str = ""
    ranges: Mapping[str, list[int]] = field(default_factory=dict)
    """Partition -> the first and the last offset of the messages."""
    rows: int = 0
    tombstones: int = 0
    replaced: int | None = 0
    """Rows of the sending before it, which no longer count."""
    size: int = 0
    sent_at: datetime | None = None
    """By the broker's clock; None until it is sent."""
    offset: int = -1

    @property
    def is_data(self) -> bool:
        """Whether messages went with it; a fence only raises the number."""
        return bool(self.topic)

    def to_json(self) -> bytes:
        told = ("identity", "app_id", "number", "dataset", "topic", "ranges", "rows", "tombstones", "replaced", "size")
        return json.dumps({"lakewright": 1, **{name: getattr(self, name) for name in told}}).encode()

    @classmethod
    def from_message(cls, message: Any) -> Entry | None:
        """None for what somebody else has put into the topic."""
        try:
            found = json.loads(message.value())
            version = found.pop("lakewright")
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        if version != 1:
            return None
        sent_at = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        return cls(**found, sent_at=sent_at, offset=message.offset())

    def as_commit(self, version: int) -> Commit:
        """The entry as the log of a dataset tells it."""
        identity = Identity.from_json(self.identity)
        assert identity is not None
        assert self.sent_at is not None
        slice_ = Slice.parse(identity.slice_id)
        cell = slice_.value if slice_.kind == "event" else ANY_CELL
        return Commit(
            version=version,
            committed_at=self.sent_at,
            operation="WRITE",
            metadata=self.identity,
            metrics={"numOutputRows": self.rows, "numDeletedRows": self.tombstones},
            touched={cell: Change(self.rows, self.replaced)} if self.is_data else {},
            bytes_added=self.size,
            data_change=self.is_data,
        )


class Ledger:
    """A ledger topic, read as far as it is decided; what was read once is remembered."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self.topic = topic
        self._next = 0
        self._entries: list[Entry] = []

    def create(self) -> None:
        """Make the topic where it is not there yet; one that would lose its records is refused."""
        if self._end("read_uncommitted") is None:
            self._client.create(self.topic, _SETTINGS)
            return
        found = self._client.settings(self.topic)
        if wrong := [f"{name}={found.get(name)}" for name, value in _SETTINGS.items() if found.get(name) != value]:
            cure = ",".join(f"{name}={value}" for name, value in _SETTINGS.items())
            raise TargetError(
                f"{self._client.who}: the topic '{self.topic}' cannot be the ledger: it does not keep its records for "
                f"ever ({', '.join(wrong)}), and without them nobody can tell what counts. Nothing was written.",
                hint=f"Run: kafka-configs.sh --bootstrap-server {self._client.servers} --alter --entity-type topics "
                f"--entity-name {self.topic} --add-config {cure}",
            )

    def refresh(self, *, upto: int | None = None) -> list[Entry]:
        """Every committed entry, oldest first: those that can be seen now, or wait until all before ``upto`` can be."""
        with in_words(self._client.explain(self.topic, "Nothing was written.")):
            end = self._decided(upto)
            if end is not None and end > self._next:
                self._read(end)
        return self._entries

    def refresh_all(self) -> list[Entry]:
        """Every entry that was begun before now: waits for transactions that are being committed."""
        return self.refresh(upto=self._end("read_uncommitted"))

    def _decided(self, upto: int | None) -> int | None:
        """The end of what can be read; an open transaction ahead of ``upto`` is waited for."""
        until = time.monotonic() + _SECONDS
        while True:
            end = self._end("read_committed")
            if upto is None or (end is not None and end >= upto):
                return end
            if time.monotonic() > until:
                raise TargetError(
                    f"{self._client.who}: a transaction in '{self.topic}' is neither committed nor taken back "
                    f"(offset {end or 0}), so nobody can tell what counts. Nothing was written.",
                    hint="A writer was killed: run its pipeline again, which settles it, or wait for its timeout.",
                ) from timed_out("a transaction is open")
            time.sleep(_PAUSE)

    def _end(self, isolation: Any) -> int | None:
        """Where the topic ends; None where there is none."""
        try:
            state = self._client.state(self.topic, isolation)
        except InputError:
            return None
        if set(state.high) != {0} or state.low[0] > 0:
            raise TargetError(
                f"{self._client.who}: the topic '{self.topic}' cannot be the ledger: it has {len(state.high)} "
                f"partitions and begins at offset {min(state.low.values())}. Nothing was written.",
                hint="It needs one partition and records that are kept for ever (retention.ms=-1). Name another with "
                "ledger='...', which is made as it should be, then `lakewright store rebuild`: slices are sent again.",
            )
        return state.high[0]

    def _read(self, end: int) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings: dict[str, Any] = {
            **self._client.driver_options(),
            "group.id": "lakewright.ledger",  # asked for, but no group is joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(self.topic, 0, self._next)])
            until = time.monotonic() + _SECONDS
            while self._next < end:
                if time.monotonic() > until:
                    raise timed_out(f"the ledger '{self.topic}' gave no record for {_SECONDS:g} s")
                known, message = self._next, consumer.poll(1.0)
                error = None if message is None else message.error()
                if message is None:
                    continue
                if error is None:
                    self._next = cast(int, message.offset()) + 1
                    if (entry := Entry.from_message(message)) is not None:
                        self._entries.append(entry)
                elif error.name() == "_PARTITION_EOF":  # what is left are marks of transactions
                    self._next = max(self._next, cast(int, message.offset()))
                else:
                    raise KafkaException(error)
                if self._next > known:
                    until = time.monotonic() + _SECONDS
        finally:
            consumer.close()


class KafkaLog:
    """The log of one dataset: fulfils ``model.outside.Log``."""

    def __init__(self, ledger: Ledger, dataset: str, path: str) -> None:
        self._ledger = ledger
        self._dataset = dataset
        self.path = path

    def exists(self) -> bool:
        return self.latest() is not None

    def latest(self) -> int | None:
        return self.bounds()[1]

    def bounds(self) -> tuple[int | None, int | None]:
        count = len(self._own(self._ledger.refresh()))
        return (1, count) if count else (None, None)

    def commit(self, version: int) -> Commit:
        own = self._own(self._ledger.refresh())
        if not 1 <= version <= len(own):
            raise TargetError(f"The ledger of {self.path} has no position {version}.")
        return own[version - 1].as_commit(version)

    def commits(self, after: int | None = None, upto: int | None = None) -> Iterator[Commit]:
        own = self._own(self._ledger.refresh())
        for version in range((after or 0) + 1, (len(own) if upto is None else min(upto, len(own))) + 1):
            yield own[version - 1].as_commit(version)

    def at_offset(self, offset: int) -> Commit:
        """The commit whose record lies there; waits until it can be seen."""
        try:
            own = self._own(self._ledger.refresh(upto=offset + 1))
        except TargetError as error:
            raise TargetError(
                f"{self._dataset}: what was sent to {self.path} is committed and counts, but its record in "
                f"'{self._ledger.topic}' cannot be seen yet.",
                hint=f"{error.hint or ''} The next run sends it once more, under a higher number, which then counts.",
            ) from error
        version = next(place for place, entry in enumerate(own, 1) if entry.offset == offset)
        return own[version - 1].as_commit(version)

    def _own(self, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.dataset == self._dataset]
