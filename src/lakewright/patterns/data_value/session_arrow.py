"""The fast engine: visits, sorted by entity and time, become sessions a record batch at a time, by numpy.

Guarantee:
    One pass. Only the record batch at hand and the one session that is still open at its end are in memory, whatever
    an entity's number of visits: a list is cut at its bound before it is carried on.
    A row may also be a session that an earlier slice left open; the visits that belong to it continue it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.patterns.data_value.sessions import Kind

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["Rules", "SessionRows", "numbers_of", "reduced", "sessions_of"]

_FIXED = 4
"""Of an open session, and of the output after the keys: start, end, expiry, events; then the aggregates."""
_BEYOND = 2**63


@dataclass(frozen=True, slots=True)
class Rules:
    """What the engine needs to know, as plain values: it travels to the executors.

    The columns of a batch are the keys, the time in microseconds, the visit's gap (``own_gaps``), whether it ends its
    session (``ends``), the carried columns, and, with ``reopens``, a struct that only a row has that is itself an open
    session.
    """

    keys: int
    gap: int
    aggregates: tuple[tuple[Kind, int], ...]
    """Kind, and the place of its column among the carried ones."""
    carried: int
    own_gaps: bool = False
    ends: bool = False
    reopens: bool = False
    max_duration: int | None = None
    max_events: int = 10_000


def sessions_of(
    batches: Iterator[pa.RecordBatch], rules: Rules, rows: type[SessionRows] | None = None
) -> Iterator[pa.RecordBatch]:
    """Sessions of sorted rows: keys, start, end, expiry, events, aggregates, and whether one is over for certain.

    One that is not is the entity's last: when it expires, time decides. ``rows`` tells what a row is; a visit by
    default.
    """
    rows = rows or _Visits
    held: list[pa.Array] | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        made = rows(batch, rules, held).sessions()
        last = len(made[0]) - 1
        held = [one.slice(last, 1) for one in made]
        if last:
            yield _as_batch([one.slice(0, last) for one in made])
    if held is not None:
        yield _as_batch(held)


def _as_batch(columns: Sequence[pa.Array]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(list(columns), names=[f"c{place}" for place in range(len(columns))])


class SessionRows(ABC):
    """One record batch, with the session that the one before it left open as its first row."""

    rules: Rules
    size: int
    keys: Sequence[pa.Array]
    start: np.ndarray[Any, Any]
    end: np.ndarray[Any, Any]
    expiry: np.ndarray[Any, Any]
    events: np.ndarray[Any, Any]
    ended: np.ndarray[Any, Any]
    in_order: bool
    """Whether each row of an entity expires after the one before it."""

    @abstractmethod
    def __init__(self, batch: pa.RecordBatch, rules: Rules, held: Sequence[pa.Array] | None) -> None: ...

    @abstractmethod
    def aggregate(self, place: int, first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> pa.Array:
        """The value of an aggregate for each session, of which the places of its first and last row are given."""

    def sessions(self) -> list[pa.Array]:
        """The sessions of these rows as columns."""
        import numpy as np
        import pyarrow as pa

        new_entity = self._new_entity()
        begins = self._begins(new_entity)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], self.size) - 1
        over = self.ended[last]
        over[:-1] |= ~new_entity[first[1:]]
        fixed = (
            self.start[first],
            np.maximum.reduceat(self.end, first),
            np.maximum.reduceat(self.expiry, first),
            np.add.reduceat(self.events, first),
        )
        columns = [one.take(pa.array(first)) for one in self.keys]
        columns += [pa.array(one, type=pa.int64()) for one in fixed]
        columns += [self.aggregate(place, first, last) for place in range(len(self.rules.aggregates))]
        return [*columns, pa.array(over)]

    def _new_entity(self) -> np.ndarray[Any, Any]:
        import numpy as np
        import pyarrow.compute as pc

        new = np.zeros(self.size, dtype=bool)
        new[0] = True
        for key in self.keys:
            new[1:] |= _truths(pc.not_equal(key.slice(1), key.slice(0, self.size - 1)))
        return new

    def _begins(self, new_entity: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whether a row begins a session."""
        apart = new_entity.copy()
        # Visits of the moment at which a session ends belong to it: no two sessions of an entity start together.
        apart[1:] |= self.ended[:-1] & (self.start[1:] != self.end[:-1])
        begins = apart.copy()
        reach = self.expiry if self.in_order else _running_max(self.expiry, apart)
        begins[1:] |= self.start[1:] > reach[:-1]
        if self.rules.max_duration is not None:
            self._cut_long(begins, self.rules.max_duration)
        return begins

    def _cut_long(self, begins: np.ndarray[Any, Any], longest: int) -> None:
        """Cut what lasts too long where it does; rare, so it may take its time."""
        import numpy as np

        first = np.flatnonzero(begins)
        beyond = np.append(first[1:], self.size)
        too_long = self.start[beyond - 1] - self.start[first] > longest
        for at, stop in zip(first[too_long], beyond[too_long], strict=True):
            begun, reach = self.start[at], self.expiry[at]
            for row in range(at + 1, stop):
                # What was before a cut keeps nothing open after it.
                if self.start[row] - begun > longest or self.start[row] > reach:
                    begins[row] = True
                    begun, reach = self.start[row], self.expiry[row]
                else:
                    reach = max(reach, self.expiry[row])


