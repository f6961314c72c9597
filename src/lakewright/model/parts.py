"""Parts of a dataset in time, one table each: whole weeks, months or years, and what a backfill has to make again.

A part never crosses 1 January: a week that does is two parts. Its name carries the day on which it begins, so that no
two parts of any year have the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from lakewright.errors import ConfigurationError

__all__ = ["GRANULARITIES", "LONGEST_NAME", "Granularity", "Part", "PartRun", "PartTables", "part_of", "part_runs"]

Granularity = Literal["day", "week", "month", "year"]
GRANULARITIES = ("day", "week", "month", "year")
LONGEST_NAME = 63
"""Bytes of a name in PostgreSQL, which cuts off what is more."""
_LONGEST_SUFFIX = len("_w20260105")


@dataclass(frozen=True, slots=True)
class Part:
    """The days from ``start`` up to and without ``end``."""

    every: Granularity
    start: date
    end: date

    @property
    def suffix(self) -> str:
        """What its table's name ends with: ``w20260105``."""
        return f"{self.every[0]}{self.start:%Y%m%d}"

    def __str__(self) -> str:
        return f"the {self.every} from {self.start} to {self.end - timedelta(days=1)}"


@dataclass(frozen=True, slots=True)
class PartTables:
    """A view and how the tables behind it are cut and cleaned."""

    view: str
    every: Granularity = "week"
    clean: Literal["truncate", "drop"] = "truncate"
    time: str | None = None
    """The column whose day has to lie in the part; None where nobody looks."""
    max_parts: int = 400

    def __post_init__(self) -> None:
        if not self.view or self.view.rpartition(".")[2].startswith("_lw_"):
            raise ConfigurationError(f"Fast Metadata Cleaner: '{self.view}' is no name for a view. Write visits.")
        if (most := LONGEST_NAME - _LONGEST_SUFFIX) < len(self.view.rpartition(".")[2].encode()):
            raise ConfigurationError(
                f"Fast Metadata Cleaner: '{self.view}' is too long for a view: PostgreSQL would cut the days off the "
                "names of the tables behind it.",
                hint=f"Choose one of at most {most} bytes.",
            )
        if self.every not in GRANULARITIES:
            raise _no_granularity(self.every)
        if self.clean not in ("truncate", "drop"):
            raise ConfigurationError(f"Fast Metadata Cleaner: clean is 'truncate' or 'drop', not {self.clean!r}.")
        if self.max_parts < 1:
            raise ConfigurationError(f"Fast Metadata Cleaner: max_parts is at least 1, not {self.max_parts}.")


@dataclass(frozen=True, slots=True)
class PartRun:
    """One day of a backfill: whether its part is cleaned first, and whether somebody asked for this day."""

    day: date
    cleans: bool
    asked: bool


def part_of(day: date, every: Granularity) -> Part:
    """The part that a day belongs to. Weeks begin on Monday (ISO), and on 1 January.

    >>> part_of(date(2026, 1, 7), "week")
    Part(every='week', start=datetime.date(2026, 1, 5), end=datetime.date(2026, 1, 12))
    >>> part_of(date(2025, 12, 31), "week").suffix, part_of(date(2026, 1, 1), "week").suffix
    ('w20251229', 'w20260101')
    """
    year, next_year = date(day.year, 1, 1), date(day.year + 1, 1, 1)
    if every == "day":
        return Part(every, day, day + timedelta(days=1))
    if every == "week":
        monday = day - timedelta(days=day.isoweekday() - 1)
        return Part(every, max(monday, year), min(monday + timedelta(days=7), next_year))
    if every == "month":
        first = day.replace(day=1)
        return Part(every, first, (first + timedelta(days=32)).replace(day=1))
    if every == "year":
        return Part(every, year, next_year)
    raise _no_granularity(every)


def part_runs(
    start: date, end: date, *, every: Granularity, partial: Literal["widen", "refuse"] = "widen"
) -> tuple[PartRun, ...]:
    """The days that a backfill of ``start`` up to and without ``end`` has to run, in order.

    A part is cleaned as a whole, so all its days are run: for those that nobody asked for the load is enough.

    >>> runs = part_runs(date(2026, 1, 7), date(2026, 1, 8), every="week")
    >>> [(run.day.day, run.cleans, run.asked) for run in runs[:3]]
    [(5, True, False), (6, False, False), (7, False, True)]
    """
    if start >= end:
        raise ConfigurationError(f"Fast Metadata Cleaner: {start} is not before {end}: there is no day between.")
    first, last = part_of(start, every), part_of(end - timedelta(days=1), every)
    if partial == "refuse" and (first.start != start or last.end != end):
        raise ConfigurationError(
            f"Fast Metadata Cleaner: {start} to {end - timedelta(days=1)} is not made of whole parts, and the smallest "
            f"that can be made again is one {every}. Nothing was written.",
            hint=f"Ask for {first.start} to {last.end - timedelta(days=1)}; for less use Data Overwrite.",
        )
    return tuple(
        PartRun(day, part_of(day, every).start == day, start <= day < end) for day in _days(first.start, last.end)
    )


def _days(start: date, end: date) -> Iterator[date]:
    while start < end:
        yield start
        start += timedelta(days=1)


def _no_granularity(every: str) -> ConfigurationError:
    return ConfigurationError(f"Fast Metadata Cleaner: a part is a {', '.join(GRANULARITIES)}, not {every!r}.")
