"""Watermarks: how far event time has come, and so the smallest event time that is still in time.

Per partition the greatest event time is tracked. Over the partitions of a source, and over sources, the least or the
greatest of those counts; minus the lateness that is allowed it is the watermark. It never goes back: a candidate below
it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

__all__ = ["Judgement", "Measured", "Place", "Tracked", "Tracking", "Watermark"]

Place: TypeAlias = tuple[str, str]
"""Source and partition; empty where the rows do not tell it."""
Combined = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Tracked:
    """What is known of one partition: the greatest event time that it has brought, and when it last brought rows."""

    newest: datetime
    heard: datetime


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event times below it are late; without one everything is in time."""

    at: datetime | None = None
    by_source: Mapping[str, datetime] = field(default_factory=dict)
    """Where each source has its own; ``at`` is then None."""
    tracked: Mapping[Place, Tracked] = field(default_factory=dict)

    def of(self, source: str) -> datetime | None:
        """The watermark by which rows of a source are judged."""
        return self.by_source.get(source, self.at)

    def to_json(self) -> dict[str, Any]:
        return {
            "at": None if self.at is None else self.at.isoformat(),
            "by_source": {source: at.isoformat() for source, at in self.by_source.items()},
            "tracked": [
                [source, partition, one.newest.isoformat(), one.heard.isoformat()]
                for (source, partition), one in sorted(self.tracked.items())
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Watermark:
        moment = datetime.fromisoformat
        return cls(
            at=None if value["at"] is None else moment(value["at"]),
            by_source={source: moment(at) for source, at in value["by_source"].items()},
            tracked={
                (source, partition): Tracked(moment(newest), moment(heard))
                for source, partition, newest, heard in value["tracked"]
            },
        )


@dataclass(frozen=True, slots=True)
class Tracking:
    """How a watermark follows the event times of partitions."""

    lateness: timedelta
    across: Combined = "min"
    """Over the partitions of a source: ``min`` follows the slowest, ``max`` the fastest."""
    over_sources: Literal["min", "max", "each"] = "min"
    idle: timedelta | None = None
    """A partition that has brought nothing for so long holds nobody back."""

    def advance(self, before: Watermark, seen: Mapping[Place, datetime], now: datetime) -> Watermark:
        """The watermark after a batch that brought these event times, the greatest of each partition."""
        tracked = dict(before.tracked)
        for place, newest in seen.items():
            known = tracked.get(place)
            tracked[place] = Tracked(newest if known is None else max(known.newest, newest), now)
        by_source = {
            source: self._one([one.newest for one in found], self.across) - self.lateness
            for source, found in self._speaking(tracked, now).items()
        }
        if self.over_sources == "each":
            risen = {source: _risen(before.by_source.get(source), at) for source, at in by_source.items()}
            return Watermark(None, {**before.by_source, **risen}, tracked)
        if not by_source:
            return Watermark(before.at, {}, tracked)
        return Watermark(_risen(before.at, self._one(list(by_source.values()), self.over_sources)), {}, tracked)

    def _speaking(self, tracked: Mapping[Place, Tracked], now: datetime) -> dict[str, list[Tracked]]:
        found: dict[str, list[Tracked]] = {}
        for (source, _), one in tracked.items():
            if self.idle is None or now - one.heard <= self.idle:
                found.setdefault(source, []).append(one)
        return found

    @staticmethod
    def _one(times: Sequence[datetime], how: str) -> datetime:
        return min(times) if how == "min" else max(times)


def _risen(before: datetime | None, candidate: datetime) -> datetime:
    return candidate if before is None else max(before, candidate)


@dataclass(frozen=True, slots=True)
class Judgement:
    """By what a batch is judged: the watermark that it started with, and its own time."""

    watermark: Watermark
    judged_at: datetime | None = None
    """When it came, the same in each attempt; None where the rows themselves tell."""
    late: int | None = None
    unusable: int | None = None
    """How many rows are late, and how many have no usable time; None: nobody has counted them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one pass over a batch tells."""

    rows: int
    seen: Mapping[Place, datetime]
    """The greatest usable event time of each partition."""
    late: Mapping[str, int]
    """Late rows by source."""
    of: Mapping[str, int]
    """All rows by source."""
    unusable: int
    judged_at: datetime | None

    @property
    def late_rows(self) -> int:
        return sum(self.late.values())

    def late_share(self, source: str = "") -> float:
        """The share of a source's rows that are late."""
        return self.late.get(source, 0) / self.of[source] if self.of.get(source) else 0.0
