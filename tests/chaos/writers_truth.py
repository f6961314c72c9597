"""What was delivered to the project of every writer, and what each of its targets must hold: reckoned without it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.chaos.writers_project import DAYS
from tests.pipelines.shop import land
from tests.pipelines.streaming import send

__all__ = ["Change", "Fix", "Truth"]

IDS = 30
Held = Counter[Hashable]


@dataclass(frozen=True, order=True)
class Change:
    """A line of a file of changes; without an id it is a dead letter."""

    seq: int
    id: int | None
    gone: bool
    at: datetime

    @property
    def day(self) -> str:
        return f"{self.at:%Y-%m-%d}"


@dataclass(frozen=True)
class Fix:
    """A line of a file of fixes."""

    id: int
    seq: int
    gone: bool


@dataclass
class Truth:
    """Delivers rows, and remembers every one of them."""

    folder: Path
    kafka: Any
    topic: str
    chance: random.Random
    changes: list[Change] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    fixes: dict[str, list[Fix]] = field(default_factory=dict)
    events: list[dict[str, Any] | str] = field(default_factory=list)
    deliveries: int = 0
    _seq: int = 0

    def deliver(self, *, may_replace: bool = False) -> None:
        """A file of changes, a file of fixes and some messages. A file of fixes that was taken may be replaced."""
        self.deliveries += 1
        day = DAYS[self.deliveries % len(DAYS)]
        ids: Sequence[int | None] = range(IDS)  # the first time all, so that a flag never meets an unknown key
        if self.deliveries > 1:
            ids = [self.chance.choice([None, *range(IDS)]) for _ in range(self.chance.randint(3, 8))]
        lines: list[dict[str, object] | str] = []
        for one in ids:
            change = Change(self._next(), one, self.deliveries > 1 and self.chance.random() < 0.2, self._time(day))
            self.changes.append(change)
            lines.append({"id": one, "seq": change.seq, "gone": change.gone, "at": change.at.isoformat()})
        if self.chance.random() < 0.3:
            self.broken.append(f"{{broken {self.deliveries}")
            lines.append(self.broken[-1])
        land(self.folder, f"{self.deliveries:04d}.json", lines, folder="changes")
        self._deliver_fixes(may_replace)
        self._send(day)

    def _deliver_fixes(self, may_replace: bool) -> None:
        name = f"{self.deliveries:04d}.json"
        if may_replace and self.fixes and self.chance.random() < 0.5:
            name = sorted(self.fixes)[-1]  # what Stateful Merger has to take back
        ids = self.chance.sample(range(IDS), self.chance.randint(2, 5))
        rows = [Fix(one, self._next(), self.chance.random() < 0.2) for one in ids]
        self.fixes[name] = rows
        land(self.folder, name, [{"id": r.id, "seq": r.seq, "gone": r.gone} for r in rows], folder="fixes")

    def _send(self, day: str) -> None:
        sent: dict[int, list[dict[str, object] | str | None]] = {0: [], 1: []}
        for _ in range(self.chance.randint(3, 8)):
            number = len(self.events)
            event: dict[str, Any] | str = {
                "id": number, "at": self._time(day).isoformat(), "page": None if number % 11 == 0 else "/",
            }  # fmt: skip
            if number % 17 == 0:
                event = f"{{broken event {number}"
            self.events.append(event)
            sent[number % 2].append(event)
        for partition, values in sent.items():
            send(self.kafka, self.topic, values, partition)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _time(self, day: str) -> datetime:
        return datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(seconds=self._next())

    # What the targets must hold

    @property
    def named(self) -> list[Change]:
        return [change for change in self.changes if change.id is not None]

    @property
    def readable(self) -> list[dict[str, Any]]:
        return [event for event in self.events if isinstance(event, dict)]

    def days(self) -> Held:
        return Counter((c.id, c.seq, c.gone, c.day) for c in self.named)

    def current(self) -> Held:
        """Soft deletes: the last change of each key, gone or not."""
        last = {c.id: c for c in sorted(self.named)}
        return Counter((c.id, c.seq, c.gone) for c in last.values())

    def present(self) -> Held:
        """Hard deletes: only what is not gone."""
        return Counter({(key, seq): 1 for key, seq, gone in self.current() if not gone})  # type: ignore[misc]

    def versions(self) -> Held:
        found: Held = Counter()
        for key in range(IDS):
            chain = sorted((c for c in self.named if c.id == key), key=lambda c: c.at)
            ends = [c.at for c in chain[1:]] + [None]
            found.update((key, c.seq, c.at, end, end is None) for c, end in zip(chain, ends, strict=True))
        return found

    def exact(self) -> Held:
        """As if every file had always been what it is now."""
        last = {fix.id: fix for fix in sorted((f for rows in self.fixes.values() for f in rows), key=lambda f: f.seq)}
        return Counter((f.id, f.seq) for f in last.values() if not f.gone)

    def events_held(self) -> Held:
        return Counter((e["id"], e["at"][:10], e["page"]) for e in self.readable)

    def paged(self) -> Held:
        return Counter((e["id"], e["at"][:10], e["page"]) for e in self.readable if e["page"] is not None)

    def totals(self, rows: Held) -> Held:
        """Rows and the sum of their ids per day, of what ``days`` or ``events_held`` hold."""
        sums: dict[str, tuple[int, int]] = {}
        for row in rows.elements():
            day = next(part for part in row if isinstance(part, str) and part in DAYS)  # type: ignore[attr-defined]
            n, ids = sums.get(day, (0, 0))
            sums[day] = n + 1, ids + row[0]  # type: ignore[index]
        return Counter((day, n, ids) for day, (n, ids) in sums.items())

    def letters(self) -> Held:
        """Dead letters by dataset, and what tells the record: its raw text, or its number."""
        nameless = [c.seq for c in self.changes if c.id is None]
        found: Held = Counter(("changes", raw) for raw in self.broken)
        found.update((name, seq) for seq in nameless for name in ("days", "keyed"))
        found.update(("events", event) for event in self.events if isinstance(event, str))
        found.update(("paged", e["id"]) for e in self.readable if e["page"] is None)
        return found

    def record_of(self, letter: Mapping[str, Any]) -> tuple[str, Any]:
        """A dead letter as `letters` tells it."""
        if letter["dataset"] in ("changes", "events"):
            return letter["dataset"], letter["raw"]
        if letter["dataset"] == "paged":
            return "paged", letter["offset"] * 2 + letter["partition"]
        return letter["dataset"], json.loads(letter["record"])["seq"]
