"""The rules of a session, visit by visit: what the stream's state is made of, and what the fast engine is tested by.

Guarantee:
    The same visits in the same order give the same sessions as ``session_arrow``, whatever the steps in between. All
    that is kept of a session is of bounded size, and can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lakewright.patterns.data_value.session_arrow import Rules

__all__ = ["OpenSession", "Visit", "fold"]


class Visit(NamedTuple):
    """One visit. In order: by time, then those that end a session last, then by value."""

    at: int
    gap: int
    ends: bool
    values: Sequence[Any]


@dataclass(slots=True)
class OpenSession:
    """A session that may go on."""

    start: int
    end: int
    expiry: int
    events: int
    ended: bool
    aggregates: list[Any]

    @classmethod
    def begin(cls, visit: Visit, rules: Rules) -> OpenSession:
        new = cls(visit.at, visit.at, visit.at + visit.gap, 0, False, [None] * len(rules.aggregates))
        new.add(visit, rules)
        return new

    def takes(self, visit: Visit, rules: Rules) -> bool:
        """Whether the next visit belongs to it; one at the very moment at which it ended does."""
        short = rules.max_duration is None or visit.at - self.start <= rules.max_duration
        return (not self.ended or visit.at == self.end) and short and visit.at <= self.expiry

    def add(self, visit: Visit, rules: Rules) -> None:
        self.end = max(self.end, visit.at)
        self.expiry = max(self.expiry, visit.at + visit.gap)
        self.ended |= visit.ends
        for place, (kind, column) in enumerate(rules.aggregates):
            value, before = visit.values[column], self.aggregates[place]
            if kind == "collect":
                listed = [] if before is None else before
                self.aggregates[place] = [*listed, value] if len(listed) < rules.max_events else listed
            elif kind == "last" or (kind == "first" and self.events == 0):
                self.aggregates[place] = value
            elif kind == "sum" and value is not None:
                self.aggregates[place] = value if before is None else before + value
            elif kind in ("min", "max") and value is not None:
                taken = before is None or _is_less(value, before) == (kind == "min")
                self.aggregates[place] = value if taken else before
        self.events += 1

    def to_json(self) -> list[Any]:
        return [self.start, self.end, self.expiry, self.events, self.ended, self.aggregates]

    @classmethod
    def from_json(cls, found: Sequence[Any]) -> OpenSession:
        return cls(*found)


def _is_less(one: float, other: float) -> bool:
    """As Spark compares numbers: NaN is the greatest."""
    return (one != one, one) < (other != other, other)


def fold(
    going_on: OpenSession | None, visits: Iterable[Visit], rules: Rules
) -> tuple[list[OpenSession], OpenSession | None]:
    """The sessions that these visits, in order, bring to an end, and the one that goes on.

    No further visit may come of the moment of the last one.
    """
    over: list[OpenSession] = []
    for visit in visits:
        if going_on is not None and going_on.takes(visit, rules):
            going_on.add(visit, rules)
        else:
            if going_on is not None:
                over.append(going_on)
            going_on = OpenSession.begin(visit, rules)
    if going_on is not None and going_on.ended:
        return [*over, going_on], None
    return over, going_on
