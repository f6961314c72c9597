"""One stream of a worker: started, watched, and started again.

Guarantee:
    A stream that fails for a passing reason is started again, each time after a longer pause; so is one whose input has
    gained columns, which the new query knows. One that fails otherwise ends. What waits in a skew buffer is delivered
    when nothing new comes: the query is stopped, what it may have left is read to the end, and it starts again when the
    buffer is empty.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

from lakewright.errors import LakewrightError, LeaseHeldError, StepFailed
from lakewright.lake.delta_errors import explain_lost_java, has_other_columns, is_transient
from lakewright.pipelines.private_columns import words_of_step
from lakewright.pipelines.progress import Listener, Note
from lakewright.pipelines.streams.drain import drain
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.joins import silent_side
from lakewright.pipelines.streams.now import prepare
from lakewright.pipelines.streams.queries import Query
from lakewright.pipelines.streams.skew import last_kept
from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = ["StreamOutcome", "WatchedStream"]

_PATIENCE = 30.0
_LONGEST_PAUSE = 60.0
_QUIET = 2.0


@dataclass
class StreamOutcome:
    """What a worker did for one stream."""

    dataset: str
    batches: int = 0
    rows: int = 0
    restarts: int = 0
    error: Exception | None = None


class WatchedStream:
    """A stream whose dataset's lease the worker holds."""

    def __init__(self, shop: Workshop, current: Attempt, outcome: StreamOutcome, listener: Listener) -> None:
        self._shop = shop
        self._current = current
        self._outcome = outcome
        self._tell = listener
        self._query: Query | None = None
        self._failures = 0
        self._knows_columns = False  # whether it was started again with new columns, and has written nothing since
        self._again_at = 0.0
        self._told = -1
        self._quiet_since = 0.0
        self._silent = ""  # what was told of a side of a join that brings nothing
        self._draining: int | None = None  # the generation of which a skew buffer is being emptied
        self.alive = True

    def look(self) -> None:
        """Start it, see how far it is, or find out why it ended."""
        if not self.alive:
            return
        try:
            if self._query is None:
                if self._draining is not None:
                    self._drain(self._draining)
                elif time.monotonic() >= self._again_at:
                    self._start()
                return
            running = self._query.running
            self._harvest(ending=not running)
            if not running:
                self._ended()
            elif self._draining is None and self._is_due_to_drain():
                generation = self._query.generation
                self._query.stop(patience=_PATIENCE)
                # From where it is by now: what it has read since it was started may be gone at the source.
                generation = replace(generation, progress=self._query.progress() or generation.progress)
                # Cut short or not: this one ends Spark's last micro-batch first, and then by itself.
                self._draining, self._query = generation.number, Query(self._current, generation)
        except Exception as error:
            self._failed(error)

    def end(self) -> None:
        """Stop it after its micro-batch, and index what it has committed."""
        if not self.alive:
            return
        try:
            if self._query is not None:
                self._query.stop(patience=_PATIENCE)
                self._harvest(ending=True)
            if not self._still_ours():
                raise self._taken_over()
            self._current.finish(())
        except Exception as error:
            self._give_up(error)

    def _start(self) -> None:
        dataset = self._current.dataset
        given = self._shop.graph.streamed_input(dataset)
        if given is not None and not all(self._shop.lake.log(name).exists() for name in given.datasets):
            return  # the stream above it has not written yet: look again at the next tick
        before = self._shop.store.streams.current(dataset.name)
        _, generation = prepare(self._current)
        if before is not None and generation.number > before.number and (generation.start or {}).get("lost"):
            source: Any = dataset.source
            lost = source.lost_words(generation.start)
            self._tell(Note(f"{dataset.name}: it goes on after records that are lost: {lost}.", "warning"))
        self._query = Query(self._current, generation, every=dataset.every)
        self._quiet_since = time.monotonic()
        self._tell(Note(f"{dataset.name}: the stream is running."))

    def _ended(self) -> None:
        """The query is over: all is read, and what waits can be delivered, or it failed."""
        assert self._query is not None
        error = self._query.failure()
        if error is None and self._draining is not None:
            self._query = None
            return
        self._failed(error or StepFailed(f"The stream {self._outcome.dataset} ended by itself."))

    def _is_due_to_drain(self) -> bool:
        """Whether rows wait in the skew buffer, and nothing new has come for a while that would take them along."""
        query, dataset = self._query, self._current.dataset
        assert query is not None
        patience = max(2 * dataset.every.total_seconds(), _QUIET)
        if not query.standing.in_use or time.monotonic() < self._quiet_since + patience or not query.idle:
            return False
        self._quiet_since = time.monotonic()  # ask the log again only after a while
        kept = last_kept(self._shop.lake, dataset.name, query.generation.number)
        return kept is not None and kept.rows > 0

    def _drain(self, generation: int) -> None:
        """One batch of what waits; where nothing is left, the stream starts again at the next look."""
        if not drain(self._current, generation):
            self._draining = None
        self._index()

    def _harvest(self, *, ending: bool = False) -> None:
        """Index what was committed since the last look; nothing is asked of the lake while nothing has happened."""
        assert self._query is not None
        progress = self._query.progress()
        if not ending and (progress is None or progress.batch == self._told):
            return
        self._index(ending=ending)
        self._quiet_since = time.monotonic()
        if progress is not None and progress.batch != self._told:
            name, number = self._outcome.dataset, self._query.generation.number
            self._shop.store.streams.advance(name, number, progress, now=self._shop.now())
            self._told = progress.batch
            silent = silent_side(self._shop, self._current.dataset, progress)
            if silent and not self._silent:
                self._tell(Note(f"{name}: {silent}", "warning"))
            self._silent = silent

    def _index(self, *, ending: bool = True) -> None:
        dropped = None if self._query is None else self._query.dropped()
        for receipt in harvest_stream(self._current, dropped, ending=ending):
            if receipt.kind == "data":
                self._outcome.batches += 1
                self._outcome.rows += receipt.rows or 0
                self._failures, self._knows_columns = 0, False
        if self._query is not None:
            self._query.settle(dropped)

    def _failed(self, error: Exception) -> None:
        name = self._outcome.dataset
        self._draining = None
        if self._query is not None:
            self._query.abandon()
            self._query = None
        if not self._worth_another_try(error):
            self._give_up(error)
            self._tell(Note(f"{name}: the stream has ended: {self._outcome.error}", "warning"))
            return
        pause = min(_LONGEST_PAUSE, 2.0**self._failures) * (0.5 + random.random())
        self._failures += 1
        self._outcome.restarts += 1
        self._again_at = time.monotonic() + pause
        first = shorten(words_of_step(self._shop.graph, self._current.dataset, error), 160)
        self._tell(Note(f"{name}: {first} The stream starts again in {pause:.1f} s.", "warning"))

    def _worth_another_try(self, error: Exception) -> bool:
        if self._shop.lake.has_lost_java():
            return False
        if isinstance(error, LeaseHeldError):
            # A store that was away for long lets a lease run out that nobody else took: the heartbeat brings it back.
            try:
                return self._still_ours()
            except LakewrightError as lost:
                return is_transient(lost)
        if has_other_columns(error):
            first, self._knows_columns = not self._knows_columns, True
            return first
        goes_on = getattr(self._current.dataset.source, "goes_on_after", None)
        return is_transient(error) or (goes_on is not None and bool(goes_on(error)))

    def _still_ours(self) -> bool:
        """Whether nobody has taken the lease over, run out or not."""
        grant = self._current.grant
        held = self._shop.store.leases.held(self._shop.now())
        return any((one.dataset, one.number) == (grant.dataset, grant.number) for one in held)

    def _taken_over(self) -> LeaseHeldError:
        name = self._outcome.dataset
        return LeaseHeldError(f"{name}: another process has taken the stream over.", name=name, owner="another process")

    def _give_up(self, error: Exception) -> None:
        """It ends here, and its lease is given back; what its micro-batches have committed counts."""
        self.alive = False
        name, shop = self._outcome.dataset, self._shop
        if shop.lake.has_lost_java():
            # Whether its last micro-batch was committed is not known: the open record makes the next process look.
            self._outcome.error = explain_lost_java(f"The stream {name}")
            return
        if not isinstance(error, LakewrightError):
            said = words_of_step(shop.graph, self._current.dataset, error, named=True)
            error = StepFailed(f"{self._current.dataset.place}: the stream {name} failed: {said}")
        self._outcome.error = error
        grant, step_id = self._current.grant, self._current.step_id
        # Where the store does not answer, the next process finds an open record, and settles it.
        with suppress(LakewrightError):
            shop.store.finish_step(step_id, "failed", grant=grant, receipts=(), now=shop.now(), error=str(error))
