"""Which event cells a stretch of time reads, where they may be of several grids.

A source keeps its rows in days, or in hours if a consumer is hourly. When such a consumer comes or goes, what is there
stays in the cells that it was given. So days and hours lie side by side, and no declaration tells which of them where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakewright.model.columns import EVENT_COLUMN
from lakewright.model.sql import text_literal
from lakewright.model.times import Grid, Interval, cell_interval, cell_of, finest

__all__ = ["CellSpan"]

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class CellSpan:
    """The cells that overlap a stretch of time."""

    first: str
    end: str
    """The cells that lie within are the texts from ``first`` on and before ``end``, but for those ``across``."""
    across: tuple[str, ...]
    """The cells that lie in it only in part: which of their rows do, each row's time tells."""

    @classmethod
    def of(cls, span: Interval, grids: Sequence[Grid]) -> CellSpan:
        """The cells of some grids; weeks are not among others, since their texts do not compare with those.

        >>> CellSpan.of(cell_interval("2026-01-05"), ["hour", "day"])
        CellSpan(first='2026-01-05', end='2026-01-06', across=())
        >>> CellSpan.of(cell_interval("2026-01-05T07"), ["hour", "day"])
        CellSpan(first='2026-01-05T07', end='2026-01-05T08', across=('2026-01-05',))
        """
        starts = [cell_of(span.start, grid) for grid in grids]
        edges = {*starts, *(cell_of(span.end - _TICK, grid) for grid in grids)}
        across = {cell for cell in edges if not _is_within(cell, span)}
        ends = [cell_of(span.end, grid) for grid in grids]
        return cls(
            # The text of a day is before those of its hours, so the coarsest cell that begins here bounds them all.
            min((cell for cell in starts if cell not in across), default=cell_of(span.start, finest(*grids))),
            min(
                (cell for cell in ends if cell_interval(cell).start == span.end),
                default=cell_of(span.end, finest(*grids)),
            ),
            tuple(sorted(across)),
        )

    def overlapping(self) -> str:
        """The rows of all these cells, as SQL that prunes partitions."""
        within = f"{EVENT_COLUMN} >= '{self.first}' AND {EVENT_COLUMN} < '{self.end}'"
        if not self.across:
            return within
        across = f"{EVENT_COLUMN} IN ({', '.join(map(text_literal, self.across))})"
        return across if self.first >= self.end else f"({within} OR {across})"

    def predicate(self, times: str) -> str:
        """The rows of the stretch, as SQL; ``times`` is the look at a row's time, only taken where a cell needs it."""
        if not self.across:
            return self.overlapping()
        if self.first >= self.end:
            return f"{self.overlapping()} AND {times}"
        across = ", ".join(map(text_literal, self.across))
        return f"{self.overlapping()} AND ({EVENT_COLUMN} NOT IN ({across}) OR {times})"

    def within(self, cell: str) -> bool:
        """Whether a cell lies in the stretch as a whole."""
        return self.first <= cell < self.end and cell not in self.across


def _is_within(cell: str, span: Interval) -> bool:
    found = cell_interval(cell)
    return span.start <= found.start and found.end <= span.end
