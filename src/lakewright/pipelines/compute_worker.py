"""The process that makes the slices of one run on one compute: ``python -m lakewright.pipelines.compute_worker FD``.

Guarantee:
    It works under the run that started it: its owner, leases, attempts and marks. It lives no longer than that run's
    process: when their pipe closes, whatever it runs is interrupted, and it ends within seconds, with its Spark. What
    it had committed by then is found in the log by the next run; what it still tries to commit is fenced off.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NoReturn, TextIO, cast

from lakewright.errors import ConfigurationError, LakewrightError, StepFailed, TargetError, name_and_words
from lakewright.lake.delta_errors import is_lost_answer, is_lost_server, is_transient
from lakewright.lake.interrupts import add_tag, clear_tags
from lakewright.lake.lake import Lake
from lakewright.masking import mask
from lakewright.model.times import utc_now
from lakewright.pipelines.compute_messages import (
    Begin,
    Done,
    End,
    Failed,
    Interrupt,
    MakeSlice,
    Ready,
    Said,
    ToldError,
)
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.making import maker_of, places_of
from lakewright.pipelines.project import Project
from lakewright.pipelines.step_errors import explain_failure
from lakewright.pipelines.workshop import Made
from lakewright.runtime.connect import is_connect

__all__ = ["main"]

_GRACE = 3.0
"""So long a slice may take to end after the run's process has gone: a commit under way, and its receipt."""
_PATIENCE = 15.0
"""So long Spark may take to stop."""


def main(descriptor: int) -> None:
    """Work until the other end of the pipe says so, or closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever stops the run stops us: the run tells
        signal.signal(number, lambda *_: None)
    os.set_inheritable(descriptor, False)  # the pipe must close with us, whatever we have started
    link = _Link(Connection(descriptor))
    try:
        begin = link.receive()
    except (EOFError, OSError):
        return
    assert isinstance(begin, Begin)
    sys.path += [place for place in begin.path if place not in sys.path]
    sys.stdout = sys.stderr = cast(TextIO, _Voice(link))
    worker = _Worker(begin, link)
    try:
        worker.work()
    except (EOFError, OSError):
        worker.give_up()
    worker.leave(_PATIENCE)


class _Link:
    """The pipe: one reader, and any number of writers."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def receive(self) -> object:
        return self._pipe.recv()

    def send(self, message: object) -> None:
        """Tell the run; that it has gone is noticed where messages are received."""
        with self._lock, suppress(OSError):
            self._pipe.send(message)


