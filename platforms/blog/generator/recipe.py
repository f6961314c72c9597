"""What to generate: size, days, seed and shares of faults, checked before anything is written."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import date, timedelta
from functools import cached_property

__all__ = ["LINE_CLASSES", "MAX_LINES_PER_FILE", "FaultShares", "GeneratorError", "Recipe", "split_evenly"]

MAX_LINES_PER_FILE = 250_000
MAX_VISITS = 1_000_000_000  # the file's number has 12 bits of a visit_id
MAX_DAYS = 3650
FIRST_YEAR, LAST_YEAR = 1970, 2100

# The classes that a line is drawn for, in the order of the draw; what is left over is an ordinary visit.
LINE_CLASSES = (
    "malformed",
    "bad_time",
    "future_time",
    "missing_id",
    "bad_page",
    "duplicates",
    "late",
    "unknown_user",
)


class GeneratorError(ValueError):
    """A wrong option or folder. Nothing was written."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class FaultShares:
    """How many of the visit lines of a day have which fault: shares between 0 and 1, together below 1.

    ``late_delivery`` stands apart: it is the share of *further* visits that are held back for
    ``deliver_late``, measured by the day's lines, and so it is no part of the sum.
    """

    malformed: float = 0.006
    bad_time: float = 0.003
    future_time: float = 0.0
    missing_id: float = 0.006
    bad_page: float = 0.005
    duplicates: float = 0.02
    late: float = 0.02
    unknown_user: float = 0.01
    late_delivery: float = 0.01

    def __post_init__(self) -> None:
        for name in self.names():
            share = getattr(self, name)
            if not (math.isfinite(share) and 0 <= share <= 1):
                raise GeneratorError(
                    f"The share '{name}' is {share}; a share lies between 0 and 1.",
                    hint="2 % is written 0.02.",
                )
        if (total := math.fsum(self.by_class().values())) >= 1:
            raise GeneratorError(
                f"The shares add up to {total:g}, which leaves no ordinary visits.",
                hint="Keep the sum below 1.",
            )

    @classmethod
    def none(cls) -> FaultShares:
        """No faults at all, and nothing held back."""
        return cls(**dict.fromkeys(cls.names(), 0.0))

    @classmethod
    def names(cls) -> list[str]:
        return [share.name for share in fields(cls)]

    @classmethod
    def of(cls, given: Iterable[tuple[str, float]]) -> FaultShares:
        """The defaults with some of them changed by name; an unknown name is refused with the nearest one."""
        chosen = dict(given)
        for name in chosen:
            if name not in cls.names():
                near = difflib.get_close_matches(name, cls.names(), n=1)
                raise GeneratorError(
                    f"There is no share '{name}'. Known: {', '.join(cls.names())}.",
                    hint=f"Did you mean '{near[0]}'?" if near else None,
                )
        return cls(**chosen)

    def by_class(self) -> dict[str, float]:
        """The shares that a line is drawn by, in the order of the draw."""
        return {name: getattr(self, name) for name in LINE_CLASSES}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the output. Equal recipes give equal bytes, by however many processes.

    >>> Recipe(visits=1_000_001, days=2, start=date(2026, 1, 1), seed=7).file_lines(0)
    [166667, 166667, 166667]
    """

    visits: int
    days: int
    start: date
    seed: int
    shares: FaultShares = field(default_factory=FaultShares)

    def __post_init__(self) -> None:
        if not 1 <= self.visits <= MAX_VISITS:
            raise GeneratorError(
                f"'visits' is {self.visits}; it is the number of visit lines over all days.",
                hint=f"Choose a number from 1 to {MAX_VISITS:,}.",
            )
        if not 1 <= self.days <= MAX_DAYS:
            raise GeneratorError(f"'days' is {self.days}.", hint=f"Choose a number from 1 to {MAX_DAYS}.")
        if not FIRST_YEAR <= self.start.year <= LAST_YEAR:
            raise GeneratorError(f"'start' is {self.start}.", hint=f"Choose a day from {FIRST_YEAR} to {LAST_YEAR}.")

    @cached_property
    def dates(self) -> list[str]:
        """The days as ISO text, in order; elsewhere a day is its place in this list."""
        return [(self.start + timedelta(days=day)).isoformat() for day in range(self.days)]

    @property
    def users(self) -> int:
        """How many users the first day knows."""
        return min(max(self.visits // 50, 100), 200_000)

    def day_lines(self, day: int) -> int:
        return split_evenly(self.visits, self.days)[day]

    def file_lines(self, day: int) -> list[int]:
        """The lines of each visits file of a day: several files, none above the limit, none empty."""
        lines = self.day_lines(day)
        files = max(3, math.ceil(lines / MAX_LINES_PER_FILE))
        return [part for part in split_evenly(lines, files) if part]

    def late_file_lines(self, day: int) -> list[int]:
        """The lines of each file of a day that is held back: at least one line where the share is not 0."""
        if not self.shares.late_delivery:
            return []
        lines = max(1, round(self.shares.late_delivery * self.day_lines(day)))
        return split_evenly(lines, math.ceil(lines / MAX_LINES_PER_FILE))


def split_evenly(total: int, parts: int) -> list[int]:
    """Part a number into nearly equal numbers, the larger ones first.

    >>> split_evenly(10, 3)
    [4, 3, 3]
    """
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]
