"""Continuous streams: a worker that holds the lease of each of its datasets and keeps their queries going.

Guarantee:
    It is not a run: Single Runner does not count it, and a run beside it reads its datasets as they stand. A stop by
    SIGTERM, Ctrl-C or `lakewright cancel` ends after the micro-batches under way, and cuts short what takes too long;
    that loses nothing and doubles nothing, and neither does a kill. A stream that has failed for good ends, and the
    others go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event as Flag

from lakewright.errors import LeaseHeldError
from lakewright.model.runs import RunState
from lakewright.model.slices import WHOLE
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.progress import Listener, Note
from lakewright.pipelines.streams.watched import StreamOutcome, WatchedStream
from lakewright.pipelines.workshop import Workshop

__all__ = ["Worker", "WorkerSummary"]

_TICK = 0.5


@dataclass
class WorkerSummary:
    """How a worker ended."""

    run_id: str
    streams: list[StreamOutcome] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[StreamOutcome]:
        return [one for one in self.streams if one.error is not None]

    @property
    def state(self) -> RunState:
        if not self.failed:
            return "ok"
        return "refused" if self.exit_code == 3 else "failed"

    @property
    def exit_code(self) -> int:
        """0 stopped as asked, 3 guards refused and nothing else failed, 1 failed."""
        codes = {getattr(one.error, "exit_code", 1) for one in self.failed}
        return 0 if not codes else 3 if codes == {3} else 1


class Worker:
    """Keeps the streams of some datasets going until it is told to stop, or none is left."""

    def __init__(self, shop: Workshop, *, stop: Flag, listener: Listener = lambda event: None) -> None:
        self._shop = shop
        self._stop = stop
        self._tell = listener

    def run(self, datasets: Sequence[Dataset]) -> WorkerSummary:
        """Runs until it is stopped; never raises for a failed stream, the summary tells."""
        began = time.monotonic()
        summary = WorkerSummary(self._shop.run.run_id)
        with ExitStack() as leases:
            watched = []
            for dataset in datasets:
                outcome = StreamOutcome(dataset.name)
                summary.streams.append(outcome)
                try:
                    current = leases.enter_context(
                        self._shop.attempt(dataset, WHOLE, attempt=1, reason="continuous", whole=True)
                    )
                except LeaseHeldError as error:
                    outcome.error = error
                    self._tell(Note(str(error), "warning"))
                    continue
                watched.append(WatchedStream(self._shop, current, outcome, self._tell))
            try:
                while not self._stop.is_set() and any(one.alive for one in watched):
                    for one in watched:
                        one.look()
                    self._stop.wait(_TICK)
            finally:
                for one in watched:
                    one.end()
        summary.seconds = time.monotonic() - began
        return summary