class _Voice(io.TextIOBase):
    """What steps print: the run's process shows it, without the values of secrets."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def write(self, text: str, /) -> int:
        self._link.send(Said(mask(text)))
        return len(text)


class _Worker:
    """The project as the run sees it, with the compute's Spark."""

    def __init__(self, begin: Begin, link: _Link) -> None:
        self._begin, self._link = begin, link
        self._project = Project(begin.settings.folder, settings=begin.settings)
        self._stop = threading.Event()
        self._hands = ThreadPoolExecutor(begin.parallel, thread_name_prefix="lakewright")
        self._nurse = ThreadPoolExecutor(1, thread_name_prefix="lakewright-interrupt")
        self._interrupting: set[str] = set()
        self._busy = 0
        self._lock = threading.Lock()

    def work(self) -> None:
        """Do what comes; raises where the pipe closes."""
        self._hands.submit(self._prepare)
        while not isinstance(message := self._link.receive(), End):
            if isinstance(message, MakeSlice):
                with self._lock:
                    self._busy += 1
                self._hands.submit(self._answer, message)
            elif isinstance(message, Interrupt):
                if message.stop:
                    self._stop.set()
                self._interrupt(message.tag)

    def give_up(self) -> NoReturn:
        """The run's process has gone: interrupt what is under way, let it end if it can, and end."""
        self._stop.set()
        deadline = time.monotonic() + _GRACE
        while self._busy and time.monotonic() < deadline:
            self._interrupt(self._begin.run.run_id)
            time.sleep(0.1)
        if self._busy and os.getpgrp() == os.getpid():
            # A step may wait for something that never comes. Its Java process goes too: nothing of it may go on.
            os.killpg(0, signal.SIGKILL)
        self.leave(_GRACE)

    def leave(self, seconds: float) -> NoReturn:
        """Let Spark and the store go, and end; a Spark that does not stop by then ends when its pipe to us closes."""
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(seconds)
        os._exit(0)

    def _close(self) -> None:
        self._hands.shutdown()
        self._project.close()

    def _interrupt(self, tag: str) -> None:
        """Stop Spark work, without waiting: a Spark that does not answer must not keep messages from being read."""
        if tag in self._interrupting:
            return
        self._interrupting.add(tag)

        def interrupt() -> None:
            try:
                self._project.lake.interrupt(tag)
            finally:
                self._interrupting.discard(tag)

        self._nurse.submit(interrupt)

    def _prepare(self) -> None:
        """Load the project and start Spark, before the clock of the first slice begins to run."""
        try:
            self._load()
            self._project.lake.borrow(self._begin.borrowed)
            self._project.lake.session()
            self._link.send(Ready())
        except BaseException as error:
            words = f"The Spark of the compute did not start: {name_and_words(error)}"
            told = error if isinstance(error, LakewrightError) else TargetError(words)
            # A Connect server was waited for already: the slices of a run do not wait for it one by one.
            passes = is_transient(error) and not is_connect(self._begin.settings.target.master)
            self._link.send(Failed(0, ToldError.of(told), transient=passes))

    def _load(self) -> None:
        """Read the files of the project, before several threads ask for what they declare."""
        try:
            self._project.codes  # noqa: B018
        except LakewrightError as error:
            raise ConfigurationError(
                "The files of the project could be read when the run began, and no longer can. Nothing was written. "
                f"{error.message.rstrip('.')}.",
                hint="Mend what was changed meanwhile, and run again: what was made stays.",
            ) from error

    def _answer(self, order: MakeSlice) -> None:
        what = f"{order.dataset} {order.state.slice.id}"
        # Whatever happens, there is an answer: somebody waits for it.
        answer: Done | Failed = Failed(order.number, ToldError.of(StepFailed(f"{what} failed, and cannot tell why.")))
        try:
            answer = Done(order.number, self._make(order))
        except BaseException as error:  # a step that exits the process has failed, and no more
            answer = self._failed(order, error)
        finally:
            with self._lock:
                self._busy -= 1
            self._link.send(answer)

    def _make(self, order: MakeSlice) -> Made:
        project, begin = self._project, self._begin
        dataset = self._declared(order)
        shop = replace(
            project._shop(begin.run, begin.owner_id),
            stopping=self._stop.is_set,
            known=order.known,
            now=lambda: utc_now() + order.ahead,
        )
        session = shop.lake.session()
        for tag in order.tags:
            add_tag(session, tag)
        try:
            return maker_of(dataset)(shop, dataset, order.state, attempt=order.attempt)
        finally:
            clear_tags(session)

    def _declared(self, order: MakeSlice) -> Dataset:
        """The step as the run knows it; refused where the files say something else by now."""
        project = self._project
        dataset = project.graph.datasets.get(order.dataset)
        if dataset is None:
            what = f"{order.dataset} was taken out of the project"
        elif project.codes.get(order.dataset) != order.code:
            what = f"{dataset.place}: {dataset.name} was changed"
        elif places_of(project.lake, dataset) != order.places:
            what = f"{dataset.place}: where the tables of {dataset.name} lie was changed"
        else:
            return dataset
        raise ConfigurationError(
            f"{what} while the run was going on. Nothing was written.",
            hint="Run again: what was made stays, and the rest is made by what the files say now.",
        )

    def _failed(self, order: MakeSlice, error: BaseException) -> Failed:
        lake, dataset = self._project.lake, self._project.graph.datasets.get(order.dataset)
        if ended := _how_spark_ended(lake, error):
            lost = ToldError.of(TargetError(f"{order.dataset}: Spark has ended: {ended}."))
            return Failed(order.number, lost, transient=True, ended=ended)
        if dataset is None and isinstance(error, LakewrightError):  # it says so
            told = error
        elif dataset is None:
            told = TargetError(f"{order.dataset}: {name_and_words(error)}")
        else:
            told = explain_failure(error, self._project.graph, dataset, order.state.slice.id, lost_java=False)
        lake.renew_session()  # a Connect server that was restarted does not know the old one
        return Failed(order.number, ToldError.of(told), transient=is_transient(error))


def _how_spark_ended(lake: Lake, error: BaseException) -> str:
    """Why this process can make nothing more; nothing where it can."""
    if _has_lost_java(lake, error):
        return "its Java process was killed, or had not enough memory"
    return "its Spark Connect server does not answer" if is_lost_server(error) and lake.has_lost_server() else ""


def _has_lost_java(lake: Lake, error: BaseException) -> bool:
    """Whether our own Spark was killed: it closes its sockets a moment before it counts as ended."""
    for _ in range(10 if is_lost_answer(error) and not is_lost_server(error) else 0):
        if lake.has_lost_java():
            return True
        time.sleep(0.1)
    return lake.has_lost_java()


if __name__ == "__main__":
    main(int(sys.argv[1]))
