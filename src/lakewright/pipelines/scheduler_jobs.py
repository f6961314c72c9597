"""The processes of a scheduler: started for what is due, looked after until they have ended, asked to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event as Flag
from typing import Literal

from lakewright.errors import InterruptedRun, first_words
from lakewright.pipelines.following import following_run_id
from lakewright.pipelines.launching import BUSY, Child, Launcher
from lakewright.pipelines.scheduling import Decision, Facts, scheduled_run_id, share_out
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Backfill, Store

__all__ = ["Jobs", "Listening", "Tell", "UpSummary"]

Tell = Callable[[str, Literal["info", "warning"]], None]

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=10)


@dataclass
class UpSummary:
    """What a scheduler did."""

    processes: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    """How the runs ended that it has handed out; ``none`` where a process ended without one."""
    state: Literal["ok", "failed", "interrupted"] = "ok"


class _Pauses:
    """When something that failed to start may be tried again."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, datetime]] = {}

    def failed(self, name: str, now: datetime) -> None:
        times = self._until.get(name, (0, now))[0] + 1
        doubled: int = 2 ** min(times - 1, 10)
        self._until[name] = (times, now + min(_FIRST_PAUSE * doubled, _LONGEST_PAUSE))

    def went_well(self, name: str) -> None:
        self._until.pop(name, None)

    def left(self, name: str, now: datetime) -> float:
        """Seconds; none where the clock went back, since how long ago it was, nobody can tell."""
        pause = self._until.get(name, (0, now))[1] - now
        return pause.total_seconds() if timedelta(0) < pause <= _LONGEST_PAUSE else 0.0


@dataclass(frozen=True)
class _Job:
    pipeline: str
    times: tuple[datetime, ...] = ()
    seen: Mapping[str, int] | None = None
    backfill: Backfill | None = None
    """Of another pipeline: what it answers to, in place of times."""
    since: datetime | None = None
    """Since when its first time is due."""
    pool: str | None = None
    child: Child | None = None

    @property
    def runs(self) -> list[tuple[datetime, str]]:
        """The runs that it has to make, each with its time."""
        if self.backfill is not None:
            return [(self.backfill.start, following_run_id(self.pipeline, self.backfill))]
        return [(at, scheduled_run_id(self.pipeline, at, self.seen)) for at in self.times]

    @property
    def code(self) -> int | None:
        """The exit code of its process; None while it goes on."""
        return None if self.child is None else self.child.poll()


