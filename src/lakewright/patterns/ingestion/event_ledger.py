"""A ledger of events within one process: for use without a project, and for tests. It forgets all when it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lakewright.model.triggers import Event, EventRecord, EventState, Malformed

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """Keeps events in memory, by trigger and id."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], EventRecord] = {}

    def record(self, trigger: str, found: Event | Malformed, *, now: datetime) -> tuple[EventRecord, bool]:
        """Keep an event; one whose id is known stays as it is."""
        new = (trigger, found.id) not in self.records
        if new:
            kept = EventRecord(trigger, found.id, "received", found.envelope(), now, now, place=found.place)
            self.records[trigger, found.id] = kept
        return self.records[trigger, found.id], new

    def move(self, trigger: str, event_id: str, state: EventState, *, now: datetime, error: str | None = None) -> None:
        """Note what has become of it."""
        known = self.records[trigger, event_id]
        attempts = known.attempts + (state == "started")
        self.records[trigger, event_id] = replace(known, state=state, attempts=attempts, error=error, updated_at=now)

    def started(self, trigger: str, event_id: str, pipeline: str, run_id: str, *, now: datetime) -> None:
        """Note that the run of one pipeline has succeeded."""
        known = self.records[trigger, event_id]
        self.records[trigger, event_id] = replace(known, runs={**known.runs, pipeline: run_id}, updated_at=now)

    def count(self, state: EventState) -> int:
        """How many events are in a state."""
        return sum(record.state == state for record in self.records.values())
