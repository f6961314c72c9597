"""An OS lock per table on a local lake.

Delta guards commits on ``file:`` only inside one JVM: two processes could overwrite each other's commit file.
Threads of one process share the lock, since their JVM keeps them apart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock

from lakewright.errors import TargetError

__all__ = ["TableLocks"]


class TableLocks:
    """Locks under ``<root>/_lakewright/locks``; None as folder (an object store) makes them do nothing."""

    def __init__(self, folder: Path | None, *, patience_seconds: float = 120.0) -> None:
        self._folder = folder
        self._patience = patience_seconds
        self._guards: defaultdict[str, Lock] = defaultdict(Lock)
        self._creating: defaultdict[str, RLock] = defaultdict(RLock)
        self._held: dict[str, tuple[int, int]] = {}

    @contextmanager
    def hold(self, table: str) -> Iterator[None]:
        """Keep other processes from committing to the table; waits for a while, then says who holds it."""
        if self._folder is None:
            yield
            return
        self._enter(table)
        try:
            yield
        finally:
            self._leave(table)

    @contextmanager
    def creating(self, table: str) -> Iterator[None]:
        """One thread at a time that makes a table, or its columns: of two that do one would fail."""
        with self._creating[table]:
            yield

    def _enter(self, table: str) -> None:
        with self._guards[table]:
            if table in self._held:
                descriptor, count = self._held[table]
                self._held[table] = (descriptor, count + 1)
                return
            self._held[table] = (self._lock(table), 1)

    def _leave(self, table: str) -> None:
        with self._guards[table]:
            descriptor, count = self._held[table]
            if count > 1:
                self._held[table] = (descriptor, count - 1)
                return
            del self._held[table]
            os.close(descriptor)

    def _lock(self, table: str) -> int:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{hashlib.sha256(table.encode()).hexdigest()[:16]}.lock"
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise TargetError(
                    f"Another process ({holder or 'unknown'}) has been writing to {table} for more than "
                    f"{self._patience:.0f} s. Nothing was written.",
                    hint="Wait for it, or stop that process and run again.",
                ) from TimeoutError("timed out waiting for the lock of a table")  # which passes by itself
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
            return descriptor
