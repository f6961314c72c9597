"""A launcher that starts nothing, and what is around a scheduler: its loop needs no process. For tests only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lakewright.model.runs import Run
from lakewright.pipelines.following import following_run_id
from lakewright.pipelines.scheduler import Scheduler
from lakewright.pipelines.scheduling import scheduled_run_id
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Process:
    """A process that ends when the test says so, or when it is asked to stop."""

    def __init__(self, pipeline: str, times: Sequence[datetime], seen: Mapping[str, int] | None = None) -> None:
        self.pid, self.pipeline, self.times, self.seen = 4711, pipeline, list(times), seen
        self.since: datetime | None = None
        self.follows: str | None = None
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = 130


class World:
    """A launcher that starts nothing, and everything around a scheduler."""

    def __init__(self, store: Store, *tables: Timetable) -> None:
        self.store, self.tables, self.now, self.files = store, list(tables), NOON, 1
        self.problem: Exception | None = None
        self.started: list[Process] = []
        self.listeners: list[Process] = []
        self.told: list[str] = []

    def work(
        self, pipeline: str, times: Sequence[datetime], seen: Mapping[str, int] | None, *, since: datetime | None = None
    ) -> Process:
        self.started.append(Process(pipeline, times, seen))
        self.started[-1].since = since
        return self.started[-1]

    def follow(self, pipeline: str, run_id: str) -> Process:
        self.started.append(Process(pipeline, []))
        self.started[-1].follows = run_id
        return self.started[-1]

    def listen(self, pipelines: Sequence[str], *, once: bool) -> Process:
        self.listeners.append(Process(",".join(pipelines), []))
        return self.listeners[-1]

    def timetables(self) -> list[Timetable]:
        if self.problem is not None:
            raise self.problem
        return self.tables

    def fingerprint(self) -> object:
        return self.files

    def last_words(self, name: str) -> str:
        return "error: it is broken"

    def scheduler(self, wait: Callable[[float], object] | None = None, **options: Any) -> Scheduler:
        def tell(words: str, severity: str) -> None:
            self.told.append(words)

        return Scheduler(self.store, self, tell=tell, now=lambda: self.now, wait=wait, **options)

    def end(self, process: Process, *states: str, code: int = 0) -> None:
        """The process ends, and its runs ended like this."""
        for at, state in zip(process.times, states, strict=False):
            known = self.store.runs.get(run_id := scheduled_run_id(process.pipeline, at, process.seen))
            attempt = 1 if known is None else known.attempt + 1
            run = Run(run_id, process.pipeline, at, "scheduled", attempt)
            self.store.runs.start(run, owner_id=None, options={}, now=self.now)
            self.store.runs.finish(run_id, state, now=self.now, error=None if state == "ok" else "no such file")  # type: ignore[arg-type]
        if process.follows is not None:
            run = Run(following_run_id(process.pipeline, process.follows), process.pipeline, self.now, "backfill")
            self.store.runs.start(run, owner_id=None, options={}, now=self.now)
            self.store.runs.finish(run.run_id, states[0], now=self.now)  # type: ignore[arg-type]
        if process.seen is not None and states == ("ok",):
            self.store.schedules.see(process.pipeline, process.seen, now=self.now)
        process.code = code
