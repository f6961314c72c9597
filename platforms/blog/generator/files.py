"""One file of visits, written from its own random streams: the unit of work that processes share."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

from platforms.blog.generator.lines import FAULTS, as_unknown_user, sound_line, spoiled_line
from platforms.blog.generator.recipe import LINE_CLASSES, Recipe
from platforms.blog.generator.sessions import Visit, draw_visits
from platforms.blog.generator.tally import Kept, Tally

__all__ = ["FileJob", "write_visits_file"]

REMEMBERED_LINES = 256  # a duplicate repeats one of the last sound lines of its file
TWO_DAYS_LATE_SHARE = 0.25
BATCH_LINES = 2000


@dataclass(frozen=True)
class FileJob:
    """A visits file to write: file ``number`` of ``files`` of a day, delivered on that day or held back."""

    recipe: Recipe
    path: Path
    day: int
    number: int
    files: int
    lines: int
    held_back: bool = False

    def rng(self, purpose: str) -> random.Random:
        kind = "held-back" if self.held_back else "visits"
        return random.Random(f"{self.recipe.seed}/{kind}/{self.day}/{self.number}/{purpose}")

    def shares(self) -> dict[str, float]:
        """What is held back has no faults; some of its users are unknown as well."""
        shares = self.recipe.shares.by_class()
        return {name: shares[name] if not self.held_back or name == "unknown_user" else 0.0 for name in shares}


def write_visits_file(job: FileJob) -> Tally:
    """Write one file and count what went in, holding no more than a batch of lines."""
    job.path.parent.mkdir(parents=True, exist_ok=True)
    lines = _Lines(job)
    drawn = iter(lines)
    with job.path.open("w", encoding="utf-8", newline="\n") as file:
        while batch := list(islice(drawn, BATCH_LINES)):
            file.write("".join(batch))
    return lines.tally


class _Lines:
    """The lines of one file, counted as they are drawn."""

    def __init__(self, job: FileJob) -> None:
        self.job = job
        self.rng = job.rng("lines")
        self.limits = list(accumulate(job.shares().values()))
        event_days = [job.day] if job.held_back else range(max(0, job.day - 2), job.day + 1)
        self.tally = Tally(job.day, job.lines, job.held_back, kept={day: Kept() for day in event_days})
        self.streams = {day: self._stream(day) for day in event_days}
        self.remembered: deque[str] = deque(maxlen=REMEMBERED_LINES)
        # The middle of an id names the file and its end the line, so that no two visits share one.
        self.id_middle = f"{job.day:04x}-4{job.number:03x}-a{int(job.held_back):03x}"

    def __iter__(self) -> Iterator[str]:
        draw, limits = self.rng.random, self.limits
        for number in range(self.job.lines):
            roll = draw()
            kind = LINE_CLASSES[bisect_right(limits, roll)] if roll < limits[-1] else ""
            yield self._repeated() if kind == "duplicates" and self.remembered else self._line(number, kind)

    def _line(self, number: int, kind: str) -> str:
        job, tally = self.job, self.tally
        event_day = self._late_day() if kind == "late" and job.day else job.day
        visit = next(self.streams[event_day])
        # An odd factor scrambles the number without making two of them equal.
        visit_id = f"{self.rng.getrandbits(32):08x}-{self.id_middle}-{number * 0x9E3779B97F4B & 0xFFFFFFFFFFFF:012x}"
        if kind in FAULTS:
            tally.faults[kind] += 1
            return spoiled_line(kind, visit, visit_id, self.rng)
        if kind == "unknown_user":
            visit = as_unknown_user(visit, self.rng)
        kept = tally.kept[event_day]
        kept.pages[visit.page] += 1
        kept.countries[visit.country] += 1
        line = sound_line(visit, visit_id)
        if event_day == job.day:
            self.remembered.append(line)
        return line

    def _repeated(self) -> str:
        self.tally.faults["duplicates"] += 1
        return self.remembered[int(self.rng.random() * len(self.remembered))]

    def _late_day(self) -> int:
        two_days = self.job.day > 1 and self.rng.random() < TWO_DAYS_LATE_SHARE
        return self.job.day - (2 if two_days else 1)

    def _stream(self, event_day: int) -> Iterator[Visit]:
        job = self.job
        shares = job.shares()
        late = shares["late"] if job.day else 0.0
        # A repeated or late line takes no visit of the day, which must reach its evening all the same.
        share = 1.0 - shares["duplicates"] - late if event_day == job.day else late
        return draw_visits(
            job.recipe,
            job.rng(f"events of {event_day}"),
            day=event_day,
            begin=job.number / job.files,
            end=(job.number + 1) / job.files,
            expected=max(1, int(job.lines * share)),
        )
