"""What is known about a service between two commands: a folder, a state file in it, and one lock for all services.

Guarantee:
    The state file is replaced as a whole, so that a reader sees the old or the new one. Its process is written
    directly after the start: a command that dies while it waits leaves a service that the next one finds.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.runtime.jars import Progress
from lakewright.runtime.services.processes import Process

__all__ = ["Place", "State", "only_one"]

_KEPT_LOG_BYTES = 10_000_000
_HELD_SECONDS = 5.0
_FRAME = re.compile(r"\s+at |\s*\.\.\. \d+ more")


@dataclass(frozen=True, slots=True)
class State:
    """One service as it was left: its version, its ports, and the process that serves them."""

    version: str | None = None
    """The version that made the data, or ran on it last."""
    ports: Mapping[str, int] = field(default_factory=dict)
    fixed: bool = False
    """Whether the user has chosen the port."""
    cluster_id: str | None = None
    process: Process | None = None
    """None: it was stopped. One that is gone: it has died."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one service, ``.lakewright/services/NAME``, and what lies in it."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def file(self) -> Path:
        return self.folder / "state.json"

    @property
    def data(self) -> Path:
        """Where the data is: in the folder or, by a link in it, in the system's temporary folder."""
        return (self.folder / "data").resolve()

    def make(self) -> None:
        """The folder is passable for everybody: PostgreSQL may have to run as somebody else below it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.stat().st_uid == os.geteuid():
            self.folder.chmod(0o711)

    @contextmanager
    def hold(self) -> Iterator[int]:
        """The right to work on the data, as a file handle that the server inherits and holds as long as it lives.

        Numbers of processes mean nothing in another container that shares the folder; this lock is seen there too.
        """
        with (self.folder / "in-use").open("w") as handle:
            deadline = time.monotonic() + _HELD_SECONDS  # the children of a killed server need a moment
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ConfigurationError(
                            f"{self.data} is in use by a process that cannot be seen from here, as in another "
                            "container. Nothing was started, stopped or deleted.",
                            hint=f"Stop it there: lakewright services down {self.name}",
                        ) from None
                    time.sleep(0.1)
            yield handle.fileno()

    def load(self) -> State | None:
        """What is known, or None before the first start."""
        try:
            values: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
            process = values.pop("process")
            return State(**values, process=None if process is None else Process(**process))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.file} is damaged: {error}. Nothing was started or stopped.",
                hint="Remove that file; the data beside it stays, and the next start finds it.",
            ) from error

    def save(self, state: State) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        part.replace(self.file)

    def keep_log_small(self) -> None:
        """Before a start: a long log becomes the previous one."""
        if self.log.exists() and self.log.stat().st_size > _KEPT_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self, since: int, lines: int = 12) -> str:
        """The last lines that the log has gained beyond ``since`` bytes, without the frames of Java's stack traces."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as record:
            record.seek(max(since, self.log_size() - 16_384))
            text = record.read().decode(errors="replace")
        told = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
        return "\n".join(told[-lines:])


@contextmanager
def only_one(folder: Path, say: Progress) -> Iterator[None]:
    """Wait until no other process starts or stops services of this folder."""
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is starting or stopping these services; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file lets the next one in
