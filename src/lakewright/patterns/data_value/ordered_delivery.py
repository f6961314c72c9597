"""The delivery itself, in plain Python: what a task does with its records, one after another.

Guarantee:
    Of an entity, a record is sent only when those before it were acknowledged, whatever fails in between. What fails is
    tried again in its place, ``tries`` times in all, with growing pauses; then the delivery stops, says which record it
    was, and nothing that comes after it has been sent.
"""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING

from lakewright.errors import InputError, TargetError
from lakewright.patterns.data_value.ordered_sinks import (
    Delivered,
    OpenSink,
    Outgoing,
    PipelinedSink,
    RequestLostError,
    Sink,
)

if TYPE_CHECKING:
    from queue import Queue

__all__ = [
    "Patience",
    "Turns",
    "deliver_bins",
    "deliver_bulk",
    "deliver_each",
    "deliver_pipelined",
    "deliver_scopes",
    "pack",
]

_LONGEST_SECONDS = 30.0
_WAITING = 1000
"""How many records may wait for one worker."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a record is sent before the delivery gives up, and how long is waited in between."""

    tries: int = 5
    pause_seconds: float = 0.2
    sleep: Callable[[float], None] = time.sleep

    def wait(self, attempt: int, asked: float) -> None:
        """Wait after a try that failed: twice as long each time, or as long as the sink asks for."""
        pause = max(asked, self.pause_seconds * 2 ** (attempt - 1))
        if pause > 0:
            self.sleep(min(pause, _LONGEST_SECONDS))


_PATIENT = Patience()


