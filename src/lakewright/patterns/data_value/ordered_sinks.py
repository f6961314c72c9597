"""What an ordered delivery asks of the place that it delivers to.

A sink declares how it commits a request of several records, which decides how they may be sent in order:

- ``full``: all of the request or nothing of it (a transaction; a topic whose producer keeps order);
- ``partial``: each record of a request may succeed or fail by itself (Kinesis, DynamoDB, Elasticsearch, many APIs);
- ``each``: it takes one record at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

__all__ = ["Commits", "Delivered", "OpenSink", "Outgoing", "PipelinedSink", "RequestLostError", "Sink"]

Commits: TypeAlias = Literal["full", "partial", "each"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record on its way."""

    key: str
    """The entity whose records keep their order."""
    sequence: int
    """Its place among those of its entity, from 1 on."""
    id: str
    """The same at every attempt, so that a record that comes again is recognised."""
    value: bytes
    output: str = ""
    """Which of several outputs gets it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was acknowledged."""

    records: int = 0
    requests: int = 0
    tried_again: int = 0
    """Records that were sent more than once."""
    seconds: float = field(default=0.0, compare=False)
    """How long it took; 0 where nobody measured it."""

    @property
    def per_minute(self) -> float:
        """Records a minute: less than what comes in means that more and more of it waits."""
        return 60 * self.records / self.seconds if self.seconds else 0.0

    def __add__(self, other: Delivered) -> Delivered:
        """Both, which were under way at the same time."""
        return Delivered(
            self.records + other.records,
            self.requests + other.requests,
            self.tried_again + other.tried_again,
            max(self.seconds, other.seconds),
        )


class RequestLostError(Exception):
    """Nobody knows what became of a request, or all of it was refused for now: all of it may be sent again."""

    def __init__(self, problem: str, *, pause_seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.pause_seconds = pause_seconds
        """How long the sink asks us to wait."""


class OpenSink(Protocol):
    """A sink that is being delivered to, by one thread."""

    def send(self, records: Sequence[Outgoing]) -> Mapping[int, str]:
        """Send one request and wait for its answer: the places of the records that were not taken, and why.

        Raises `RequestLostError` where all may be sent again, and any other error where that would not help.
        """

    def close(self) -> None:
        """Let go of it. Nothing may be waiting to be sent any more."""


@runtime_checkable
class PipelinedSink(Protocol):
    """An `OpenSink` that keeps the order of what is handed to it, with several requests on their way at once."""

    def post(self, record: Outgoing) -> None:
        """Hand a record over without waiting; raises what became of earlier ones."""

    def flush(self) -> None:
        """Wait until all that was handed over is acknowledged; raises where it is not."""


class Sink(Protocol):
    """Where records go; it travels to the tasks that send them, so it holds plain values."""

    @property
    def shown(self) -> str:
        """For people, without a secret."""

    @property
    def commits(self) -> Commits:
        """What becomes of a request of several records."""

    @property
    def pipelined(self) -> bool:
        """Whether it is a `PipelinedSink` once it is open."""

    @property
    def bulk_limit(self) -> int:
        """The most records that one request may hold."""

    def prepared(self, producer: Mapping[str, str]) -> Sink:
        """The same, as it travels to the tasks: secrets looked up, and, of a producer, how it is to keep order."""

    def open(self, output: str = "") -> OpenSink:
        """Begin to deliver to one of its outputs."""
