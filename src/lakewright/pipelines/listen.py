"""Listening to the triggers of a project: each event is kept, handled and acknowledged, one after the other.

Guarantee:
    An event that was kept and not finished, whatever died in between, is taken up by the next listener before anything
    new. A trigger is listened to by one process at a time. Without events no run is made and no Spark is started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event as Flag
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError, LakewrightError, UnknownNameError
from lakewright.model.runs import Run
from lakewright.model.triggers import ChannelContext, Event, Malformed, Message, OpenChannel
from lakewright.patterns.ingestion.external_trigger import ExternalTrigger, Handled, Starter, start_on_event
from lakewright.pipelines.keeper import keep
from lakewright.pipelines.progress import Listener, Note
from lakewright.pipelines.trigger_options import triggers_of
from lakewright.pipelines.triggers import may_pass, starter

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["ListenSummary", "listen", "replay_event"]

_SHORTEST_LOOK, _LONGEST_LOOK = 0.05, 1.0
_PAUSE_SECONDS = 5.0


@dataclass
class ListenSummary:
    """What a listener did, in events; ``idle`` counts the looks that found none."""

    received: int = 0
    filtered: int = 0
    done: int = 0
    dead: int = 0
    known: int = 0
    """Came again, and were finished already."""
    waiting: int = 0
    """Left for the next listener."""
    runs: list[str] = field(default_factory=list)
    idle: int = 0
    state: Literal["ok", "interrupted"] = "ok"


def listen(
    project: Project,
    pipelines: Sequence[str],
    *,
    once: bool,
    listener: Listener,
    now: Callable[[], datetime],
    start: Callable[[str, Flag], Starter] | None = None,
) -> ListenSummary:
    """Handle events until it is asked to stop, or, with ``once``, until none is left.

    ``start`` says how a pipeline is run, where that is not within this process; it is told when to stop.
    """
    chosen = triggers_of((d.settings for d in project.graph.datasets.values()), pipelines)
    names = sorted({name for _, started in chosen for name in started})
    run = Run(f"listener {now():%Y%m%d-%H%M%S}", ",".join(names), now(), "trigger")
    with keep(project.store, run, {}, now=now, interrupt=lambda: None) as keeper, ExitStack() as stack:
        summary = ListenSummary()
        posts = []
        for trigger, started in chosen:
            keeper.lease(f"trigger:{trigger.name}", "*")
            posts.append(_Post(project, trigger, started, summary, listener, keeper.stop, now, once, start))
        for post in posts:
            stack.callback(post.close)
            post.open()
        for post in posts:
            post.go_on()
        look = _SHORTEST_LOOK
        while not keeper.stop.is_set():
            found = [post.next(look / len(posts)) for post in posts]
            if once and not any(found):
                break
            summary.idle += not any(found)
            look = _SHORTEST_LOOK if any(found) else min(look * 2, _LONGEST_LOOK)
        if keeper.stop.is_set() or summary.waiting:
            summary.state = "interrupted"
    return summary


@dataclass
class _Post:
    """One trigger that is listened to."""

    project: Project
    trigger: ExternalTrigger
    pipelines: tuple[str, ...]
    summary: ListenSummary
    listener: Listener
    stop: Flag
    now: Callable[[], datetime]
    once: bool
    start: Callable[[str, Flag], Starter] | None = None
    channel: OpenChannel | None = None

    def open(self) -> None:
        """Begin to listen."""
        context = ChannelContext(
            self.trigger.name,
            self.project.folder,
            self.project.settings.target.connections,
            once=self.once,
            receive=self._receive,
            places=lambda: self.project.store.events.places(self.trigger.name),
            say=lambda text: self.listener(Note(f"{self.trigger.name}: {text}")),
        )
        self.channel = self.trigger.on.open(context)

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()

    def go_on(self) -> None:
        """Take up what an earlier listener kept and did not finish."""
        for record in self.project.store.events.unfinished(self.trigger.name):
            if self.stop.is_set():
                return
            found = record.found()
            body = found.raw if isinstance(found, Malformed) else json.dumps(found.payload, ensure_ascii=False)
            self._patiently(lambda found=found, body=body: self._handle(found, body.encode()))  # type: ignore[misc]

    def next(self, timeout_seconds: float) -> bool:
        """Handle the next event, if there is one."""
        assert self.channel is not None
        taken: list[Message | None] = []
        channel = self.channel
        self._patiently(lambda: taken.append(channel.take(timeout_seconds)))
        message = taken[-1] if taken else None
        if message is None or self.stop.is_set():
            return False
        self._patiently(lambda: self._finish(message))
        return True

    def _finish(self, message: Message) -> None:
        assert self.channel is not None
        handled = self._handle(self.trigger.read(message, now=self.now()), message.body)
        if handled.finished:
            self.channel.done(message)

    def _handle(self, found: Event | Malformed, body: bytes) -> Handled:
        channel, trigger = self.channel, self.trigger
        assert channel is not None
        handled = start_on_event(
            found,
            {name: self._starter(name) for name in self.pipelines},
            ledger=self.project.store.events,
            trigger=trigger.name,
            types=trigger.types,
            where=trigger.where,
            retry_for=trigger.retry_for,
            passes=may_pass,
            reject=lambda reason: channel.reject(body, found.id, reason),
            wait=self._wait,
            now=self.now,
        )
        self._count(found, handled)
        if not handled.finished:
            self.stop.set()  # it was interrupted: it stays where it is, and so does everything behind it
        return handled

    def _starter(self, pipeline: str) -> Starter:
        if self.start is not None:
            return self.start(pipeline, self.stop)
        return starter(self.project, pipeline, listener=self.listener)

    def _count(self, found: Event | Malformed, handled: Handled) -> None:
        summary = self.summary
        summary.received += handled.new
        if handled.known:
            summary.known += 1
            return
        if handled.state == "filtered":
            summary.filtered += 1
        elif handled.state == "done":
            summary.done += 1
        elif handled.state == "dead":
            summary.dead += 1
        else:
            summary.waiting += 1
        summary.runs += handled.runs.values()
        said = f" ({', '.join(f'{name}: run {run}' for name, run in handled.runs.items())})" if handled.runs else ""
        problem = "" if handled.error is None else f": {handled.error}"
        severity: Literal["info", "warning"] = "warning" if handled.state == "dead" else "info"
        self.listener(Note(f"{self.trigger.name}: event {found.id} is {handled.state}{said}{problem}", severity))

    def _receive(self, message: Message) -> Event | Malformed:
        """Keep an event that was pushed; a malformed one is a dead letter at once."""
        found = self.trigger.read(message, now=self.now())
        events = self.project.store.events
        _, new = events.record(self.trigger.name, found, now=self.now())
        self.summary.received += new
        if isinstance(found, Malformed) and new:
            events.move(self.trigger.name, found.id, "dead", error=found.reason, now=self.now())
            self.summary.dead += 1
        return found

    def _wait(self, seconds: float) -> bool:
        return self.stop.wait(seconds)

    def _patiently(self, work: Callable[[], object]) -> None:
        """Do it again while the store or the channel does not answer: nothing behind it may overtake it."""
        while True:
            try:
                work()
            except LakewrightError as error:
                if self.once or not may_pass(error):
                    raise
                self.listener(Note(f"{self.trigger.name}: {error} Trying again in {_PAUSE_SECONDS:.0f} s.", "warning"))
                if self.stop.wait(_PAUSE_SECONDS):
                    return
            else:
                return


def replay_event(
    project: Project, event_id: str, *, trigger: str | None, listener: Listener, now: Callable[[], datetime]
) -> dict[str, str]:
    """Run the pipelines that a dead letter did not start; it is ``replayed`` when all have succeeded."""
    events = project.store.events
    record = events.find(event_id, trigger=trigger)
    if record.state != "dead":
        raise ConfigurationError(
            f"The event '{event_id}' is {record.state}; only dead letters are replayed. Nothing was started.",
            hint="`lakewright run --again` repeats what its run has made.",
        )
    settings = [dataset.settings for dataset in project.graph.datasets.values()]
    declared = {one.name: (one, names) for one, names in triggers_of(settings)}
    if record.trigger not in declared:
        raise UnknownNameError("trigger", record.trigger, declared)
    rules, pipelines = declared[record.trigger]
    found = record.found()
    if isinstance(found, Malformed):  # the rules may have been corrected since
        found = rules.read(Message(found.raw.encode(), record.place), now=found.processing_time)
    if isinstance(found, Malformed):
        raise InputError(
            f"The event '{event_id}' still cannot be read: {found.reason}. Nothing was started.",
            hint=f"Let it be sent again, and give this one up: lakewright triggers retire {event_id}",
        )
    runs = dict(record.runs)
    for name in pipelines:
        if name not in runs:
            runs[name] = starter(project, name, listener=listener, replay=True, at=now())(found)
            events.started(record.trigger, record.event_id, name, runs[name], now=now())
    events.move(record.trigger, record.event_id, "replayed", now=now())
    return {name: run for name, run in runs.items() if name not in record.runs}
