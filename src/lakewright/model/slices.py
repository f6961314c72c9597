"""Slice: what a step makes of a dataset at a time.

An event cell, an arrival, a key or the whole. Its text id is what people type and what identities carry;
its predicate is what the lake replaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Literal

from lakewright.errors import ConfigurationError
from lakewright.model.times import Grid, Interval, cell_interval, grid_of

__all__ = [
    "ANY_CELL",
    "ARRIVAL_COLUMN",
    "EVENT_COLUMN",
    "WHOLE",
    "Slice",
    "arrival_slice",
    "event_slice",
    "key_slice",
]

EVENT_COLUMN = "_lw_event"
ANY_CELL = "any"
"""The event cell of rows that have no event time by declaration; NULL is for rows whose time is unusable."""
ARRIVAL_COLUMN = "_lw_arrival"

SliceKind = Literal["event", "arrival", "key", "whole"]
_EVENT = re.compile(r"\d{4}-(W\d{2}|\d{2}(-\d{2}(T\d{2})?)?)")


@total_ordering
@dataclass(frozen=True, slots=True)
class Slice:
    """One piece of a dataset: ``2026-01-05``, ``arrival-7``, ``key-eu``, ``whole``."""

    kind: SliceKind
    value: str

    @property
    def id(self) -> str:
        return self.value if self.kind in ("event", "whole") else f"{self.kind}-{self.value}"

    @classmethod
    def parse(cls, text: str) -> Slice:
        """The slice that a text id names."""
        if text == "whole":
            return WHOLE
        if _EVENT.fullmatch(text):
            return event_slice(text)
        kind, _, value = text.partition("-")
        if kind == "arrival" and value.isdigit():
            return arrival_slice(int(value))
        if kind == "key" and value:
            return key_slice(value)
        known = "2026-01-05, 2026-01-05T07, 2026-W02, arrival-7 or whole"
        raise ConfigurationError(f"'{text}' is not a slice. Write {known}.")

    @property
    def interval(self) -> Interval:
        """The event time of an event slice."""
        if self.kind != "event":
            raise ConfigurationError(f"The slice {self.id} has no event time.")
        return cell_interval(self.value)

    @property
    def grid(self) -> Grid:
        return grid_of(self.value)

    @property
    def number(self) -> int:
        """The number of an arrival slice."""
        return int(self.value)

    def predicate(self) -> str:
        """The rows of this slice, as SQL on the system columns; what a repeat replaces."""
        if self.kind == "event":
            # A dataset's own rows are kept in cells of its own grid, so one value is the whole slice.
            return f"{EVENT_COLUMN} = '{self.value}'"
        if self.kind == "arrival":
            return f"{ARRIVAL_COLUMN} = {self.value}"
        if self.kind == "key":
            escaped = self.value.replace("'", "''")
            return f"_lw_key = '{escaped}'"
        return "true"

    def __lt__(self, other: Slice) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[str, int, str]:
        return (self.kind, self.number if self.kind == "arrival" else 0, self.value)

    def __str__(self) -> str:
        return self.id


WHOLE = Slice("whole", "whole")


def event_slice(cell: str) -> Slice:
    cell_interval(cell)
    return Slice("event", cell)


def arrival_slice(number: int) -> Slice:
    return Slice("arrival", str(number))


def key_slice(key: str) -> Slice:
    return Slice("key", key)
