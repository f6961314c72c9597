"""Critical path: how long the work of a run takes, and which chain of datasets decides that.

Guarantee:
    The longest chain is never longer than the whole run, whatever ``parallel`` is. Both are told of what is known:
    work without a past counts as nothing, and whoever asks is told which that is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

__all__ = ["Work", "ends_after", "longest_chain", "run_seconds"]

_MOST_UNITS = 500
"""A turn with more slices is walked through in stretches of several: thousands of slices cost no time to plan."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does for one dataset: slices in turns, begun when everything in ``after`` has ended."""

    name: str
    after: frozenset[str] = frozenset()
    turns: tuple[int, ...] = ()
    """How many slices each turn has; a turn begins when the one before it has ended."""
    seconds: float = 0.0
    """One slice."""
    in_order: bool = False
    """Whether its slices are made one at a time."""

    @property
    def slices(self) -> int:
        return sum(self.turns)

    def alone(self, parallel: int) -> float:
        """How long it takes with nothing beside it.

        >>> Work("hourly", turns=(24,), seconds=2.0).alone(4)
        12.0
        """
        at_once = 1 if self.in_order else parallel
        return sum(ceil(slices / at_once) for slices in self.turns) * self.seconds


def ends_after(works: Sequence[Work], parallel: int) -> dict[str, float]:
    """Dataset -> the seconds of the longest chain that ends with it; ``works`` are in the order of the graph."""
    found: dict[str, float] = {}
    for work in works:
        above = max((found[name] for name in work.after if name in found), default=0.0)
        found[work.name] = above + work.alone(parallel)
    return found


def longest_chain(works: Sequence[Work], parallel: int) -> list[str]:
    """The datasets of the longest chain, from its beginning; those that have nothing to do are left out.

    >>> raw, small = Work("raw", turns=(1,), seconds=4.0), Work("small", frozenset({"raw"}), (1,), 1.0)
    >>> longest_chain([raw, small, Work("large", frozenset({"raw"}), (2,), 9.0)], parallel=2)
    ['raw', 'large']
    """
    ends, by_name = ends_after(works, parallel), {work.name: work for work in works}
    if not any(ends.values()):
        return []
    # Of chains that are equally long the last in the graph's order: it goes on to what has no past and counts nothing.
    name: str | None = max(reversed(by_name), key=lambda one: ends[one])
    chain = []
    while name is not None:
        if by_name[name].slices:
            chain.append(name)
        name = max(sorted(by_name[name].after & ends.keys()), key=lambda one: ends[one], default=None)
    return chain[::-1]


def run_seconds(works: Sequence[Work], parallel: int) -> float:
    """How long a run takes that makes ``parallel`` slices side by side, begun in the order in which they can be.

    >>> run_seconds([Work("paris", turns=(3,), seconds=2.0), Work("warsaw", turns=(1,), seconds=2.0)], parallel=2)
    4.0
    """
    return _Walk(works, parallel).seconds()


class _Walk:
    """A run played through: workers that take the next piece of work from one queue."""

    def __init__(self, works: Sequence[Work], parallel: int) -> None:
        self._works = {work.name: work for work in works}
        self._parallel = parallel
        self._waits = {work.name: set(work.after & self._works.keys()) for work in works}
        self._below: dict[str, list[str]] = {name: [] for name in self._works}
        for name, above in self._waits.items():
            for one in above:
                self._below[one].append(name)
        self._turns = {work.name: self._pieces(work) for work in works}
        self._running = dict.fromkeys(self._works, 0)
        self._queue: deque[tuple[str, float]] = deque()

    def seconds(self) -> float:
        busy: list[tuple[float, int, str]] = []
        now, begun = 0.0, 0
        self._begin([name for name, above in self._waits.items() if not above])
        while self._queue or busy:
            while self._queue and len(busy) < self._parallel:
                name, seconds = self._queue.popleft()
                heapq.heappush(busy, (now + seconds, begun, name))
                begun += 1
            now, _, name = heapq.heappop(busy)
            self._running[name] -= 1
            if not self._running[name]:
                self._begin([name])
        return now

    def _pieces(self, work: Work) -> Iterator[list[float]]:
        """The pieces that are handed out together, turn by turn."""
        for slices in work.turns:
            if work.in_order:
                yield [slices * work.seconds]
                continue
            stretch = ceil(slices / _MOST_UNITS)
            whole, rest = divmod(slices, stretch)
            yield [stretch * work.seconds] * whole + ([rest * work.seconds] if rest else [])

    def _begin(self, names: Iterable[str]) -> None:
        """Hand out the next turn of each; where none is left it has ended, and what waits for it may begin."""
        todo = deque(names)
        while todo:
            name = todo.popleft()
            pieces = next((found for found in self._turns[name] if found), None)
            if pieces is not None:
                self._running[name] = len(pieces)
                self._queue.extend((name, seconds) for seconds in pieces)
                continue
            for lower in self._below[name]:
                self._waits[lower].discard(name)
                if not self._waits[lower]:
                    todo.append(lower)
