"""Keeper: holds a run's leases while it works, notices when it should stop, and lets go of everything at the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import FrameType
from typing import Any

from lakewright.errors import LakewrightError
from lakewright.model.runs import Run
from lakewright.pipelines.admission import Admission, admit
from lakewright.store import Grant, Store, this_process

__all__ = ["Keeper", "keep"]

_TTL = timedelta(seconds=60)


class Keeper:
    """A heartbeat in the background, and a flag that says stop."""

    def __init__(self, store: Store, run: Run, *, now: Callable[[], datetime], interrupt: Callable[[], None]) -> None:
        self.owner = this_process()
        self.stop = threading.Event()
        self.why = ""
        self.asked_at = now()
        self._store = store
        self._run = run
        self._now = now
        self._interrupt = interrupt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lakewright-heartbeat", daemon=True)
        self._interrupting: threading.Thread | None = None

    def start(self) -> None:
        self._store.leases.register(self.owner, _TTL, self._now())
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._store.leases.forget(self.owner.owner_id)

    def lease(self, name: str, slice_id: str) -> Grant:
        """Lease something for as long as the run goes on."""
        return self._store.leases.acquire(
            name, slice_id, owner_id=self.owner.owner_id, run_id=self._run.run_id, now=self._now()
        )

    def lease_place(
        self, name: str, places: Sequence[str], *, queue: str | None = None, ticket: int | None = None
    ) -> Grant:
        """Lease one of several places, behind everybody who waits longer in ``queue``."""
        return self._store.leases.acquire_place(
            name,
            places,
            owner_id=self.owner.owner_id,
            run_id=self._run.run_id,
            now=self._now(),
            queue=queue,
            ticket=ticket,
        )

    def release(self, grant: Grant) -> None:
        self._store.leases.release(grant.dataset, grant.slice_id, grant.number)

    def ask_to_stop(self, why: str) -> None:
        """Stop after the commits that are under way; running Spark jobs are interrupted."""
        if self.stop.is_set():
            return
        self.why = why
        self.stop.set()
        self._interrupt_spark()

    def _interrupt_spark(self) -> None:
        """Without waiting, one at a time: a Connect server that is gone costs a minute for each of its sessions."""
        if self._interrupting is None or not self._interrupting.is_alive():
            self._interrupting = threading.Thread(target=self._interrupt, name="lakewright-interrupt", daemon=True)
            self._interrupting.start()

    def _beat(self) -> None:
        ticks = 0
        while not self._ended.wait(1.0):
            ticks += 1
            if self.stop.is_set():
                # A step may have been between two Spark jobs when it was asked: ask again until it ends.
                self._interrupt_spark()
            try:
                if self._store.runs.cancel_requested(self._run.run_id):
                    self.ask_to_stop("cancelled by `lakewright cancel`")
                if ticks % 15 == 0 and not self._store.leases.beat(self.owner.owner_id, _TTL, self._now()):
                    self.ask_to_stop("another run has taken over")
            except LakewrightError:
                # The store does not answer just now. A lease lives for a minute: beat as soon as it does.
                ticks = -1


@contextmanager
def keep(
    store: Store,
    run: Run,
    pipelines: Mapping[str, Admission | int],
    *,
    now: Callable[[], datetime],
    interrupt: Callable[[], None],
    wait_seconds: float = 0.0,
) -> Iterator[Keeper]:
    """Hold the run's place in each pipeline, with a heartbeat; SIGTERM and SIGINT ask it to stop.

    A number stands for a pipeline with one run at a time, and says how many runs may wait for it.
    """
    keeper = Keeper(store, run, now=now, interrupt=interrupt)
    keeper.start()
    try:
        asked = {name: Admission(how) if isinstance(how, int) else how for name, how in pipelines.items()}
        admit(keeper, asked, wait_seconds)
        with _signals(keeper):
            yield keeper
    finally:
        keeper.end()


@contextmanager
def _signals(keeper: Keeper) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if keeper.stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        keeper.ask_to_stop(f"received {signal.Signals(number).name}")

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
