"""One Kafka transaction: everything that is sent in it becomes visible at once, or not at all.

Guarantee:
    To make a producer ends whatever an older one of the same name had begun, and that one can send no more (Kafka
    tells them apart by their epoch). Leaving the block by an error takes everything back. Memory is bounded: what
    waits to be sent is at most 64 MB.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_errors import code_of, is_fenced, is_silence, timed_out
from lakewright.errors import TargetError
from lakewright.model.times import parse_duration

__all__ = ["ANSWER_TIMEOUT", "Headers", "Message", "Sent", "Transaction", "Transactions"]

Headers = Sequence[tuple[str, bytes]]

_LOG = logging.getLogger("lakewright.kafka")
_LOG.addHandler(logging.NullHandler())
ANSWER_TIMEOUT = "30 seconds"
"""How long a broker may be silent before a sending is given up."""
_IN_DOUBT = "Look whether they are there once the broker is well."
_TRIES = 5
_QUEUE_KILOBYTES = 65_536
_BATCH_BYTES = 1_000_000
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"


@dataclass(frozen=True, slots=True)
class Message:
    """One message, ready to be sent; without a value it is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    """-1 leaves it to the key's hash."""


@dataclass(slots=True)
class Sent:
    """What a transaction has sent to one topic so far, as the broker has confirmed it."""

    messages: int = 0
    bytes: int = 0
    ranges: dict[int, list[int]] = field(default_factory=dict)
    """Partition -> the first and the last offset."""


class Transactions:
    """A transactional producer by its name."""

    def __init__(
        self,
        client: KafkaClient,
        name: str,
        *,
        timeout: timedelta,
        largest: int = _BATCH_BYTES,
        answer_timeout: str = ANSWER_TIMEOUT,
        in_doubt: str = _IN_DOUBT,
    ) -> None:
        """Take the name over: after this nothing that an older producer of this name sends can be published.

        ``in_doubt`` says what to do where a commit is not answered, so that nobody knows whether it was made.
        """
        from confluent_kafka import Producer

        self._client = client
        self._in_doubt = in_doubt
        self._patience = parse_duration(answer_timeout).total_seconds()
        settings: dict[str, Any] = {
            "linger.ms": 20,
            **client.driver_options(),
            "transactional.id": name,
            "transaction.timeout.ms": int(timeout.total_seconds() * 1000),
            # As Java's and Spark's producers choose it, so that a key keeps its partition whoever sends it.
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": _QUEUE_KILOBYTES,
            # A batch over the topic's limit would be refused although each message in it is small.
            "batch.size": min(_BATCH_BYTES, max(largest, 1)),
            "message.max.bytes": min(1_000_000_000, max(_BATCH_BYTES, largest)),
        }
        self._producer = Producer(settings, logger=_LOG)
        self._call(lambda: self._producer.init_transactions(self._patience))

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """A transaction; it is committed by `Transaction.commit` alone, and taken back otherwise."""
        self._producer.begin_transaction()
        one = Transaction(self._client, self._producer, self._call, self._patience, self._in_doubt)
        try:
            yield one
        finally:
            if not one.committed:
                # Where even this fails the broker takes it back by itself, at the latest after the timeout.
                with suppress(Exception):
                    self._producer.abort_transaction(self._patience)

    def _call(self, step: Any) -> None:
        """Do a step of the transaction protocol; one that may be done again is."""
        for attempt in range(1, _TRIES + 1):
            try:
                step()
                return
            except Exception as error:
                again = getattr(error.args[0], "retriable", None) if error.args else None
                if attempt == _TRIES or again is None or not again() or (is_silence(error) and self._refused()):
                    raise

    def _refused(self) -> bool:
        """Whether nobody answers because the broker does not let us in: it is told when the producer is polled."""
        with _own_error():
            self._producer.poll(0)
        return self._client.refused_login() is not None


