"""What is known of a dataset's slices, as values: what ``plan`` shows and ``run`` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lakewright.model.slices import Slice
from lakewright.model.times import Interval
from lakewright.pipelines.definitions import Dataset, Slicing

__all__ = ["DatasetPlan", "SliceState", "Status", "Wish"]

Status = Literal[
    "due",
    "missing",
    "late",
    "stale",
    "outdated",
    "held",
    "waiting",
    "revisit",
    "again",
    "backfill",
    "rolled back",
    "refused",
    "overdue",
    "unmet",
    "partial",
    "skipped",
]
"""Of the last three: too few of its parts are there (Unaligned Fan-In); some are, and it is kept private until all are;
another branch was chosen (Exclusive Choice)."""


@dataclass(frozen=True, slots=True)
class SliceState:
    """One slice that is not simply fresh: what it is, why, and whether this run makes it."""

    slice: Slice
    status: Status
    reason: str
    make: bool = True
    cure: str | None = None
    """For one that the run refuses to make: what to do about it."""
    turn: int = 0
    """Slices of a later turn are begun when all of the turns before it have succeeded."""
    if_changed: bool = False
    """Of sessions: whether it is made only if what the slice before it leaves pending has changed by then."""
    takes_back: bool = False
    """Whether it is not made, but taken away with all slices after it: its source has taken their arrivals back."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a run was asked for beyond what is due."""

    run_time: datetime
    backfill: Interval | None = None
    again: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Dataset -> slice ids to repeat."""
    made: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Dataset -> slice ids that earlier attempts of the same run have made: they are not repeated once more."""
    outdated: bool = False
    outdated_limit: int | None = None
    from_bronze: tuple[str, ...] = ()
    """Sources that were to be read again, and cannot be: their windows would not give the same rows."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What the run was given by name: ``--param output_type=delta``."""
    ended: frozenset[str] = frozenset()
    """Datasets of which this run makes no more: whatever of them is not there now was tried, or could not be."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know before it is done."""
        return tuple(
            f"{name}: recorded windows of its source are not read again, since they may have changed; repeats begin at "
            "bronze."
            for name in self.from_bronze
        )


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """All that is known of one dataset."""

    dataset: Dataset
    slicing: Slicing
    states: tuple[SliceState, ...]
    live: int
    new: str = ""
    """For a source: what is there to take."""
    waits: tuple[str, ...] = ()
    """For a source: what is there and cannot be taken yet, each with the reason."""
    arrivals: int = 0
    """For a source: how many arrivals what is new would make."""

    @property
    def to_make(self) -> tuple[SliceState, ...]:
        """In the order in which they are begun."""
        making = (state for state in self.states if state.make)
        return tuple(sorted(making, key=lambda state: (state.turn, state.slice)))

    @property
    def fresh(self) -> int:
        unmade = ("due", "missing", "waiting", "rolled back", "overdue", "unmet", "partial", "skipped")
        known = {s.slice.id for s in self.states if s.status not in unmade and not s.takes_back}
        return max(self.live - len(known), 0)  # one that is refused for the grid of an input may not be its own