class _Visits(SessionRows):
    """Rows that are visits; with ``reopens`` some are sessions that an earlier slice left open."""

    def __init__(self, batch: pa.RecordBatch, rules: Rules, held: Sequence[pa.Array] | None) -> None:
        import numpy as np

        self.rules = rules
        columns = list(batch.columns)
        opened = columns.pop() if rules.reopens else None
        self.in_order = not rules.own_gaps and not rules.reopens
        if held is not None:
            columns, opened = _with_held(columns, opened, held, rules)
        self.keys = columns[: rules.keys]
        rest = columns[rules.keys :]
        times = numbers_of(rest.pop(0))
        self.size = len(times)
        gaps: Any = numbers_of(rest.pop(0)) if rules.own_gaps else rules.gap
        self.ended = _truths(rest.pop(0)) if rules.ends else np.zeros(self.size, dtype=bool)
        self.carried: list[pa.Array] = rest
        self.start = times
        self.end = times
        self.expiry = times + gaps
        self.events = np.ones(self.size, dtype=np.int64)
        self.is_open: np.ndarray[Any, Any] | None = None
        self.opened: list[pa.Array] = []
        if opened is not None and opened.null_count < self.size:
            self._reopen(opened)

    def _reopen(self, opened: pa.StructArray) -> None:
        import numpy as np

        is_open = _truths(opened.is_valid())
        fields = opened.flatten()
        start, end, expiry, events = (numbers_of(one) for one in fields[:_FIXED])
        self.start = np.where(is_open, start, self.start)
        self.end = np.where(is_open, end, self.end)
        self.expiry = np.where(is_open, expiry, self.expiry)
        self.events = np.where(is_open, events, self.events)
        self.is_open, self.opened = is_open, fields[_FIXED:]

    def aggregate(self, place: int, first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind, column = self.rules.aggregates[place]
        values = self.carried[column]
        if kind == "collect":
            return self._lists(place, values, first)
        if self.is_open is not None:
            values = pc.if_else(pa.array(self.is_open), self.opened[place], values)
        if kind in ("first", "last"):
            return values.take(pa.array(first if kind == "first" else last))
        return reduced(kind, values, first)

    def _lists(self, place: int, values: pa.Array, first: np.ndarray[Any, Any]) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        offsets = np.append(first, self.size)
        if self.is_open is not None:
            lists = self.opened[place]
            lengths = numbers_of(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
            begin = np.where(self.is_open, self.size + np.cumsum(lengths) - lengths, np.arange(self.size))
            lengths = np.where(self.is_open, lengths, 1)
            after = np.cumsum(lengths)
            picked = np.repeat(begin - (after - lengths), lengths) + np.arange(after[-1])
            values = pa.concat_arrays([values, lists.flatten()]).take(pa.array(picked))
            offsets = np.append(0, after)[offsets]
        lengths = np.diff(offsets)
        most = self.rules.max_events
        if (lengths > most).any():
            within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) < most
            values = values.filter(pa.array(within))
            offsets = np.append(0, np.cumsum(np.minimum(lengths, most)))
        return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), values)


