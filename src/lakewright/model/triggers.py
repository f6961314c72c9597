"""Events that start runs: what came in, what was made of it, and what a channel and a ledger of events can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, cast

from lakewright.model.arrivals import JsonValue
from lakewright.model.connections import Connections
from lakewright.model.times import parse_time

__all__ = [
    "FINISHED",
    "Channel",
    "ChannelContext",
    "Event",
    "EventLedger",
    "EventRecord",
    "EventState",
    "Malformed",
    "Message",
    "OpenChannel",
]

EventState = Literal["received", "filtered", "started", "done", "failed", "dead", "replayed", "retired"]
"""``failed`` will be tried again; ``dead`` only when somebody replays it; ``retired`` was given up by somebody."""
FINISHED: frozenset[EventState] = frozenset({"filtered", "done", "dead", "replayed", "retired"})
"""The states in which an event may be acknowledged."""


@dataclass(frozen=True, slots=True)
class Event:
    """One notification that could be read."""

    id: str
    """The same id is the same event, however often it comes."""
    type: str
    source: str
    event_time: datetime
    """When it happened, as the sender says; where it does not, when the channel got it."""
    processing_time: datetime
    """When it was first read here."""
    records: tuple[str, ...] = ()
    """The files that it names, URL-decoded."""
    payload: JsonValue = None
    """The whole notification as it came."""
    trigger: str = ""
    trigger_version: str = "1"
    place: str = ""
    """Where the channel had it: topic, partition and offset; a file and its version."""

    @property
    def key(self) -> str:
        """The key of the arrivals that it makes."""
        return f"event:{self.trigger}:{self.id}"

    def envelope(self) -> dict[str, JsonValue]:
        """All of it, as plain JSON values."""
        return {
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "event_time": self.event_time.isoformat(),
            "processing_time": self.processing_time.isoformat(),
            "records": list(self.records),
            "trigger": self.trigger,
            "trigger_version": self.trigger_version,
            "place": self.place,
            "payload": self.payload,
        }

    @classmethod
    def from_envelope(cls, told: Mapping[str, JsonValue]) -> Event:
        """What ``envelope`` wrote."""
        return cls(
            id=str(told["id"]),
            type=str(told["type"]),
            source=str(told["source"]),
            event_time=parse_time(str(told["event_time"])),
            processing_time=parse_time(str(told["processing_time"])),
            records=tuple(cast("list[str]", told["records"])),
            payload=told["payload"],
            trigger=str(told["trigger"]),
            trigger_version=str(told["trigger_version"]),
            place=str(told["place"]),
        )


@dataclass(frozen=True, slots=True)
class Malformed:
    """One notification that cannot be read, and why."""

    id: str
    reason: str
    raw: str
    processing_time: datetime
    place: str = ""

    def envelope(self) -> dict[str, JsonValue]:
        """All of it, as plain JSON values."""
        return {
            "id": self.id,
            "reason": self.reason,
            "raw": self.raw,
            "processing_time": self.processing_time.isoformat(),
            "place": self.place,
        }


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event as a ledger keeps it."""

    trigger: str
    event_id: str
    state: EventState
    envelope: Mapping[str, JsonValue]
    received_at: datetime
    updated_at: datetime
    attempts: int = 0
    runs: Mapping[str, str] = field(default_factory=dict)
    """Pipeline -> the run that it started there, and that succeeded."""
    error: str | None = None
    place: str = ""

    def found(self) -> Event | Malformed:
        """The event itself."""
        if "raw" not in self.envelope:
            return Event.from_envelope(self.envelope)
        told = self.envelope
        moment = parse_time(str(told["processing_time"]))
        return Malformed(self.event_id, str(told["reason"]), str(told["raw"]), moment, self.place)


class EventLedger(Protocol):
    """Where events are kept before anything is made of them."""

    def record(self, trigger: str, found: Event | Malformed, *, now: datetime) -> tuple[EventRecord, bool]:
        """Keep an event; one whose id is known stays as it is. The second value tells whether it is new."""

    def move(self, trigger: str, event_id: str, state: EventState, *, now: datetime, error: str | None = None) -> None:
        """Note what has become of it; ``started`` counts one more attempt."""

    def started(self, trigger: str, event_id: str, pipeline: str, run_id: str, *, now: datetime) -> None:
        """Note that the run of one pipeline has succeeded."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a channel hands over: bytes, and where they lie."""

    body: bytes
    place: str
    """Unique within the channel; the event's id where it tells none itself."""
    time: datetime | None = None
    handle: object = None
    """For the channel alone."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What a channel may know of whom it works for."""

    trigger: str
    project: Path
    connections: Connections = field(default_factory=Connections)
    once: bool = False
    """Only what is there now is asked for."""
    receive: Callable[[Message], Event | Malformed] | None = None
    """Keeps a message: when it returns, the event is safe."""
    places: Callable[[], set[str]] = field(default=set)
    """The places of events that are finished."""
    say: Callable[[str], None] = field(default=lambda text: None)


class OpenChannel(Protocol):
    """A channel that is listened to."""

    def take(self, timeout_seconds: float) -> Message | None:
        """The next message; None where there is none within this time."""

    def done(self, message: Message) -> None:
        """Acknowledge: it is not handed over again."""

    def reject(self, body: bytes, event_id: str, reason: str) -> None:
        """Hand a dead letter to whom the channel names for them; at least once."""

    def close(self) -> None:
        """Let go."""


class Channel(Protocol):
    """Where notifications come from."""

    @property
    def name(self) -> str:
        """For people, and the name of a trigger that has none of its own."""

    def open(self, ctx: ChannelContext) -> OpenChannel:
        """Begin to listen; raises where the channel cannot be reached."""