def pack(records: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Put the n-th record of each entity into bin n; for records in memory that are sorted by entity and time.

    >>> letters = [Outgoing(key, n, f"{key}{n}", b"") for key, count in {"A": 3, "B": 2, "C": 1}.items()
    ...            for n in range(1, count + 1)]
    >>> [[record.id for record in one] for one in pack(letters)]
    [['A1', 'B1', 'C1'], ['A2', 'B2'], ['A3']]
    """
    bins: list[list[Outgoing]] = []
    for _, own in groupby(records, key=lambda record: record.key):
        for place, record in enumerate(own):
            if place == len(bins):
                bins.append([])
            bins[place].append(record)
    yield from bins


def deliver_bins(records: Iterable[Outgoing], sink: Sink, *, patience: Patience = _PATIENT) -> Delivered:
    """Send records bin by bin (by output and sequence): the next bin begins when all of this one is acknowledged.

    A bin holds one record of an entity, so whichever of it is tried again, no order can be lost. One above the sink's
    limit is sent in several requests.
    """
    done = Delivered()
    for output, own in groupby(records, key=lambda record: record.output):
        with _opened(sink, output) as session:
            last = 0
            for number, members in groupby(own, key=lambda record: record.sequence):
                if number <= last:
                    raise InputError(f"{sink.shown}: bin {number} comes after bin {last}: the records are not packed.")
                last = number
                for part in _parts(members, sink.bulk_limit):
                    _refuse_repeated(part, sink, number)
                    done += _settle(session, part, sink, patience, where=f"bin {number}")
    return done


def deliver_each(records: Iterable[Outgoing], sink: Sink, *, patience: Patience = _PATIENT) -> Delivered:
    """Send one record at a time: the next one when this one is acknowledged."""
    return _in_requests(records, sink, 1, patience)


def deliver_bulk(records: Iterable[Outgoing], sink: Sink, *, patience: Patience = _PATIENT) -> Delivered:
    """Send request after request, each of as many records as the sink takes; for sinks that commit all or nothing."""
    return _in_requests(records, sink, sink.bulk_limit, patience)


def deliver_pipelined(records: Iterable[Outgoing], sink: Sink, *, patience: Patience = _PATIENT) -> Delivered:
    """Hand records to a sink that keeps their order by itself, and wait for all of them at the end."""
    count = 0
    for output, own in groupby(records, key=lambda record: record.output):
        with _opened(sink, output) as session:
            assert isinstance(session, PipelinedSink)
            for record in own:
                session.post(record)
                count += 1
            session.flush()
    return Delivered(count, count)


Deliver = Callable[[Iterable[Outgoing], Sink], Delivered]


def deliver_scopes(records: Iterable[Outgoing], sink: Sink, deliver: Deliver, *, workers: int) -> Delivered:
    """Deliver by several workers at once, each with a connection and entities of its own: an entity has one worker.

    The first failure stops all of them; what is still waiting is not sent.
    """
    if workers <= 1:
        return deliver(records, sink)
    scopes = [_Scope(sink, deliver) for _ in range(workers)]
    try:
        for record in records:
            scopes[zlib.crc32(f"{record.output}\0{record.key}".encode()) % workers].put(record)
            if any(scope.failure for scope in scopes):
                break
    finally:
        failed = any(scope.failure for scope in scopes)
        for scope in scopes:
            scope.end(drop=failed)
    for scope in scopes:
        if scope.failure is not None:
            raise scope.failure
    return sum((scope.done for scope in scopes), Delivered())


@dataclass(frozen=True, slots=True)
class Turns:
    """What a task does with its records, as plain values: it travels there."""

    way: Callable[..., Delivered]
    """One of the ``deliver_...`` functions."""
    workers: int

    def __call__(self, records: Iterable[Outgoing], sink: Sink, patience: Patience) -> Delivered:
        return deliver_scopes(records, sink, partial(self.way, patience=patience), workers=self.workers)


class _Scope:
    """One worker and what waits for it."""

    def __init__(self, sink: Sink, deliver: Deliver) -> None:
        self.done = Delivered()
        self.failure: BaseException | None = None
        self._waiting: Queue[Outgoing | None] = queue.Queue(_WAITING)
        self._dropped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(sink, deliver), daemon=True)
        self._thread.start()

    def put(self, record: Outgoing | None) -> None:
        while self._thread.is_alive():
            try:
                self._waiting.put(record, timeout=0.1)
                return
            except queue.Full:
                continue

    def end(self, *, drop: bool) -> None:
        if drop:
            self._dropped.set()
        self.put(None)
        self._thread.join()

    def _work(self, sink: Sink, deliver: Deliver) -> None:
        try:
            self.done = deliver(self._records(), sink)
        except BaseException as failure:
            self.failure = failure

    def _records(self) -> Iterator[Outgoing]:
        while (record := self._waiting.get()) is not None and not self._dropped.is_set():
            yield record


def _in_requests(records: Iterable[Outgoing], sink: Sink, most: int, patience: Patience) -> Delivered:
    done = Delivered()
    for output, own in groupby(records, key=lambda record: record.output):
        with _opened(sink, output) as session:
            for part in _parts(own, most):
                where = f"record {part[0].sequence} of its entity"
                done += _settle(session, part, sink, patience, where=where, whole=True)
    return done


@contextmanager
def _opened(sink: Sink, output: str) -> Iterator[OpenSink]:
    session = sink.open(output)
    try:
        yield session
    finally:
        session.close()


def _settle(
    session: OpenSink, part: Sequence[Outgoing], sink: Sink, patience: Patience, *, where: str, whole: bool = False
) -> Delivered:
    """Send a request until all of it is acknowledged; what was refused is sent again, alone."""
    waiting, again = list(part), 0
    for attempt in range(1, patience.tries + 1):
        asked = 0.0
        try:
            refused = session.send(waiting)
        except RequestLostError as lost:
            refused, asked = dict.fromkeys(range(len(waiting)), str(lost)), lost.pause_seconds
        if not refused:
            return Delivered(len(part), attempt, again)
        first = min(refused)
        if whole and len(refused) < len(waiting):
            raise TargetError(
                f"{sink.shown}: it is declared to take a request whole, and took a part of one: the record of "
                f"'{waiting[first].key[:80]}' is missing ({refused[first]}), and later ones may be there.",
                hint='Declare commits="partial", and send one record at a time or in bins.',
            )
        if attempt == patience.tries:
            raise TargetError(
                f"{sink.shown}: the record of '{waiting[first].key[:80]}' in {where} was not taken in {attempt} tries: "
                f"{refused[first]}. What comes after it was not sent.",
                hint="Run again once the target is well: what was sent before comes again, with the same ids.",
            )
        waiting = [record for place, record in enumerate(waiting) if place in refused]
        again += len(waiting)
        patience.wait(attempt, asked)
    raise AssertionError("tries is at least 1")


def _parts(records: Iterable[Outgoing], most: int) -> Iterator[list[Outgoing]]:
    left = iter(records)
    while part := list(islice(left, max(most, 1))):
        yield part


def _refuse_repeated(part: Sequence[Outgoing], sink: Sink, number: int) -> None:
    if len({record.key for record in part}) < len(part):
        raise InputError(f"{sink.shown}: an entity is there twice in bin {number}: the records are not packed.")