class Transaction:
    """What is sent between begin and commit."""

    def __init__(
        self, client: KafkaClient, producer: Any, call: Any, patience: float, in_doubt: str = _IN_DOUBT
    ) -> None:
        self._client = client
        self._in_doubt = in_doubt
        self._producer = producer
        self._call = call
        self._patience = patience
        self._topic = ""
        self._failed: list[tuple[Any, Any, int]] = []
        self._waiting = 0
        self.sent: dict[str, Sent] = {}
        self.committed = False

    def send(self, topic: str, message: Message) -> None:
        """Hand a message over; an error of an earlier one is raised here."""
        place = {"partition": message.partition} if message.partition >= 0 else {}
        headers = list(message.headers)
        self._topic = topic
        progress: _Progress | None = None
        while True:
            try:
                self._producer.produce(
                    topic, message.value, message.key, headers=headers, on_delivery=self._delivered, **place
                )
                break
            except BufferError:
                self._serve(0.1)
                progress = progress or _Progress(self._patience)
                self._refuse_silence(progress, len(self._producer))
            except Exception as error:
                if code_of(error) == _TOO_LARGE:
                    raise _too_large(topic, message.key, len(message.value or b"")) from error
                if code_of(error) == "_STATE":
                    self._wait_for_refusal()
                self._reveal(error)
        self._waiting += 1
        if self._waiting >= 1000:
            self._waiting = 0
            self._serve(0)

    def flush(self) -> None:
        """Wait until the broker has everything; afterwards ``sent`` is complete."""
        progress = _Progress(self._patience)
        while True:
            with _own_error():
                left = self._producer.flush(0.2)
            # Once a message was refused the others wait for nothing.
            self._raise_failed()
            if not left:
                return
            self._refuse_silence(progress, left)

    def commit(self) -> None:
        """Make it visible: what was sent comes to its readers within moments."""
        try:
            self._call(lambda: self._producer.commit_transaction(self._patience))
        except Exception as error:
            refused = getattr(error.args[0], "txn_requires_abort", None) if error.args else None
            if is_fenced(error) or (refused is not None and refused()):
                raise
            count = sum(sent.messages for sent in self.sent.values())
            raise TargetError(
                f"{self._client.who}: Kafka at {self._client.servers} did not answer the commit of {count:,} messages "
                f"to {_named(self.sent)}: whether they count is not known yet.",
                hint=self._in_doubt,
            ) from error
        self.committed = True

    def _refuse_silence(self, progress: _Progress, left: int) -> None:
        """Give up where the broker has taken no message for too long."""
        if not progress.is_over(left):
            return
        refused = self._client.refused_login()
        if refused is not None:
            raise refused
        raise TargetError(
            f"{self._client.who}: Kafka at {self._client.servers} has taken no message for {self._patience:g} s, and "
            f"{left:,} to the topic '{self._topic}' are left. Nothing of this slice counts: the transaction is not "
            "committed.",
            hint="Is the broker running, and are there as many replicas as the topic asks for (min.insync.replicas)? "
            "Run again: the slice is sent as a whole.",
        ) from timed_out("no message was acknowledged")

    def _wait_for_refusal(self) -> None:
        """Raise why an earlier message was refused: the producer stops at once, and tells a moment later."""
        for _ in range(10):
            self._serve(0.1)

    def _serve(self, seconds: float) -> None:
        with _own_error():
            self._producer.poll(seconds)
        self._raise_failed()

    def _delivered(self, error: Any, message: Any) -> None:
        size = len(message.value() or b"") if error is None or error.name() == _TOO_LARGE else 0
        if error is not None:
            if not error.name().startswith("_PURGE"):
                self._failed.append((error, message, size))
            return
        sent = self.sent.setdefault(message.topic(), Sent())
        sent.messages += 1
        sent.bytes += size + len(message.key() or b"")
        first_last = sent.ranges.setdefault(message.partition(), [message.offset(), message.offset()])
        first_last[0] = min(first_last[0], message.offset())
        first_last[1] = max(first_last[1], message.offset())

    def _raise_failed(self) -> None:
        if not self._failed:
            return
        from confluent_kafka import KafkaException

        error, message, size = max(self._failed, key=lambda one: one[2])
        if size:
            raise _too_large(message.topic(), message.key(), size)
        self._reveal(KafkaException(error))

    def _reveal(self, error: Exception) -> None:
        """Raise the reason: once a producer is dead, each call says only that it is."""
        if code_of(error) in ("_FATAL", "_STATE", "_FENCED"):
            self._producer.abort_transaction(self._patience)
        raise error


class _Progress:
    """Whether what waits to be sent becomes less."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._least: int | None = None
        self._until = 0.0

    def is_over(self, left: int) -> bool:
        """Whether it has not become less for as long as one has patience."""
        if self._least is None or left < self._least:
            self._least, self._until = left, time.monotonic() + self._patience
        return time.monotonic() > self._until


@contextmanager
def _own_error() -> Iterator[None]:
    """A producer that dies while it calls us back raises its reason as the cause of a SystemError."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def _named(topics: Iterable[str]) -> str:
    return ", ".join(f"'{topic}'" for topic in topics)


def _too_large(topic: str, key: bytes | None, size: int) -> TargetError:
    shown = "without a key" if key is None else f"with the key '{key.decode(errors='replace')[:80]}'"
    return TargetError(
        f"A message {shown} has a value of {size:,} bytes, more than the topic '{topic}' takes. Nothing was published.",
        hint="Make it smaller, or raise max.message.bytes of the topic.",
    )
