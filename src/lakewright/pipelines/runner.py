"""Runner: make what is due, in order, in one warm session.

Datasets start when everything above them is done; branches, and slices that do not depend on each other, run
side by side. A failed dataset stops everything below it and nothing else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import shorten
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any, Literal, TypeVar

from lakewright.errors import InputError, InterruptedRun, LakewrightError, LimitExceeded, StepFailed
from lakewright.lake.delta_errors import is_lost_server, is_transient
from lakewright.lake.interrupts import add_tag, clear_tags, interrupt_tag
from lakewright.model.runs import StepState
from lakewright.model.slices import WHOLE
from lakewright.pipelines.capture import capture_late_rows
from lakewright.pipelines.choosing import new_skips
from lakewright.pipelines.computes import Computes
from lakewright.pipelines.decide import Decider, SliceState, Wish
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.maintain import compact_one
from lakewright.pipelines.making import Make, maker_of
from lakewright.pipelines.marking import settle_markers
from lakewright.pipelines.partial import run_fallback
from lakewright.pipelines.private_columns import words_of_step
from lakewright.pipelines.progress import (
    DatasetDone,
    DatasetStarted,
    Listener,
    Note,
    Outcome,
    RunSummary,
    SliceDone,
    SliceStarted,
)
from lakewright.pipelines.session_chain import drop_unchanged
from lakewright.pipelines.step_errors import explain_failure
from lakewright.pipelines.streams.news import kept_going_by, news_of
from lakewright.pipelines.take import load_warning, record_arrivals
from lakewright.pipelines.turns import Turns
from lakewright.pipelines.waiting import overdue_folders, waiting_folders
from lakewright.pipelines.workshop import Made, Workshop, leave_out
from lakewright.store import WHOLE_DATASET

__all__ = ["Runner"]

_MOST_WAITING = 8
"""Lines about folders of one source that are waited for."""
_T = TypeVar("_T")


@dataclass
class _Node:
    """One dataset on its way through a run."""

    dataset: Dataset
    waits_for: set[str]
    queue: list[SliceState] = field(default_factory=list)
    running: int = 0
    turn: int = 0
    failed: bool = False
    made: int = 0
    left_out: str = ""
    """Why its last slice was left out, where one was."""

    @property
    def in_order(self) -> bool:
        """Whether its slices must be made one at a time."""
        return self.dataset.in_order


class Runner:
    """Makes the slices of some datasets of a graph."""

    def __init__(
        self,
        shop: Workshop,
        decider: Decider,
        *,
        parallel: int = 2,
        listener: Listener = lambda event: None,
        stop: Flag | None = None,
        take_new: bool = True,
        jitter: random.Random | None = None,
        backoff_seconds: float = 1.0,
        computes: Computes | None = None,
    ) -> None:
        self._shop = shop
        self._decider = decider
        self._parallel = parallel
        self._tell = listener
        self._stop = stop or Flag()
        self._take_new = take_new
        self._random = jitter or random.Random()
        self._backoff = backoff_seconds
        self._computes = computes
        self._notes: list[Note] = []
        self._server_is_gone = Flag()
        self._asking = Lock()

    def run(self, names: Sequence[str], wish: Wish) -> RunSummary:
        """Runs the jobs; never raises for a failed step, the summary tells."""
        summary = RunSummary(self._shop.run.run_id, notes=self._notes)
        began = time.monotonic()
        chosen = set(names)
        nodes = {name: _Node(self._shop.graph[name], self._shop.graph.upstream(name) & chosen) for name in names}
        self._turns = Turns(self._shop, self._decider, wish, self._stop)
        with (
            ThreadPoolExecutor(self._parallel, thread_name_prefix="lakewright") as pool,
            ThreadPoolExecutor(len(nodes) + 1, thread_name_prefix="lakewright-turn") as self._waiting_room,
        ):
            self._work(nodes, wish, summary, pool)
        self._look_after([node.dataset for node in nodes.values() if node.made and not node.failed])
        summary.seconds = time.monotonic() - began
        if self._stop.is_set():
            summary.state = "interrupted"
        elif summary.failed:
            refused = all(getattr(error, "exit_code", 1) == 3 for error in summary.errors)
            summary.state = "refused" if refused and summary.errors else "failed"
        else:
            summary.state = "ok"
        return summary

    def _work(self, nodes: dict[str, _Node], wish: Wish, summary: RunSummary, pool: ThreadPoolExecutor) -> None:
        waiting = dict(nodes)
        futures: dict[Future[Any], tuple[_Node, SliceState | None]] = {}
        while waiting or futures:
            if self._stop.is_set():
                summary.skipped += sorted(waiting)
                waiting = {}
            unfinished = waiting.keys() | _busy(futures)
            for node in [n for n in waiting.values() if not n.waits_for & unfinished]:
                del waiting[node.dataset.name]
                if blocked := sorted(up for up in self._needed(node) if nodes[up].failed):
                    node.failed = True
                    summary.skipped.append(node.dataset.name)
                    self._tell(DatasetDone(node.dataset.name, "skipped", f"{blocked[0]} did not succeed"))
                elif self._is_without_server(node.dataset):
                    node.failed = True
                    summary.skipped.append(node.dataset.name)
                    self._tell(DatasetDone(node.dataset.name, "skipped", "the Spark Connect server does not answer"))
                else:
                    futures[pool.submit(self._decide, node, wish)] = (node, None)
            if not futures:
                continue
            done, _ = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                node, state = futures.pop(future)
                self._after(node, state, future, summary)
                self._feed(node, pool, futures, summary)

    def _needed(self, node: _Node) -> set[str]:
        """The datasets above whose failure stops a dataset: all, or those that are no parts of its slices."""
        if node.dataset.fan_in is None:
            return node.waits_for
        graph = self._shop.graph
        return node.waits_for - {graph.owners.get(name, name) for name in graph.driving(node.dataset)}

    def _feed(
        self,
        node: _Node,
        pool: ThreadPoolExecutor,
        futures: dict[Future[Any], tuple[_Node, SliceState | None]],
        summary: RunSummary,
    ) -> None:
        """Hand out the node's next slices, or close it when none is left."""
        if (node.failed and node.in_order) or self._stop.is_set():
            node.queue.clear()
        while node.queue and not (node.in_order and node.running):
            if node.queue[0].turn != node.turn:
                if node.running:
                    break
                if node.failed:  # what comes now would be made of what did not succeed
                    node.queue.clear()
                    break
                node.turn = node.queue[0].turn
            state = node.queue.pop(0)
            node.running += 1
            futures[self._hand_out(pool, node.dataset, state)] = (node, state)
        if not node.running and not node.queue:
            if node.failed:
                summary.failed.append(node.dataset.name)
                self._tell(DatasetDone(node.dataset.name, "failed"))
            elif node.made:
                self._tell(DatasetDone(node.dataset.name, "ok"))
            elif node.left_out:
                self._tell(DatasetDone(node.dataset.name, "skipped", node.left_out))
            else:
                summary.fresh.append(node.dataset.name)
                self._tell(DatasetDone(node.dataset.name, "fresh"))

    def _after(self, node: _Node, state: SliceState | None, future: Future[Any], summary: RunSummary) -> None:
        if state is None:
            try:
                node.queue = future.result()
            except Exception as error:
                node.failed = True
                self._record(summary, Outcome(node.dataset.name, "", "failed", "looking for work", 0.0, error=error))
                return
            if node.queue:
                self._tell(DatasetStarted(node.dataset.name, len(node.queue)))
            return
        node.running -= 1
        outcome: Outcome | None = future.result()
        if outcome is None:
            node.failed = True
            return
        node.failed |= outcome.error is not None
        node.made += outcome.error is None and outcome.state != "skipped"
        node.left_out = outcome.reason if outcome.state == "skipped" else node.left_out
        self._record(summary, outcome)
        if node.dataset.sessions is not None and outcome.error is None:
            self._leave_unchanged(node, outcome)

    def _leave_unchanged(self, node: _Node, outcome: Outcome) -> None:
        """Make no further slice of sessions where the one that was made leaves the same pending as before."""
        left = drop_unchanged(self._shop.store, node.dataset, node.queue)
        if fewer := len(node.queue) - len(left):
            stay = "1 later slice stays as it is" if fewer == 1 else f"{fewer:,} later slices stay as they are"
            self._note(f"{node.dataset.name}: {stay}: {outcome.slice_id} leaves the same pending as before.")
        node.queue = left

    def _look_after(self, written: Sequence[Dataset]) -> None:
        """Join the files of those datasets that ask for it after a run; what fails there is told, and no more."""
        for dataset in written:
            policy = dataset.maintenance
            if policy is None or policy.when != "after run" or self._stop.is_set() or self._shop.sample is not None:
                continue
            if self._server_is_gone.is_set():
                continue
            for one in compact_one(self._shop, dataset):
                if one.state == "done":
                    self._note(f"{one.dataset}: compacted, {one.files_before} files before, {one.files_after} after.")
                elif one.state != "nothing":
                    self._note(f"{one.dataset}: not compacted: {one.reason}", "warning")

    def _record(self, summary: RunSummary, outcome: Outcome) -> None:
        summary.outcomes.append(outcome)
        self._tell(SliceDone(outcome))

    def _note(self, message: str, severity: Literal["info", "warning"] = "info") -> None:
        note = Note(message, severity)
        self._notes.append(note)
        self._tell(note)

    def _decide(self, node: _Node, wish: Wish) -> list[SliceState]:
        dataset = node.dataset
        if dataset.is_stream:
            news = self._with_retries(dataset, lambda: news_of(self._shop, dataset)) if self._take_new else ""
            if news and (keeper := kept_going_by(self._shop, dataset.name)) is not None:
                self._note(f"{dataset.name}: {keeper} keeps the stream going; it is read as it stands.")
                return []
            return [SliceState(WHOLE, "due", news)] if news else []
        overdue: list[SliceState] = []
        if dataset.is_source and self._take_new:
            # Windows are recorded in one transaction, or not at all: a repeat takes nothing twice.
            self._with_retries(
                dataset, lambda: self._turns.patiently(dataset, lambda: record_arrivals(self._shop, dataset))
            )
            if (warning := load_warning(self._shop, dataset)) is not None:
                self._note(warning, "warning")
            overdue = self._waiting(dataset)
        for given in dataset.inputs:
            pin(self._shop.lake, self._shop.store, given.dataset)
        self._turns.look(dataset)
        plan = self._decider.decide(dataset.name, replace(wish, ended=frozenset(node.waits_for)))
        for problem in settle_markers(self._shop, plan):
            self._note(problem, "warning")
        return [*plan.to_make, *new_skips(self._shop.store, plan), *overdue]

    def _with_retries(self, dataset: Dataset, look: Callable[[], _T]) -> _T:
        """Look at what a source has, again where a database or a broker was away for a moment."""
        attempt = 0
        while True:
            attempt += 1
            try:
                if attempt > 1:
                    self._let_go(f"source:{dataset.name}", WHOLE_DATASET)
                return look()
            except Exception as error:
                if attempt > dataset.retries or not self._may_pass(dataset, error):
                    raise
                self._wait_after(error, attempt, dataset, f"{dataset.name}: ")

    def _waiting(self, dataset: Dataset) -> list[SliceState]:
        """Tell which folders of a source are not complete yet; those that took too long fail, after all others."""
        waiting = waiting_folders(self._shop, dataset)
        overdue = overdue_folders(self._shop, dataset, waiting)
        late = {state.slice.value for state in overdue}
        for folder in [one for one in waiting if one not in late][:_MOST_WAITING]:
            self._note(f"{dataset.name}: waiting: {folder} {waiting[folder]}")
        if (more := len(waiting) - len(late) - _MOST_WAITING) > 0:
            self._note(f"{dataset.name}: waiting for {more} more folders; `lakewright plan --json` lists them")
        return overdue

    def _hand_out(self, pool: ThreadPoolExecutor, dataset: Dataset, state: SliceState) -> Future[Outcome | None]:
        if not self._turns.are_taken(dataset):
            return pool.submit(self._make, dataset, state)
        # Whoever waits for the run of another date keeps no worker from the steps that need not.
        return self._waiting_room.submit(self._in_turn, pool, dataset, state)

    def _in_turn(self, pool: ThreadPoolExecutor, dataset: Dataset, state: SliceState) -> Outcome | None:
        began = time.monotonic()
        try:
            self._turns.wait_for(dataset, state)
        except LakewrightError as error:
            return self._failed(dataset, state, error, 0, time.monotonic() - began)
        return pool.submit(self._make, dataset, state).result()

    def _make(self, dataset: Dataset, state: SliceState) -> Outcome | None:
        """One slice, with its retries; an error comes back as an outcome. None where there is no Spark to try it."""
        if self._is_without_server(dataset):
            return None
        began = time.monotonic()
        self._tell(SliceStarted(dataset.name, state.slice.id, f"{state.status}: {state.reason}"))
        attempt = 0
        while True:
            attempt += 1
            try:
                if attempt > 1:
                    self._let_go(dataset.name, state.slice.id)
                made = self._attempt(dataset, state, attempt)
            except Exception as error:
                self._look_for_server(dataset, error)
                if attempt <= dataset.retries and self._may_pass(dataset, error):
                    self._wait_after(error, attempt, dataset, f"{dataset.name} {state.slice.id}: ")
                    continue
                return self._failed(dataset, state, error, attempt, time.monotonic() - began)
            seconds = time.monotonic() - began
            done: StepState = "recovered" if made.recovered else "ok"
            done = "skipped" if state.status in ("unmet", "skipped") else done
            receipt = made.public if made.receipts else None
            return Outcome(dataset.name, state.slice.id, done, state.reason, seconds, attempt, receipt)

    def _let_go(self, name: str, slice_id: str) -> None:
        """Leave what an attempt could not give back, since the store was away, to the next one, which fences it.

        Nobody else of this run holds any of it: a slice is made once at a time, and what needs the lease of its whole
        dataset is made in order, or in a turn of its own.
        """
        self._shop.store.leases.abandon(name, slice_id, owner_id=self._shop.owner_id)

    def _wait_after(self, error: Exception, attempt: int, dataset: Dataset, what: str) -> None:
        """Tell why it is tried again, and wait: longer each time."""
        pause = self._backoff * 2 ** (attempt - 1) * (0.5 + self._random.random())
        first = shorten(words_of_step(self._shop.graph, dataset, error).removeprefix(what), 160)
        self._note(f"{what}{first} Trying again in {pause:.1f} s.")
        self._stop.wait(pause)
        self._shop.lake.renew_session()  # a Connect server that was restarted does not know the old one

    def _may_pass(self, dataset: Dataset, error: Exception) -> bool:
        gone = self._has_lost_java(dataset) or self._is_without_server(dataset)
        return is_transient(error) and not self._stop.is_set() and not gone

    def _failed(self, dataset: Dataset, state: SliceState, error: Exception, attempt: int, seconds: float) -> Outcome:
        if self._stop.is_set():
            error = InterruptedRun(f"{dataset.name} {state.slice.id}: interrupted; `lakewright run` goes on from here.")
        else:
            lost_java = self._has_lost_java(dataset)
            error = explain_failure(error, self._shop.graph, dataset, state.slice.id, lost_java=lost_java)
        refused = getattr(error, "exit_code", 1) == 3
        word: StepState = "interrupted" if self._stop.is_set() else "refused" if refused else "failed"
        return Outcome(dataset.name, state.slice.id, word, state.reason, seconds, attempt, error=error)

    def _attempt(self, dataset: Dataset, state: SliceState, attempt: int) -> Made:
        if self._stop.is_set():
            raise InterruptedRun(f"{dataset.name} {state.slice.id}: interrupted before it began.")
        if state.status == "refused" and state.cure is not None:
            raise InputError(
                f"{dataset.place}: {dataset.name}: {state.reason}. Nothing was made of it.", hint=state.cure
            )
        if state.status == "refused":
            span = state.slice.interval
            raise LimitExceeded(
                f"{dataset.name}, slice {state.slice.id}: {state.reason}. Nothing was published. "
                f"A backfill takes the rows in: lakewright backfill --from {span.start:%Y-%m-%dT%H:%M} "
                f"--to {span.end:%Y-%m-%dT%H:%M} --select {dataset.name}",
                dataset=dataset.name,
                slice_id=state.slice.id,
            )
        if state.status == "overdue":
            what = "" if dataset.is_source else f", slice {state.slice.id}"
            raise InputError(
                f"{dataset.place}: {dataset.name}{what}: {state.reason}. Nothing was published for it.",
                hint=state.cure,
            )
        if state.status == "held":
            return capture_late_rows(self._shop, dataset, state)
        if state.status == "unmet":
            return run_fallback(self._shop, dataset, state, attempt=attempt)
        if state.status == "skipped":
            return leave_out(self._shop, dataset, state)
        tag = f"{self._shop.run.run_id}-{dataset.name}-{random.getrandbits(32):08x}"
        tags = (self._shop.run.run_id,) if dataset.timeout is None else (self._shop.run.run_id, tag)
        with self._at_work(dataset, state, tags) as (make, interrupt):
            watch = None if dataset.timeout is None else _Watch(interrupt, tag, dataset.timeout.total_seconds())
            try:
                made = self._turns.make(make, dataset, state, attempt)
            except Exception as error:
                if watch is not None and watch.fired.is_set():
                    raise _timed_out(dataset, state) from error
                raise
            finally:
                if watch is not None:
                    watch.end()
        if watch is not None and watch.fired.is_set():
            self._note(
                f"{dataset.name} {state.slice.id}: took longer than its timeout, but had already committed when "
                "it was to be stopped. It counts.",
                "warning",
            )
        return made

    @contextmanager
    def _at_work(
        self, dataset: Dataset, state: SliceState, tags: tuple[str, ...]
    ) -> Iterator[tuple[Make, Callable[[str], None]]]:
        """What makes a slice, and how its Spark work is interrupted by tag: in this process, or on its compute."""
        if self._computes is not None and self._computes.serve(dataset):
            self._computes.prepare(self._shop, dataset, state.slice.id)
            yield partial(self._computes.make, tags=tags), self._computes.interrupt
            return
        session = self._shop.lake.session()
        for tag in tags:
            add_tag(session, tag)
        try:
            yield maker_of(dataset), partial(interrupt_tag, session)
        finally:
            clear_tags(session)

    def _has_lost_java(self, dataset: Dataset) -> bool:
        """Whether the Spark of this process, if it is what makes a dataset, was killed."""
        return self._is_made_here(dataset) and self._shop.lake.has_lost_java()

    def _is_without_server(self, dataset: Dataset) -> bool:
        """Whether the Connect server of this process, if it is what makes a dataset, was found to be gone."""
        return self._server_is_gone.is_set() and self._is_made_here(dataset)

    def _look_for_server(self, dataset: Dataset, error: Exception) -> None:
        """Ask once whether a server that failed a slice is still there: each further slice would wait for a minute."""
        if not is_lost_server(error) or not self._is_made_here(dataset) or self._stop.is_set():
            return
        with self._asking:  # slices that were under way side by side fail at one moment
            if self._server_is_gone.is_set() or not self._shop.lake.has_lost_server():
                return
            self._server_is_gone.set()
        self._note("The Spark Connect server does not answer any more: the run ends here.", "warning")

    def _is_made_here(self, dataset: Dataset) -> bool:
        return self._computes is None or not self._computes.serve(dataset)


