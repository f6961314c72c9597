"""A worker process as the run sees it: started, spoken to over a pipe, and ended.

Guarantee:
    Whoever waits for an answer gets one: what the worker says, or that it has ended. Nothing of a secret is on its
    command line: the settings, with references only, go through the pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

from lakewright.errors import LakewrightError
from lakewright.pipelines.compute_messages import Begin, Done, End, Failed, Interrupt, MakeSlice, Ready, Said
from lakewright.pipelines.workshop import Made

__all__ = ["ComputeProcess", "ProcessEnded"]

_LARGEST_LOG = 5_000_000
_OF_THIS_SPARK = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""By these the worker would find the Spark of the run's own process, or think that it has to."""


class ProcessEnded(Exception):
    """The worker is no longer there; says how it ended."""


class ComputeProcess:
    """One worker."""

    def __init__(self, begin: Begin, *, log: Path) -> None:
        self._log = log
        self._pipe, theirs = Pipe()
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[Made]] = {}
        self._guard = threading.Lock()
        self._number = 0
        self._retired = False
        self._ended = ""
        self.ready: Future[None] = Future()
        """Done when it can work; fails where its Spark does not start."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            if file.tell() > _LARGEST_LOG:
                file.truncate(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lakewright.pipelines.compute_worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=_environment(os.environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal reaches the run alone, which tells it
            )
        theirs.close()
        self._listener = threading.Thread(target=self._listen, name="lakewright-compute", daemon=True)
        self._listener.start()
        self._send(begin)

    def make(self, order: MakeSlice) -> Made:
        """Let it make a slice; raises what was raised there, or ``ProcessEnded``."""
        answer: Future[Made] = Future()
        with self._guard:
            if self._ended:
                raise ProcessEnded(self._ended)
            self._waiting[order.number] = answer
        self._send(order)
        return answer.result()

    def next_number(self) -> int:
        """The number of the next order."""
        with self._guard:
            self._number += 1
            return self._number

    def interrupt(self, tag: str, *, stop: bool) -> None:
        """Stop the Spark work with this mark; with ``stop`` the run as a whole is to end.

        Then a process whose Spark has not started yet, and may wait for a cluster for long, is killed: it has nothing
        under way.
        """
        if stop and not self.ready.done():
            self._process.kill()
        else:
            self._send(Interrupt(tag, stop))

    def retire(self) -> None:
        """Give it no more work; it ends when nobody waits for it."""
        with self._guard:
            self._retired = True
            idle = not self._waiting
        if idle:
            self._send(End())

    def end(self, patience_seconds: float) -> None:
        """Wait until it has ended; one that does not is killed.

        One that still starts or works is killed at once: a run that comes here has stopped waiting for it.
        """
        with self._guard:
            at_work = bool(self._waiting) or not self.ready.done()
        try:
            self._process.wait(0 if at_work else patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._pipe.close()

    def _send(self, message: object) -> None:
        with self._sending, suppress(OSError):  # that it has ended is noticed where it is listened to
            self._pipe.send(message)

    def _listen(self) -> None:
        try:
            while True:
                self._hear(self._pipe.recv())
        except (EOFError, OSError):
            pass
        except Exception:  # an answer that cannot be read: nobody would ever get it
            self._process.kill()
        finally:
            self._settle_all()

    def _hear(self, message: object) -> None:
        if isinstance(message, Said):
            with suppress(Exception):  # where nobody can be shown anything, the work goes on
                sys.stderr.write(message.text)
        elif isinstance(message, Ready):
            self.ready.set_result(None)
        elif isinstance(message, Failed) and message.number == 0:
            self.ready.set_exception(_raised(message))
        elif isinstance(message, Done | Failed):
            with self._guard:
                answer = self._waiting.pop(message.number)
                last = self._retired and not self._waiting
            if isinstance(message, Done):
                answer.set_result(message.made)
            else:
                answer.set_exception(_raised(message))
            if last:
                self._send(End())

    def _settle_all(self) -> None:
        """It has ended: tell everybody who waits."""
        how = self._how_it_ended()
        with self._guard:
            self._ended = how
            waiting, self._waiting = list(self._waiting.values()), {}
        if not self.ready.done():
            self.ready.set_exception(ProcessEnded(how))
        for answer in waiting:
            answer.set_exception(ProcessEnded(how))

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code or not self._retired:  # not by our word: the Java process that it may have left ends too
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit code {code}{f': {lines[-1][:300]}' if code and lines else ''}"


def _raised(message: Failed) -> LakewrightError | ProcessEnded:
    if message.ended:
        return ProcessEnded(message.ended)
    error = message.error.error()
    if message.transient:
        error.__cause__ = ConnectionError("it may pass")
    return error


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in environ.items() if name not in _OF_THIS_SPARK}
    if passed.get("SPARK_LOCAL_IP") == "127.0.0.1":  # a local Spark sets it, and a cluster could not reach us there
        del passed["SPARK_LOCAL_IP"]
    return passed
