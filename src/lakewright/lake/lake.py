"""Lake: a root, the names of its datasets, and the sessions that read and write it.

A name resolves here and nowhere else. Reads are pinned to a version, since a frame without one would be read
anew at each action, perhaps in another state. A table that is borrowed from another lake can be read and never
opened for writing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlparse

from lakewright.errors import ConfigurationError, TargetError, UnknownNameError
from lakewright.lake.delta_errors import explain_gone_version
from lakewright.lake.locks import TableLocks
from lakewright.lake.log import DeltaLog
from lakewright.lake.sessions import ChildSessions
from lakewright.lake.tables import AttemptTable
from lakewright.model.columns import ALIVE, DELETED_COLUMN, business_columns
from lakewright.model.connections import Connections
from lakewright.model.deletion_vectors import lost_by_log, lost_vectors
from lakewright.model.identity import Identity
from lakewright.model.outside import Destination, Log
from lakewright.model.paths import local_folder
from lakewright.model.slices import EVENT_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SYSTEM_FOLDER", "Lake"]

SYSTEM_FOLDER = "_lakewright"


class Lake:
    """All tables under one root, those adopted from elsewhere, and those borrowed from another lake."""

    def __init__(self, root: str, spark: Callable[[], SparkSession]) -> None:
        local = local_folder(root)
        self.root = root if local is None else str(local.absolute())
        self.local = None if local is None else Path(self.root)
        self._layers: dict[str, str] = {}
        self._adopted = self._read_adopted()
        self._borrowed: dict[str, str] = {}
        self._outside: dict[str, Destination] = {}
        self._placed: dict[str, str] = {}
        self._connections = Connections()
        self._logs: dict[str, DeltaLog] = {}
        self._sessions = ChildSessions(spark)
        self.locks = TableLocks(None if self.local is None else self.local / SYSTEM_FOLDER / "locks")

    def __getstate__(self) -> dict[str, Any]:
        """Names alone travel: to a micro-batch on a server, which brings a session of its own (see ``lend``)."""
        kept = ("root", "local", "_layers", "_adopted", "_borrowed", "_placed")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], _no_session)  # type: ignore[misc]
        self.__dict__.update(state)

    def declare(self, layers: Mapping[str, str]) -> None:
        """Tell the lake which datasets there are, and in which layer each lies."""
        self._layers.update(layers)

    def place(self, paths: Mapping[str, str]) -> None:
        """Tell the lake which datasets lie elsewhere than in its own folder."""
        self._placed = dict(paths)

    def send_outside(self, destinations: Mapping[str, Destination], connections: Connections) -> None:
        """Tell the lake which datasets have no table here: they go to a database or a topic."""
        self._outside = dict(destinations)
        self._connections = connections

    @property
    def outside(self) -> frozenset[str]:
        """The names of the datasets that go elsewhere."""
        return frozenset(self._outside)

    def borrow(self, paths: Mapping[str, str]) -> None:
        """Read these names where they lie in another lake, and all others here; what was borrowed before goes back."""
        self._borrowed = dict(paths)

    @property
    def borrowed(self) -> frozenset[str]:
        """The names that are read from another lake."""
        return frozenset(self._borrowed)

    def is_declared(self, name: str) -> bool:
        """Whether the project makes this dataset here: not one that is only adopted, or borrowed."""
        return name in self._layers and name not in self._borrowed

    def resolve(self, name: str) -> str:
        """The path of a dataset's table: where it is read, and, unless it is borrowed, written."""
        return self._borrowed.get(name) or self._own_path(name)

    def knows(self, name: str) -> bool:
        """Whether a name was declared or adopted here."""
        return name in self._layers or name in self._adopted

    def has(self, name: str) -> bool:
        """Whether a dataset has a table here, whatever is borrowed."""
        return self._log(self._own_path(name)).exists()

    def _own_path(self, name: str) -> str:
        if name in self._adopted:
            return self._adopted[name]
        if name in self._placed:
            return self._placed[name]
        if name.startswith(f"{SYSTEM_FOLDER}/"):
            return f"{self.root}/{name}"
        if name not in self._layers:
            raise UnknownNameError("dataset", name, [*self._layers, *self._adopted])
        return f"{self.root}/{self._layers[name]}/{name}"

    def names(self) -> list[str]:
        return sorted({*self._layers, *self._adopted, *self._borrowed})

    def log(self, name: str) -> Log:
        """What was committed to a dataset: its Delta log, or the ledger of where it goes."""
        if name in self._outside:
            return self._outside[name].log(name, connections=self._connections)
        return self.delta_log(name)

    def delta_log(self, name: str) -> DeltaLog:
        """The log of a table of the lake."""
        return self._log(self.resolve(name))

    def _log(self, path: str) -> DeltaLog:
        log = self._logs.get(path)
        if log is None:
            # Only a table on an object store needs a session to read its log.
            log = self._logs[path] = DeltaLog(path, None if local_folder(path) is not None else self.session)
        return log

    def session(self) -> SparkSession:
        """This thread's own child session: identities are session settings, so no two threads share one."""
        return self._sessions.mine()

    def session_apart(self, name: str) -> SparkSession:
        """A session for the query of a stream, which goes on beside this thread and is no other writer's."""
        return self._sessions.apart(name)

    def lend(self, session: SparkSession) -> AbstractContextManager[None]:
        """Let this thread read and write in a session that somebody else made: that of a micro-batch."""
        return self._sessions.lend(session)

    def properties(self, name: str) -> dict[str, str]:
        """What a dataset's table was declared with, as far as the log's files tell."""
        return self._log(self.resolve(name)).properties() or {}

    def checkpoint(self, name: str, generation: int) -> str:
        """Where a stream keeps how far it is."""
        return f"{self.root}/{SYSTEM_FOLDER}/checkpoints/{name}/{generation}"

    def renew_session(self) -> None:
        """Let this thread go on in a new child session: before a retry, since the last one may be lost."""
        self._sessions.renew()

    def interrupt(self, tag: str) -> None:
        """Stop the Spark work of all child sessions that carries this mark."""
        self._sessions.interrupt(tag)

    def has_lost_java(self) -> bool:
        """Whether this process's own Spark was killed; a new process has to go on."""
        return self._sessions.has_lost_java()

    def has_lost_server(self) -> bool:
        """Whether the Connect server does not answer now, not even after a few seconds."""
        return self._sessions.has_lost_server()

    def close(self) -> None:
        """Let go of the child sessions, so that a Connect server does not keep them."""
        self._sessions.close()

    def read(self, name: str, *, version: int | None = None, system_columns: bool = False) -> DataFrame:
        """A dataset's rows at one version (the newest one now, where none is given)."""
        if name in self._outside:
            raise ConfigurationError(
                f"The dataset '{name}' is not in the lake: it goes to {self._outside[name].shown}.",
                hint="Read it there.",
            )
        return self.read_path(self.resolve(name), name=name, version=version, system_columns=system_columns)

    def read_path(self, path: str, *, name: str, version: int | None = None, system_columns: bool = False) -> DataFrame:
        version = self._log(path).latest() if version is None else version
        if version is None:
            raise ConfigurationError(
                f"The dataset '{name}' has no table yet.",
                hint="`lakewright run` makes it; `lakewright plan` shows how.",
            )
        frame = self._at(path, name, version)
        if system_columns:
            return frame
        columns = frame.columns
        if EVENT_COLUMN in columns:
            # Rows without a usable event time are dead letters: in bronze they stay, to readers they do not count.
            frame = frame.where(f"{EVENT_COLUMN} IS NOT NULL")
        if DELETED_COLUMN in columns:
            frame = frame.where(ALIVE)
        return frame.select(*[f"`{column}`" for column in business_columns(columns)])

    def lost_files(self, name: str, version: int) -> list[str]:
        """The files of a version that are no longer there. Runs no job; an object store is not looked at."""
        path = self.resolve(name)
        if (folder := local_folder(path)) is None:
            return []
        with _told_if_gone(name, version):  # over Connect nothing is asked of a version before
            files = self._at(path, name, version).inputFiles()
        lost = [file for file in files if not os.path.exists(unquote(urlparse(file).path))]
        return [*lost, *lost_vectors(folder, version)]

    def lost_by_log(self, name: str, version: int) -> list[str]:
        """The same as the log tells it, without Spark; of a log that was cleaned, what is left of it."""
        folder = local_folder(self.resolve(name))
        if folder is None or name in self._outside or not self.delta_log(name).exists():
            return []
        return lost_by_log(folder, version)

    def _at(self, path: str, name: str, version: int) -> DataFrame:
        with _told_if_gone(name, version):
            return self.session().read.format("delta").option("versionAsOf", version).load(path)

    def open(
        self,
        name: str,
        identity: Identity,
        *,
        properties: Mapping[str, str] | None = None,
        still_mine: Callable[[], bool] = lambda: True,
    ) -> AttemptTable:
        """A table to write to, under one attempt's identity; of a dataset that goes elsewhere, what is there."""
        if name in self._outside:
            opened = self._outside[name].open(
                name, identity, connections=self._connections, spark=self.session(), still_mine=still_mine
            )
            # Whoever needs more than both have (RESTORE, columns to add) asks `outside` before.
            return cast(AttemptTable, opened)
        if name in self._borrowed:
            raise TargetError(
                f"{name} is read from {self._borrowed[name]}, which belongs to another target. Nothing was written."
            )
        path = self.resolve(name)
        return AttemptTable(
            path,
            spark=self.session(),
            log=self._log(path),
            identity=identity,
            locks=self.locks,
            properties=properties,
            still_mine=still_mine,
        )

    def fence(self, names: Sequence[str], identity: Identity, parts: Sequence[str]) -> None:
        """Commit a higher number under an attempt's application ids, so that its late writes are skipped."""
        for name, part in zip(names, parts, strict=True):
            table = self.open(name, identity.as_part(part, "fence"))
            if name in self._outside or table.exists():
                table.touch()

    def adopt(self, name: str, path: str) -> None:
        """Let a name stand for an existing table elsewhere."""
        self._adopted[name] = path
        file = self._adopted_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".tmp")
        draft.write_text(json.dumps(self._adopted, indent=2, sort_keys=True), encoding="utf-8")
        os.replace(draft, file)

    def _adopted_file(self) -> Path:
        if self.local is None:
            raise ConfigurationError("`adopt` works on a local lake; on an object store declare the table as a source.")
        return self.local / SYSTEM_FOLDER / "adopted.json"

    def _read_adopted(self) -> dict[str, str]:
        if self.local is None or not self._adopted_file().exists():
            return {}
        found: dict[str, str] = json.loads(self._adopted_file().read_text(encoding="utf-8"))
        return found


@contextmanager
def _told_if_gone(name: str, version: int) -> Iterator[None]:
    """A kind error where the log can no longer give a version."""
    try:
        yield
    except TargetError:
        raise
    except Exception as error:
        if (told := explain_gone_version(error, dataset=name, version=version)) is None:
            raise
        raise told from error


def _no_session() -> SparkSession:
    raise TargetError("This lake was sent to a server and has no session of its own.")