class Jobs:
    """The processes that make runs: at most ``workers`` at a time of pipelines without a pool, and so many of each pool
    as it has slots, whatever the others do.
    """

    def __init__(self, store: Store, launcher: Launcher, *, tell: Tell, workers: int) -> None:
        self.summary = UpSummary()
        self._store, self._launcher, self._tell, self._workers = store, launcher, tell, workers
        self._jobs: list[_Job] = []
        self._pauses = _Pauses()
        self._turns: dict[str, int] = {}
        self._due_since: dict[tuple[str, datetime], datetime] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def in_turn(self, tables: Sequence[Timetable]) -> list[Timetable]:
        """Whoever had no process for longest comes first: a pipeline that is always due keeps nobody out."""
        return sorted(tables, key=lambda table: self._turns.get(table.pipeline, 0))

    @property
    def given_out(self) -> dict[str, set[datetime]]:
        """Pipeline -> the times that its processes have to make."""
        found: dict[str, set[datetime]] = {}
        for job in self._jobs:
            found.setdefault(job.pipeline, set()).update(job.times)
        return found

    def hand_out(self, table: Timetable, decision: Decision, facts: Facts, *, now: datetime) -> float | None:
        """Start processes for what is due, as far as there is room; the seconds until more may be started."""
        name = table.pipeline
        self._note_due(name, decision.times, now)
        if not decision.times and decision.backfill is None:
            return None
        if left := self._pauses.left(name, now):
            return left
        room = self._room(table, facts)
        for times in share_out(decision.times, room=room) if room > 0 and decision.times else ():
            since = min(self._due_since[name, at] for at in times)
            if not self._start(table, _Job(name, tuple(times), decision.seen, since=since), now):
                return None
        if decision.backfill is not None and not decision.times and room > 0:
            self._start(table, _Job(name, backfill=decision.backfill), now)
        return None

    def _room(self, table: Timetable, facts: Facts) -> int:
        """How many more processes the pipeline, and its pool or else the workers without one, may have."""
        mine = sum(job.pipeline == table.pipeline for job in self._jobs)
        most = 1 if table.depends_on_past else table.concurrency
        room = most - max(facts.running.get(table.pipeline, 0), mine)
        together = [job for job in self._jobs if job.pool == table.pool]
        if table.pool is None:
            return min(room, self._workers - len(together))
        pids = {job.child.pid for job in together if job.child is not None}
        others = [pid for pid in facts.pooled.get(table.pool, ()) if pid not in pids]
        return min(room, table.slots - len(together) - len(others))

    def _start(self, table: Timetable, job: _Job, now: datetime) -> bool:
        name, backfill = table.pipeline, job.backfill
        try:
            if backfill is not None:
                child = self._launcher.follow(name, backfill.run_id)
            else:
                child = self._launcher.work(name, job.times, job.seen, since=job.since)
        except OSError as error:
            self._pauses.failed(name, now)
            self._tell(f"{name}: no process can be started: {error.strerror}.", "warning")
            return False
        self._jobs.append(replace(job, pool=table.pool, child=child))
        self.summary.processes += 1
        self._turns[name] = self.summary.processes
        if backfill is not None:
            what = (
                f"the backfill {backfill.run_id} is followed from {backfill.start:%Y-%m-%d} to {backfill.end:%Y-%m-%d}"
            )
        else:
            many = f" to {job.times[-1]:%Y-%m-%d %H:%M} ({len(job.times)} runs)" if len(job.times) > 1 else ""
            what = f"{job.times[0]:%Y-%m-%d %H:%M}{many} is due"
        self._tell(f"{name}: {what}; process {child.pid} runs it.", "info")
        return True

    def _note_due(self, name: str, times: Sequence[datetime], now: datetime) -> None:
        """Remember since when each time could have been run, and forget those that are not due any more."""
        known = {at: since for (pipeline, at), since in self._due_since.items() if pipeline == name}
        for at in known.keys() - set(times):
            del self._due_since[name, at]
        for at in times:
            self._due_since.setdefault((name, at), now)

    def reap(self, now: datetime) -> None:
        """Take note of what has ended. The store is asked first, so that nothing is forgotten where it is lost."""
        for job in [job for job in self._jobs if job.code is not None]:
            records = [(at, self._store.runs.get(run_id)) for at, run_id in job.runs]
            self._jobs.remove(job)
            ended = [(at, one) for at, one in records if one is not None]
            for at, one in ended:
                state = "lost" if one.state == "running" else one.state
                self.summary.runs[state] += 1
                why = "" if one.error is None else f": {first_words(one.error, most=None)}"
                self._tell(f"{job.pipeline}: {at:%Y-%m-%d %H:%M} {state}{why}", "info" if state == "ok" else "warning")
            self._judge(job, bool(ended), now)

    def _judge(self, job: _Job, made_runs: bool, now: datetime) -> None:
        code = job.code
        # One that ends well without a run was ended by the project's own code: it would be started again at once.
        if made_runs and (code == 0 or job.backfill is None):
            self._pauses.went_well(job.pipeline)
            return
        self._pauses.failed(job.pipeline, now)
        if made_runs:
            return
        if code == BUSY:
            self._tell(f"{job.pipeline}: somebody else is at work on it; it is tried again.", "info")
            return
        if code == InterruptedRun.exit_code:
            self.summary.runs["interrupted"] += 1
            self._tell(f"{job.pipeline}: interrupted before a run began.", "info")
            return
        self.summary.runs["none"] += 1
        words = self._launcher.last_words(job.pipeline) or f"its process ended with {code}"
        self._tell(f"{job.pipeline}: no run was made: {words}", "warning")

    def end(self, hurry: Flag) -> None:
        """Ask every process to stop, and wait until it has ended what it must, or somebody is in a hurry."""
        alive = [job.child for job in self._jobs if job.child is not None and job.code is None]
        for child in alive:
            child.terminate()
        if alive:
            self._tell(f"Waiting for {len(alive)} process{'es' if len(alive) > 1 else ''} to end.", "info")
        while any(child.poll() is None for child in alive) and not hurry.wait(0.1):
            pass


class Listening:
    """The process that listens to the triggers of a project, where it has some."""

    def __init__(self, launcher: Launcher, *, tell: Tell, once: bool) -> None:
        self.failed = False
        self._launcher, self._tell, self._once = launcher, tell, once
        self._names: tuple[str, ...] = ()
        self._child: Child | None = None
        self._pauses = _Pauses()

    @property
    def is_at_work(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def keep_going(self, tables: Sequence[Timetable], paused: Collection[str], now: datetime) -> None:
        """Have one for the pipelines with triggers that are not paused, and no other one."""
        wanted = tuple(sorted(table.pipeline for table in tables if table.triggers and table.pipeline not in paused))
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                if self._names != wanted:
                    self._child.terminate()  # the new one begins when it has ended
                return
            if self._names == wanted and code:
                words = self._launcher.last_words("listen") or f"it ended with {code}"
                self._tell(f"The listener has ended: {words}", "warning")
                self._pauses.failed("", now)
                self.failed = True
            if self._once:
                return
            self._child = None
        if wanted and not self._pauses.left("", now):
            self._names, self._child = wanted, self._launcher.listen(wanted, once=self._once)
            self._tell(f"Process {self._child.pid} listens to the triggers of {', '.join(wanted)}.", "info")

    def end(self, hurry: Flag) -> None:
        """Ask it to stop, and wait until it has."""
        if self._child is None or self._child.poll() is not None:
            return
        self._child.terminate()
        while self._child.poll() is None and not hurry.wait(0.1):
            pass
