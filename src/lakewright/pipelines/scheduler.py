"""Scheduler: look, hand out what is due, look after the processes that do it, and wait.

Guarantee:
    One scheduler of a store is at work; another stands by, and takes over when the first one ends or dies. It needs no
    Spark, and while nothing is due, nobody does. When the store does not answer, it waits, and goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from threading import Event as Flag
from typing import Literal

from lakewright.errors import LakewrightError, LeaseHeldError, StoreError, TargetError
from lakewright.model.runs import Run
from lakewright.model.times import utc_now
from lakewright.pipelines.keeper import Keeper
from lakewright.pipelines.launching import Launcher
from lakewright.pipelines.schedule_facts import gather
from lakewright.pipelines.scheduler_jobs import Jobs, Listening, Tell, UpSummary
from lakewright.pipelines.scheduler_links import Links
from lakewright.pipelines.scheduling import decide
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store

__all__ = ["LEASE", "Scheduler"]

LEASE = "scheduler"
_STAND_BY, _LOST_STORE = 5.0, 5.0
_AT_WORK, _WATCHING, _SHORTEST, _LONGEST = 0.5, 2.0, 0.05, 30.0
"""Seconds between two looks: the clock may be changed, and a pipeline resumed, at any moment."""


class Scheduler:
    """The schedules of one project. ``stop`` ends it; ``hurry`` lets it not wait for its processes to end."""

    def __init__(
        self,
        store: Store,
        launcher: Launcher,
        *,
        tell: Tell,
        workers: int = 2,
        once: bool = False,
        now: Callable[[], datetime] = utc_now,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.stop = Flag()
        self.hurry = Flag()
        self._store, self._launcher, self._tell = store, launcher, tell
        self._once, self._now = once, now
        self._wait = wait or self.stop.wait
        self._jobs = Jobs(store, launcher, tell=tell, workers=workers)
        self._links = Links(store, tell=tell, count=self._jobs.summary.runs)
        self._listening = Listening(launcher, tell=tell, once=once)
        self._tables: list[Timetable] = []
        self._files: object = None
        self._settled: dict[str, datetime] = {}
        self._told: dict[str, str] = {}

    def run(self) -> UpSummary:
        """Work until it is stopped, or, with ``once``, until nothing more is due."""
        self._read()
        while not self.stop.is_set() and self._serve():
            self._wait(_STAND_BY)
        self._jobs.end(self.hurry)
        self._listening.end(self.hurry)
        try:
            self._jobs.reap(self._now())
        except (StoreError, TargetError) as error:
            self._tell(error.message, "warning")
        summary = self._jobs.summary
        if self._once and self.stop.is_set():
            summary.state = "interrupted"
        elif self._listening.failed or summary.runs.keys() - {"ok", "skipped"}:
            summary.state = "failed"
        return summary

    def look(self) -> float:
        """Take note of what has ended, hand out what is due; the seconds until the next look."""
        self._jobs.reap(self._now())
        self._read()
        now = self._now()
        facts = gather(self._store, self._tables, now, given_out=self._jobs.given_out, settled=self._settled)
        self._listening.keep_going(self._tables, facts.paused, now)
        looks = [_LONGEST]
        for table in self._jobs.in_turn(self._tables):
            decision = self._links.settle(table, decide(table, facts, now), facts, now)
            if decision.settled is not None:
                self._settled[table.pipeline] = decision.settled
            if decision.again is not None:
                looks.append((decision.again - now).total_seconds())
            self._say_once(table.pipeline, decision.waits and f"{table.pipeline}: {decision.waits}")
            if (pause := self._jobs.hand_out(table, decision, facts, now=now)) is not None:
                looks.append(pause)
            if table.upstream or table.after is not None or decision.waits:
                looks.append(_WATCHING)
        if self._told.pop("store", None) is not None:
            self._tell("The store answers again.", "info")
        if len(self._jobs) or (self._listening.is_at_work and self._once):
            looks.append(_AT_WORK)
        return max(_SHORTEST, min(looks))

    def _serve(self) -> bool:
        """Be the scheduler for as long as the lease is held; False where there is nothing left to do."""
        keeper: Keeper | None = None
        try:
            run = Run(f"scheduler {self._now():%Y%m%d-%H%M%S}", "", self._now(), "scheduled")
            registering = Keeper(self._store, run, now=self._now, interrupt=lambda: None)
            registering.start()
            keeper = registering
            keeper.lease(LEASE, "*")
            self._say_once(LEASE, "")
            return self._work(keeper)
        except LeaseHeldError as error:
            self._stand_by(error)
            return True
        except (StoreError, TargetError) as error:
            self._lost_store(error)
            return True
        finally:
            if keeper is not None:
                with contextlib.suppress(StoreError, TargetError):  # it does not answer: the lease ends by itself
                    keeper.end()

    def _work(self, keeper: Keeper) -> bool:
        while not self.stop.is_set() and not keeper.stop.is_set():
            try:
                seconds = self.look()
            except (StoreError, TargetError) as error:
                self._lost_store(error)
                seconds = _LOST_STORE
            else:
                if self._once and not len(self._jobs) and not self._listening.is_at_work:
                    return False
            self._wait(seconds)
        if keeper.stop.is_set():
            self._tell(f"Not the scheduler any more: {keeper.why}. Standing by.", "warning")
        return not self.stop.is_set()

    def _stand_by(self, error: LeaseHeldError) -> None:
        if self._once:
            raise LeaseHeldError(
                "A scheduler is at work already. Nothing was started.",
                name=LEASE,
                owner=error.owner,
                hint="`lakewright status` names it.",
            ) from None
        self._say_once(LEASE, f"A scheduler is at work ({error.owner}); standing by to take over.")
        with contextlib.suppress(StoreError, TargetError):
            self._jobs.reap(self._now())

    def _lost_store(self, error: LakewrightError) -> None:
        if self._once:
            raise error
        self._say_once("store", f"{error.message} Trying again every {_LOST_STORE:.0f} s.", "warning")

    def _say_once(self, about: str, words: str, severity: Literal["info", "warning"] = "info") -> None:
        if not words:
            self._told.pop(about, None)
        elif self._told.get(about) != words:
            self._told[about] = words
            self._tell(words, severity)

    def _read(self) -> None:
        """Read the timetables where the project's files have changed; wrong files leave the old ones in place."""
        files = self._launcher.fingerprint()
        if files == self._files:
            return
        try:
            self._tables = self._launcher.timetables()
        except LakewrightError as error:
            if self._files is None:
                raise
            self._tell(f"{error.message} The schedules stay as they were.", "warning")
        self._files = files