class _Watch(Thread):
    """Interrupts a step that takes too long; again and again, since it may be between two Spark jobs just then."""

    def __init__(self, interrupt: Callable[[str], None], tag: str, seconds: float) -> None:
        super().__init__(name="lakewright-timeout", daemon=True)
        self._interrupt, self._tag, self._seconds = interrupt, tag, seconds
        self._over = Flag()
        self.fired = Flag()
        self.start()

    def run(self) -> None:
        pause = self._seconds
        while not self._over.wait(pause):
            self.fired.set()
            # A Connect server that is gone says so only after a minute: it may have come back by then.
            with suppress(Exception):
                self._interrupt(self._tag)
            pause = 0.2

    def end(self) -> None:
        """The step has ended: nothing is interrupted any more.

        What still waits for a server is left behind: its mark is of this attempt alone.
        """
        self._over.set()
        self.join(1.0)


def _timed_out(dataset: Dataset, state: SliceState) -> StepFailed:
    limit = "" if dataset.timeout is None else f" of {dataset.timeout.total_seconds():.0f} s"
    return StepFailed(
        f"{dataset.place}: {dataset.name}, slice {state.slice.id} ran longer than its timeout{limit} and was stopped. "
        "Nothing was published."
    )


def _busy(futures: dict[Future[Any], tuple[_Node, SliceState | None]]) -> set[str]:
    return {node.dataset.name for node, _ in futures.values()}
