"""Times are aware datetimes in UTC, intervals are half-open, and event time is cut by a grid.

An *event cell* is the text of a UTC hour, day, ISO week or month (``2026-01-05T07``, ``2026-01-05``, ``2026-W02``,
``2026-01``). It is what the lake stores in the column ``_lw_event``, and the texts are chosen so that comparing those
of one grid as strings compares the times. Those of hours, days and months also compare with each other: a day's cells
lie in ``>= '2026-01-05' AND < '2026-01-06'`` whether they are hours or days. Weeks do not: see ``coarsened``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from lakewright.errors import ConfigurationError

__all__ = [
    "GRIDS",
    "GRID_OF_WIDTH",
    "WIDTH",
    "Grid",
    "Interval",
    "cell_interval",
    "cell_of",
    "cells_between",
    "coarsened",
    "finest",
    "grid_of",
    "parse_duration",
    "parse_time",
    "utc_now",
]

Grid = Literal["hour", "day", "week", "month"]
GRIDS: tuple[Grid, ...] = ("hour", "day", "week", "month")
_FORMATS: dict[Grid, str] = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
WIDTH: dict[Grid, int] = {"hour": 13, "day": 10, "week": 8, "month": 7}
"""How many characters a cell of a grid has: by it the store tells how cells of different grids meet."""
GRID_OF_WIDTH: dict[int, Grid] = {width: grid for grid, width in WIDTH.items()}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_DURATION = re.compile(r"(\d+)\s*(second|minute|hour|day|week)s?")


def utc_now() -> datetime:
    """The wall clock, for what is about *now* (a heartbeat, the default run time), never for data."""
    return datetime.now(UTC)


def parse_time(value: str | date | datetime) -> datetime:
    """An aware UTC datetime from ISO text, a date or a datetime; one without a zone is taken as UTC.

    >>> parse_time("2026-01-05").isoformat()
    '2026-01-05T00:00:00+00:00'
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ConfigurationError(
                f"'{value}' is not a time. Write it as 2026-01-05 or 2026-01-05T07:00 (UTC)."
            ) from None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def parse_duration(text: str) -> timedelta:
    """A length of time from text such as ``"7 days"`` or ``"1 day 6 hours"``.

    >>> parse_duration("1 day 6 hours")
    datetime.timedelta(days=1, seconds=21600)
    """
    found = _DURATION.findall(text)
    if not found or _DURATION.sub("", text).strip():
        raise ConfigurationError(f"'{text}' is not a length of time. Write it as '30 minutes' or '7 days'.")
    return timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in found))


@dataclass(frozen=True, order=True, slots=True)
class Interval:
    """A half-open stretch of time ``[start, end)`` in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ConfigurationError(f"An interval ends after it starts, but got {self.start} to {self.end}.")

    def overlaps(self, other: Interval) -> bool:
        return self.start < other.end and other.start < self.end


def cell_of(moment: datetime, grid: Grid) -> str:
    """The event cell that a moment falls into."""
    return moment.astimezone(UTC).strftime(_FORMATS[grid])


def grid_of(cell: str) -> Grid:
    """The grid that an event cell belongs to, told by its length."""
    if len(cell) not in GRID_OF_WIDTH:
        raise ConfigurationError(
            f"'{cell}' is not an hour, a day, a week or a month (2026-01-05T07, 2026-01-05, 2026-W02, 2026-01)."
        )
    return GRID_OF_WIDTH[len(cell)]


def cell_interval(cell: str) -> Interval:
    """The stretch of time that an event cell stands for; a week begins on Monday.

    >>> cell_interval("2026-W01").start.isoformat()
    '2025-12-29T00:00:00+00:00'
    """
    grid = grid_of(cell)
    text, form = (f"{cell}-1", f"{_FORMATS[grid]}-%u") if grid == "week" else (cell, _FORMATS[grid])
    try:
        start = datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        raise ConfigurationError(f"'{cell}' is no {grid}.") from None
    return Interval(start, _next(start, grid))


def cells_between(start: datetime, end: datetime, grid: Grid) -> Iterator[str]:
    """The cells of a grid that overlap ``[start, end)``, in order."""
    at = cell_interval(cell_of(start, grid)).start
    while at < end:
        yield cell_of(at, grid)
        at = _next(at, grid)


def coarsened(cell: str, grid: Grid) -> str:
    """The cell of a coarser grid that a cell begins in; the same where it is as coarse, or coarser.

    >>> coarsened("2026-01-05T07", "week"), coarsened("2026-W02", "day")
    ('2026-W02', '2026-W02')
    """
    if GRIDS.index(grid_of(cell)) >= GRIDS.index(grid):
        return cell
    return cell_of(cell_interval(cell).start, grid)


def finest(*grids: Grid) -> Grid:
    """The grid with the shortest cells."""
    return min(grids, key=GRIDS.index)


def _next(start: datetime, grid: Grid) -> datetime:
    if grid == "month":
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}[grid]
