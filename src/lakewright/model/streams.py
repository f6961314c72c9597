"""Streams: micro-batches as arrivals, and the generation of a checkpoint.

A stream reads on where its checkpoint says. Whoever makes it read from another place begins a new *generation*: a
checkpoint of its own, and other names for its transactions, so that nothing of the old one is taken for the new one.
A micro-batch is the arrival that its generation and its place there tell. The place is Spark's number, plus the batches
before it that were not Spark's: those that only delivered what had waited in a skew buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lakewright.model.arrivals import Window

__all__ = ["FIRST_GENERATION", "Dropped", "Generation", "LostRows", "Progress", "batch_number", "batch_of"]

FIRST_GENERATION = 1
_BATCHES = 1_000_000_000
"""More micro-batches than a generation can have: one per second for thirty years."""


def batch_number(generation: int, place: int) -> int:
    """The arrival number of a micro-batch: rising, and above any arrival that was taken without a stream.

    >>> batch_number(1, 17)
    1000000017
    """
    return generation * _BATCHES + place


def batch_of(number: int) -> tuple[int, int] | None:
    """Generation and place of an arrival, or None where no stream took it.

    >>> batch_of(1000000017)
    (1, 17)
    """
    return divmod(number, _BATCHES) if number >= _BATCHES else None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream is, as its last micro-batch told."""

    batch: int
    offsets: str
    """Where the next micro-batch begins, in the words of Spark's source."""
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    keeping_seconds: float | None = None
    """Of those, spent on the record of progress alone."""
    watermark: str | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    duplicates: int | None = None
    """Rows that guards of the stream dropped as repeats, since its generation began."""
    behind_watermark: int | None = None
    """Rows that they dropped because they came behind the watermark."""
    heard: Mapping[str, str] | None = None
    """Of a join of two streams: when each side last brought rows; one that is not named never did."""
    at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "offsets": self.offsets,
            "rows_per_second": self.rows_per_second,
            "batch_seconds": self.batch_seconds,
            "keeping_seconds": self.keeping_seconds,
            "watermark": self.watermark,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "duplicates": self.duplicates,
            "behind_watermark": self.behind_watermark,
            "heard": None if self.heard is None else dict(self.heard),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], at: datetime | None) -> Progress:
        return cls(**value, at=at)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the state of a stream's guards dropped of one micro-batch."""

    duplicates: int = 0
    behind_watermark: int = 0


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows of a stream that its source could not give again."""

    rows: int
    why: str
    """Which, and why, in words."""
    until: int | None = None
    """The last arrival that has such a row; None: the source is another one, and could give none again."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One life of a stream's checkpoint."""

    dataset: str
    number: int
    recorded_at: datetime
    start: Window | None = None
    """Where it begins to read; None: where the source says."""
    first: int | None = None
    """The first arrival of those before it that it reads again; None: it takes nothing back."""
    run_id: str | None = None
    progress: Progress | None = field(default=None)
