"""Time limits of a step's own Python code: a loop without an end is left, though Spark has no job to interrupt.

A step's Spark jobs are interrupted by their tag. Here an error is raised in the step's thread, and only while it is in
the project's own code: in the middle of a call to Spark it would leave the connection in a state that nobody knows.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

__all__ = ["TookTooLong", "stopped_after"]

_LOOK = 0.2
_NOT_ITS_OWN = ("contextlib", "delta", "grpc", "lakewright", "py4j", "pyspark")
"""Packages in whose code nobody is stopped: their calls come back by themselves, if need be with an error."""


class TookTooLong(Exception):
    """Raised in the thread of a step that goes on after its time."""


@contextmanager
def stopped_after(limit: timedelta | None) -> Iterator[None]:
    """Raise `TookTooLong` in this thread where the block takes longer; code in C is left when it returns."""
    if limit is None:
        yield
        return
    caller = sys._getframe(2)  # below this function and contextlib's own
    watch = _Watch(threading.get_ident(), caller, limit.total_seconds())
    watch.start()
    try:
        yield
    finally:
        watch.end()


class _Watch(threading.Thread):
    """Looks whether a thread has come back to the frame in which it was begun."""

    def __init__(self, thread: int, began: FrameType, seconds: float) -> None:
        super().__init__(name="lakewright-step-limit", daemon=True)
        self._watched, self._began, self._seconds = thread, began, seconds
        self._over, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        pause = self._seconds
        while not self._over.wait(pause):
            pause = _LOOK  # once more where the step's own code has caught it
            with self._lock:
                if not self._over.is_set() and self._is_in_own_code():
                    _raise_in(self._watched, TookTooLong)

    def end(self) -> None:
        """The step has come back: nothing is raised any more, and what was not delivered is taken back."""
        with self._lock:
            self._over.set()
            _raise_in(self._watched, None)

    def _is_in_own_code(self) -> bool:
        """Whether everything that the thread is in, since the step was called, belongs to the project."""
        frame = sys._current_frames().get(self._watched)
        if frame is self._began:
            return False
        while frame is not None and frame is not self._began:
            if frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_ITS_OWN:
                return False
            frame = frame.f_back
        return frame is not None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    argument = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
