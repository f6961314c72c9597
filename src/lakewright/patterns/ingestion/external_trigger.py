"""External Trigger: start a run when something happens, not when a clock strikes.

Problem:
    A reference dataset changes when the backend team releases, once a week at most. A daily refresh mostly loads again
    what it has, and on the day of a release it comes hours late. Each release is told on a message bus: run then.
Guarantee:
    An event is kept before anything is made of it, and acknowledged when it is finished: its runs have succeeded, it is
    of no interest, or it is a dead letter with its reason. The same id is the same event. Of several pipelines only
    those whose run did not succeed are started again. A malformed event stops nobody.
Consequences:
    - An event that never comes starts nothing: keep a slow schedule beside it where that matters.
    - The sender's id decides what is the same event; without one, where the channel had it does.
    - While one event is tried again, those behind it wait: ``retry_for`` says how long.
    - A dead letter waits for a person: watch their number (``lakewright triggers list``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TypeAlias

from lakewright.errors import ConfigurationError, InterruptedRun, LeaseHeldError, first_words
from lakewright.failpoints import failpoint
from lakewright.model.times import parse_duration, utc_now
from lakewright.model.triggers import FINISHED, Channel, Event, EventLedger, EventState, Malformed, Message
from lakewright.patterns.ingestion.event_format import EventFormat, read_event
from lakewright.patterns.ingestion.event_ledger import MemoryLedger

__all__ = [
    "EventFormat",
    "ExternalTrigger",
    "Handled",
    "MemoryLedger",
    "Starter",
    "is_transient_start",
    "read_event",
    "start_on_event",
]

Starter: TypeAlias = Callable[[Event], str]
"""Starts one pipeline for an event, and returns the id of its run; raises where that did not succeed."""

_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class ExternalTrigger:
    """Which events of a channel start the pipeline that it is given to; several pipelines may share one."""

    on: Channel
    _: KW_ONLY
    types: Sequence[str] = ()
    """The types of interest, as shell patterns such as ``ObjectCreated:*``; all where none is named."""
    where: Callable[[Event], bool] | None = None
    """A further condition on the event."""
    name: str = ""
    """The channel's name, where it has none of its own. Events are remembered under it."""
    format: EventFormat = field(default_factory=EventFormat)
    version: str = "1"
    """Told to the run: raise it when the rules above change."""
    retry_for: str = "1 hour"
    """How long failures that may pass are tried again before the event becomes a dead letter."""

    def __post_init__(self) -> None:
        if not hasattr(self.on, "open"):
            raise ConfigurationError(
                f"ExternalTrigger: {self.on!r} is no channel.",
                hint='Use KafkaEvents("broker", "releases"), FolderEvents("inbox") or WebhookEvents(...).',
            )
        if isinstance(self.types, str):
            raise ConfigurationError(f"ExternalTrigger: types is a list, such as ['{self.types}'].")
        parse_duration(self.retry_for)
        object.__setattr__(self, "types", tuple(self.types))
        object.__setattr__(self, "name", self.name or self.on.name)

    def read(self, message: Message, *, now: datetime) -> Event | Malformed:
        """The event of a message."""
        return read_event(
            message.body,
            place=message.place,
            time=message.time,
            now=now,
            format=self.format,
            trigger=self.name,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class Handled:
    """What has become of an event."""

    state: EventState
    new: bool
    """Whether it came for the first time."""
    runs: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    known: bool = False
    """Whether it was finished before."""

    @property
    def finished(self) -> bool:
        """Whether it may be acknowledged."""
        return self.state in FINISHED


def start_on_event(
    event: Event | Malformed,
    starters: Mapping[str, Starter],
    *,
    ledger: EventLedger,
    trigger: str = "trigger",
    types: Sequence[str] = (),
    where: Callable[[Event], bool] | None = None,
    retry_for: str = "1 hour",
    passes: Callable[[Exception], bool] | None = None,
    reject: Callable[[str], None] = lambda reason: None,
    wait: Callable[[float], bool | None] = time.sleep,
    now: Callable[[], datetime] = utc_now,
) -> Handled:
    """Keep one event, then start each pipeline of ``starters`` that it has not started yet.

    A failure that ``passes`` is tried again after a growing pause, until ``retry_for`` is over; any other one makes a
    dead letter of the event, for which ``reject`` is called first. Where ``wait`` answers True, it is left for later.

    >>> moment = utc_now()
    >>> release = read_event(b'{"id": "r1", "type": "release"}', place="p", now=moment)
    >>> ledger = MemoryLedger()
    >>> for _ in range(2):
    ...     done = start_on_event(release, {"devices": lambda event: f"run of {event.id}"}, ledger=ledger)
    ...     print(done.state, done.new, done.runs)
    done True {'devices': 'run of r1'}
    done False {'devices': 'run of r1'}
    """
    record, new = ledger.record(trigger, event, now=now())
    failpoint("event_recorded")
    if record.state in FINISHED:
        return Handled(record.state, new, record.runs, record.error, known=True)
    found = event if new else record.found()  # with the processing time of then
    work = _Work(ledger, trigger, found.id, new, dict(record.runs), reject, now)
    if isinstance(found, Malformed):
        return work.end("dead", found.reason)
    try:
        if not _is_wanted(found, types, where):
            return work.end("filtered")
    except Exception as error:  # the project's own condition: a mistake in it must not lose the event
        return work.end("dead", f"'where' failed: {type(error).__name__}: {error}")
    given_up: dict[str, str] = {}
    patience, pause = parse_duration(retry_for).total_seconds(), 1.0
    pending = [name for name in starters if name not in work.runs]
    while True:
        try:
            problems, hopeless = work.start(
                found, {name: starters[name] for name in pending}, passes or is_transient_start
            )
        except InterruptedRun as error:
            return work.end("failed", str(error))
        given_up |= hopeless
        if problems and patience <= 0:
            given_up |= problems
        elif problems:
            left = work.end("failed", _joined(problems))
            pause = min(pause, _LONGEST_PAUSE, patience)
            if wait(pause):
                return left
            pending, patience, pause = list(problems), patience - pause, pause * 2
            continue
        return work.end("dead", _joined(given_up)) if given_up else work.end("done")


@dataclass(slots=True)
class _Work:
    """One event on its way."""

    ledger: EventLedger
    trigger: str
    event_id: str
    new: bool
    runs: dict[str, str]
    reject: Callable[[str], None]
    now: Callable[[], datetime]

    def start(
        self, event: Event, starters: Mapping[str, Starter], passes: Callable[[Exception], bool]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Start each pipeline once: which of them failed in a way that may pass, and which for good."""
        self.ledger.move(self.trigger, self.event_id, "started", now=self.now())
        problems: dict[str, str] = {}
        hopeless: dict[str, str] = {}
        for name, start in starters.items():
            try:
                run_id = start(event)
            except InterruptedRun:
                raise
            except Exception as error:  # a starter may fail in any way, and the event is not lost by it
                (problems if passes(error) else hopeless)[name] = _told(error)
            else:
                failpoint("event_started")
                self.runs[name] = run_id
                self.ledger.started(self.trigger, self.event_id, name, run_id, now=self.now())
        return problems, hopeless

    def end(self, state: EventState, error: str | None = None) -> Handled:
        """Note what has become of it; a dead letter is handed on first, so that a kill loses none."""
        if state == "dead":
            self.reject(error or "")
        self.ledger.move(self.trigger, self.event_id, state, error=error, now=self.now())
        return Handled(state, self.new, dict(self.runs), error)


def is_transient_start(error: BaseException) -> bool:
    """Whether a start may succeed later: somebody else is at work, or a server does not answer just now."""
    if isinstance(error, LeaseHeldError | ConnectionError | TimeoutError):
        return True
    text = str(error)
    if "database is locked" in text or "no Kafka broker answers" in text:
        return True
    return error.__cause__ is not None and is_transient_start(error.__cause__)


def _is_wanted(event: Event, types: Sequence[str], where: Callable[[Event], bool] | None) -> bool:
    if types and not any(fnmatchcase(event.type, one) for one in types):
        return False
    return where is None or bool(where(event))


def _told(error: Exception) -> str:
    return first_words(error, most=1000)


def _joined(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items())
