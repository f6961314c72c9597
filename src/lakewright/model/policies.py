"""What happens to a slice that is done and then receives more rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from lakewright.model.times import parse_duration

__all__ = ["Capture", "Fail", "LatePolicy", "Repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """Make the slice again; with ``within``, only if it ended at most so long before the run, else hold it."""

    within: str | None = None

    def __post_init__(self) -> None:
        if self.within is not None:
            parse_duration(self.within)

    @property
    def reach(self) -> timedelta | None:
        return None if self.within is None else parse_duration(self.within)


@dataclass(frozen=True, slots=True)
class Capture:
    """Keep late rows in the late table and the slice as it is; a backfill takes them in."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the dataset with a message that names the late slices; nothing is published."""


LatePolicy: TypeAlias = Repair | Capture | Fail
