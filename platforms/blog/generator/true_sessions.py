"""The true sessions of some visits, in plain Python: what any way to build them is compared with."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from platforms.blog.generator.recipe import GeneratorError
from platforms.blog.generator.truth import read_truth

__all__ = ["Figures", "Seen", "Session", "figures_of", "kept_visits", "millis", "sessions_of"]


class Seen(NamedTuple):
    """A visit, as far as sessions are made of it; in this order visits of a user are sorted."""

    user_id: str
    at_ms: int
    page: str


class Session(NamedTuple):
    user_id: str
    start_ms: int
    end_ms: int
    pages: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it, told in a way that SQL can tell too."""
        pages = " ".join(self.pages)
        return f"{self.user_id}|{self.start_ms}|{self.end_ms}|{len(self.pages)}|{pages}"


class Figures(NamedTuple):
    """How many sessions, how many visits in them, and a sum that differs if any of them does."""

    sessions: int
    visits: int
    checksum: int


def kept_visits(out: Path | str, *, late_days: Collection[str] = ()) -> Iterator[Seen]:
    """The visits of a generated folder that are to be kept, each once, with those held back of ``late_days``.

    By the rules of ``generate.py``, line by line; the order is that of the files.
    """
    folder, truth, known = Path(out), read_truth(out), set[str]()
    paths = sorted((folder / "staged").glob("*/visits/*/*.json"))
    for day in sorted(late_days):
        paths += sorted((folder / "late" / "visits" / f"date={day}").glob("*.json"))
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as file:
            for visit in filter(None, map(_sound, file)):
                if visit["event_time"][:10] in truth.events and visit["visit_id"] not in known:
                    known.add(visit["visit_id"])
                    yield Seen(visit["user_id"], millis(visit["event_time"]), visit["page"])
    kept = sum(day.kept for day in truth.events.values()) + sum(truth.late_delivery[day].lines for day in late_days)
    if len(known) != kept:
        raise GeneratorError(f"{len(known):,} visits of {out} are sound, and {kept:,} were made to be kept.")


def sessions_of(visits: Iterable[Seen], *, gap: timedelta) -> list[Session]:
    """The sessions of visits in any order: two visits of a user at most a gap apart belong together."""
    ordered = sorted(visits)
    if not ordered:
        return []
    gap_ms = gap // timedelta(milliseconds=1)
    parts: list[list[Seen]] = [ordered[:1]]
    for before, visit in pairwise(ordered):
        together = visit.user_id == before.user_id and visit.at_ms - before.at_ms <= gap_ms
        parts[-1].append(visit) if together else parts.append([visit])
    return [
        Session(part[0].user_id, part[0].at_ms, part[-1].at_ms, tuple(visit.page for visit in part)) for part in parts
    ]


def figures_of(sessions: Collection[Session]) -> Figures:
    """What a table of exactly these sessions adds up to."""
    checksum = sum(zlib.crc32(session.text.encode()) for session in sessions)
    return Figures(len(sessions), sum(len(session.pages) for session in sessions), checksum)


def millis(text: str) -> int:
    """A time of the generator (ISO 8601, UTC) as milliseconds since 1970."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _sound(line: str) -> dict[str, str] | None:
    """The visit of a line, or None if it is to be set aside."""
    try:
        visit = json.loads(line)
        millis(visit["event_time"])
    except (ValueError, TypeError, KeyError):
        return None
    return visit if visit.get("visit_id") is not None and str(visit.get("page") or "").startswith("/") else None
