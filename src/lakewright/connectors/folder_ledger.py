"""The ledger of a folder that files are copied to: one manifest per recorded attempt, beside the files.

Guarantee:
    A manifest is made whole and never changed; its position in the ledger is its name. Moving files and recording them
    happens under a lock of the operating system, which a process that dies gives back: nobody moves files after a
    higher number was recorded for the same slice.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewright.errors import LeaseHeldError, TargetError
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit
from lakewright.model.slices import ANY_CELL
from lakewright.model.times import utc_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FolderAttempt", "FolderLog", "recorded"]

_HOME = "_lakewright"
"""Spark and most others do not see what begins so."""
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class FolderLog:
    """The log of one dataset: fulfils ``model.outside.Log``."""

    folder: Path
    dataset: str

    @property
    def path(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> Path:
        """Where the manifests lie."""
        return self.folder / _HOME / self.dataset

    def exists(self) -> bool:
        return self.latest() is not None

    def latest(self) -> int | None:
        return self.bounds()[1]

    def bounds(self) -> tuple[int | None, int | None]:
        found = self.positions()
        return (found[0], found[-1]) if found else (None, None)

    def commit(self, version: int) -> Commit:
        try:
            found: dict[str, Any] = json.loads(self.file(version).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TargetError(f"The ledger of {self.folder} has no position {version}.") from None
        data, rows = bool(found["data"]), found.get("rows")
        return Commit(
            version=version,
            committed_at=datetime.fromisoformat(found["at"]),
            operation="COPY",
            metadata=found["identity"],
            metrics={} if rows is None else {"numOutputRows": rows},
            touched={ANY_CELL: Change(rows, None)} if data else {},
            bytes_added=found["bytes"],
            data_change=data,
        )

    def commits(self, after: int | None = None, upto: int | None = None) -> Iterator[Commit]:
        for version in self.positions():
            if version > (after or 0) and (upto is None or version <= upto):
                yield self.commit(version)

    def positions(self) -> list[int]:
        if not self.place.is_dir():
            return []
        return sorted(int(name[:-5]) for name in os.listdir(self.place) if name.endswith(".json"))

    def file(self, position: int) -> Path:
        return self.place / f"{position:010d}.json"


class FolderAttempt:
    """What destinations whose ledger lies in a folder have in common, opened for one attempt."""

    def __init__(self, folder: Path, identity: Identity, spark: SparkSession, still_mine: Callable[[], bool]) -> None:
        self._folder, self._identity, self._spark, self._still_mine = folder, identity, spark, still_mine

    @property
    def spark(self) -> SparkSession:
        return self._spark

    def exists(self) -> bool:
        """Always: a fence is needed also where nothing was written yet."""
        return True

    def touch(self) -> Commit | None:
        """Record the number and nothing else, so that an older attempt records nothing any more."""
        self._refuse_lost_lease()
        return recorded(self._folder, self._identity)

    def _refuse_lost_lease(self) -> None:
        if not self._still_mine():
            name = self._identity.dataset
            raise LeaseHeldError(
                f"{name}, {self._identity.slice_id}: another run has taken over. Nothing was recorded.",
                name=name,
                owner="another run",
            )


def recorded(
    folder: Path,
    identity: Identity,
    move: Callable[[], None] | None = None,
    *,
    size: int = 0,
    rows: int | None = None,
) -> Commit | None:
    """Move files and record who did; None, and nothing is moved, where a number as high was recorded for the slice."""
    log = FolderLog(folder, identity.dataset)
    log.place.mkdir(parents=True, exist_ok=True)
    with _locked(log.place / "lock", folder):
        known = [Identity.from_json(commit.metadata) for commit in log.commits()]
        if any(one is not None and one.app_id == identity.app_id and one.number >= identity.number for one in known):
            return None
        if move is not None:
            move()
        position = (log.latest() or 0) + 1
        told = {
            "identity": identity.to_json(),
            "at": utc_now().isoformat(),
            "bytes": size,
            "data": move is not None,
            **({} if rows is None else {"rows": rows}),
        }
        draft = log.place / f"draft-{os.getpid()}-{identity.number}"
        with draft.open("w", encoding="utf-8") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, log.file(position))
    return log.commit(position)


@contextmanager
def _locked(file: Path, folder: Path) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TargetError(
                        f"Another process has been copying to {folder} for more than {_PATIENCE_SECONDS:.0f} s. "
                        "Nothing was recorded.",
                        hint="Wait for it, or stop that process and run again.",
                    ) from None
                time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)
