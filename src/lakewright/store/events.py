"""Events: the notifications that triggers got, what was made of them, and the dead letters among them.

Guarantee:
    An event is kept once per trigger and id, before anything is made of it; a known one stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Engine, Row, Select, func, insert, select, update

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.triggers import FINISHED, Event, EventRecord, EventState, Malformed
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import events

__all__ = ["Events"]


class Events:
    """A row per trigger and event."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(self, trigger: str, found: Event | Malformed, *, now: datetime) -> tuple[EventRecord, bool]:
        """Keep an event; one whose id is known stays as it is. The second value tells whether it is new."""
        with writing(self._engine) as c:
            known = c.execute(select(events).where(_is(trigger, found.id))).one_or_none()
            if known is not None:
                return _record(known), False
            values: dict[str, Any] = {
                "trigger": trigger,
                "event_id": found.id,
                "place": found.place,
                "state": "received",
                "attempts": 0,
                "envelope": found.envelope(),
                "runs": {},
                "error": None,
                "received_at": now,
                "updated_at": now,
            }
            c.execute(insert(events), values)
            return EventRecord(**values), True

    def move(self, trigger: str, event_id: str, state: EventState, *, now: datetime, error: str | None = None) -> None:
        """Note what has become of it; ``started`` counts one more attempt."""
        values: dict[str, Any] = {"state": state, "error": error, "updated_at": now}
        if state == "started":
            values["attempts"] = events.c.attempts + 1
        with writing(self._engine) as c:
            c.execute(update(events).where(_is(trigger, event_id)).values(values))

    def started(self, trigger: str, event_id: str, pipeline: str, run_id: str, *, now: datetime) -> None:
        """Note that the run of one pipeline has succeeded."""
        with writing(self._engine) as c:
            runs = c.execute(select(events.c.runs).where(_is(trigger, event_id))).scalar_one()
            values = {"runs": {**runs, pipeline: run_id}, "updated_at": now}
            c.execute(update(events).where(_is(trigger, event_id)).values(values))

    def unfinished(self, trigger: str) -> list[EventRecord]:
        """Kept, and not finished, in the order in which they came: what the next listener takes up first."""
        mine = (events.c.trigger == trigger) & events.c.state.not_in(FINISHED)
        return self._many(select(events).where(mine).order_by(events.c.received_at, events.c.event_id))

    def places(self, trigger: str) -> set[str]:
        """Where the channel had the events that are finished."""
        mine = (events.c.trigger == trigger) & events.c.state.in_(FINISHED)
        with reading(self._engine) as c:
            return set(c.execute(select(events.c.place).where(mine)).scalars())

    def latest(
        self, *, states: Collection[EventState] = (), trigger: str | None = None, limit: int = 50
    ) -> list[EventRecord]:
        """The events that came last, newest first."""
        query = select(events).order_by(events.c.received_at.desc(), events.c.event_id).limit(limit)
        if states:
            query = query.where(events.c.state.in_(states))
        return self._many(query if trigger is None else query.where(events.c.trigger == trigger))

    def find(self, event_id: str, *, trigger: str | None = None) -> EventRecord:
        """The event of an id; refused where none has it, or several triggers know it."""
        query = select(events).where(events.c.event_id == event_id)
        found = self._many(query if trigger is None else query.where(events.c.trigger == trigger))
        if not found:
            near = [record.event_id for record in self.latest(trigger=trigger, limit=200)]
            raise UnknownNameError("event", event_id, near)
        if len(found) > 1:
            raise ConfigurationError(
                f"The event '{event_id}' came to several triggers: {', '.join(one.trigger for one in found)}.",
                hint="Say which one: --trigger NAME.",
            )
        return found[0]

    def retire(self, record: EventRecord, *, now: datetime) -> None:
        """Give up a dead letter for good; any other event is refused."""
        if record.state != "dead":
            raise ConfigurationError(f"The event '{record.event_id}' is {record.state}; only dead letters are retired.")
        self.move(record.trigger, record.event_id, "retired", now=now, error=record.error)

    def counts(self) -> dict[str, dict[str, int]]:
        """Trigger -> how many events came (``received``), and how many are in each other state now."""
        query = select(events.c.trigger, events.c.state, func.count()).group_by(events.c.trigger, events.c.state)
        found: dict[str, dict[str, int]] = {}
        with reading(self._engine) as c:
            for trigger, state, number in c.execute(query):
                mine = found.setdefault(trigger, {"received": 0})
                mine["received"] += number
                if state != "received":
                    mine[state] = number
        return found

    def _many(self, query: Select[Any]) -> list[EventRecord]:
        with reading(self._engine) as c:
            return [_record(row) for row in c.execute(query)]


def _is(trigger: str, event_id: str) -> ColumnElement[bool]:
    return (events.c.trigger == trigger) & (events.c.event_id == event_id)


def _record(row: Row[Any]) -> EventRecord:
    return EventRecord(**row._mapping)
