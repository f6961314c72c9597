"""What happens to a slice that is done and then receives more rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.times import parse_duration

__all__ = ["Capture", "Fail", "LatePolicy", "Repair", "Revisit"]

Placement = Literal["before", "parallel", "after"]


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
class Revisit:
    """Make the slices of a fixed look-back before the newest one again with each new slice; hold older ones.

    ``placement`` says when: before the newest slice, side by side with it, or after it. With ``only_late`` those that
    received no late rows are left alone.
    """

    last: str
    placement: Placement = "before"
    only_late: bool = False

    def __post_init__(self) -> None:
        if parse_duration(self.last) <= timedelta(0):
            raise ConfigurationError(f"Revisit: last is longer than nothing, not '{self.last}'.")
        known = get_args(Placement)
        if self.placement not in known:
            raise ConfigurationError(f"Revisit: placement is one of {', '.join(known)}, not {self.placement!r}.")

    @property
    def reach(self) -> timedelta:
        return parse_duration(self.last)


@dataclass(frozen=True, slots=True)
class Capture:
    """Keep the slice as it is, and late rows of bronze in the late table; a backfill takes them in."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop the dataset with a message that names the late slices; nothing is published."""


LatePolicy: TypeAlias = Repair | Revisit | Capture | Fail