def _with_held(
    columns: Sequence[pa.Array], opened: pa.Array | None, held: Sequence[pa.Array], rules: Rules
) -> tuple[list[pa.Array], pa.Array]:
    """The rows with the session that is open before them as the first: a row like those of earlier slices."""
    import pyarrow as pa

    state = list(held[rules.keys : -1])
    struct = pa.StructArray.from_arrays(state, names=[f"o{place}" for place in range(len(state))])
    if opened is None:
        opened = pa.nulls(len(columns[0]), type=struct.type)
    first = [*held[: rules.keys], held[rules.keys]]
    first += [pa.nulls(1, type=one.type) for one in columns[len(first) :]]
    if rules.ends:  # so far nothing else tells that it is over
        first[rules.keys + 1 + rules.own_gaps] = held[-1]
    return (
        [pa.concat_arrays([one.cast(rest.type), rest]) for one, rest in zip(first, columns, strict=True)],
        pa.concat_arrays([struct.cast(opened.type), opened]),
    )


def _running_max(values: np.ndarray[Any, Any], apart: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The greatest value so far, beginning anew wherever ``apart`` says so."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    group = np.cumsum(apart) * len(values)
    found: np.ndarray[Any, Any] = values[order][np.maximum.accumulate(group + rank) - group]
    return found


def reduced(kind: Kind, values: pa.Array, first: np.ndarray[Any, Any]) -> pa.Array:
    """Sum, least or greatest of each session; NULL where it has no value."""
    import numpy as np
    import pyarrow as pa

    whole = pa.types.is_integer(values.type)
    known = _truths(values.is_valid())
    if kind == "sum":
        numbers = numbers_of(values.fill_null(0))
        if whole:
            _refuse_overflow(numbers, first)
        found = np.add.reduceat(numbers, first)
    elif kind == "min":
        # Spark takes NaN for the greatest number: it is the least only where there is no other, and NULL is none.
        most = np.iinfo(np.int64).max if whole else np.nan
        found = np.fmin.reduceat(numbers_of(values.fill_null(most)), first)
    else:
        least = np.iinfo(np.int64).min if whole else -np.inf
        found = np.maximum.reduceat(numbers_of(values.fill_null(least)), first)
    return pa.array(found, type=values.type, mask=~np.logical_or.reduceat(known, first))


def _refuse_overflow(numbers: np.ndarray[Any, Any], first: np.ndarray[Any, Any]) -> None:
    """Fail where a sum is beyond 64 bits: numpy would give another number."""
    largest = max(int(numbers.max()), -int(numbers.min()))
    if largest * len(numbers) < _BEYOND:
        return
    for begin, end in zip(first, [*first[1:], len(numbers)], strict=True):
        if abs(sum(numbers[begin:end].tolist())) >= _BEYOND:
            raise OverflowError("Sessions: a sum is beyond 64 bits. Cast its column to double before.")


def numbers_of(values: pa.Array) -> np.ndarray[Any, Any]:
    """As numpy; NULL, which only rows have that are told otherwise, becomes 0."""
    values = values.fill_null(0) if values.null_count else values
    return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _truths(values: pa.Array) -> np.ndarray[Any, Any]:
    values = values.fill_null(False) if values.null_count else values
    return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
