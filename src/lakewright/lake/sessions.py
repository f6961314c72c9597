"""Child sessions: one per thread, so that the identity of a commit, which is a session setting, belongs to one writer.

Guarantee:
    Two threads never share a child. A child speaks as its parent does: it carries over the settings that matter
    (classic), or everything that was set on the parent (Connect). Over Connect the server keeps no child of ours: one
    whose thread has ended is released when the next one is made, and all of them when the lake is closed. The parent
    is asked once; a child that is made after the server was restarted needs no parent that is still alive.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from lakewright.lake.delta_errors import is_lost_server
from lakewright.lake.interrupts import has_lost_java, interrupt_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ChildSessions"]

_INHERITED = (
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.ansi.enabled",
    "spark.sql.adaptive.enabled",
    "spark.databricks.delta.snapshotPartitions",
)
# Who writes is said anew for every commit, and never inherited.
_IDENTITY = ("spark.databricks.delta.commitInfo.", "spark.databricks.delta.write.txn")
_SESSION_ID = "session_id"
# A look whether the server is there at all: 3 s, where work waits for a minute.
_A_LOOK: dict[str, Any] = {"max_retries": 4, "initial_backoff": 200, "backoff_multiplier": 2.0, "max_backoff": 2000}


@dataclass(frozen=True, slots=True)
class _Remote:
    """How children of one Connect session are made, without asking it again."""

    kind: Any
    channel: Any
    policies: list[Any]
    settings: Mapping[str, str]

    def child(self) -> SparkSession:
        made = self._bare(self.policies)
        for name, value in self.settings.items():
            made.conf.set(name, value)
        child: SparkSession = made
        return child

    def answers(self) -> bool:
        """Whether the server says anything at all to a session that it has not seen."""
        from pyspark.sql.connect.client.retries import DefaultPolicy

        asking = self._bare([DefaultPolicy(**_A_LOOK)])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "retries exceeded": that is the answer
                return bool(asking.version)
        except Exception as error:
            return not is_lost_server(error)
        finally:
            _release(asking)

    def _bare(self, policies: list[Any]) -> Any:
        made: Any = self.kind.builder.channelBuilder(copy.copy(self.channel)).create()
        made.client.set_retry_policies(policies)
        return made


class ChildSessions:
    """The child sessions of one lake."""

    def __init__(self, parent: Callable[[], SparkSession]) -> None:
        self._parent = parent
        self._local = threading.local()
        self._lock = threading.Lock()
        self._children: list[tuple[threading.Thread, SparkSession]] = []
        self._apart: dict[str, SparkSession] = {}
        self._remote: _Remote | None = None
        _EVERYBODY.add(self)

    def mine(self) -> SparkSession:
        """This thread's own child, made when it is first asked for, or when the server has forgotten the last one."""
        child: SparkSession | None = getattr(self._local, "session", None)
        if child is None or _is_lost(child):
            child = self._make()
            self._local.session = child
            self._keep(child)
        return child

    def apart(self, name: str) -> SparkSession:
        """A child for a query that goes on beside this thread; the last one of the same name has ended, and goes.

        Over Connect its micro-batches run in the very session that started it, with that one's settings: nobody else
        may write there. In classic mode a query has a copy of its own anyway.
        """
        if not _is_remote(self.mine()):
            return self.mine()
        child = self._make()
        with self._lock:
            last = self._apart.pop(name, None)
            self._apart[name] = child
        if last is not None:
            _release(last)
        return child

    @contextmanager
    def lend(self, session: SparkSession) -> Iterator[None]:
        """Let this thread speak in a session that somebody else made: that of a micro-batch."""
        mine = getattr(self._local, "session", None)
        self._local.session = session
        try:
            yield
        finally:
            self._local.session = mine

    def renew(self) -> None:
        """Let this thread's next piece of work begin in a new child: the last one may have been lost unnoticed."""
        self._local.session = None

    def interrupt(self, tag: str) -> None:
        """Stop everything with this mark, whichever child of this process runs it.

        Over Connect each session knows only its own; in classic mode any child reaches all that this Spark runs.
        """
        for child in [child for sessions in list(_EVERYBODY) for child in sessions._all()]:
            try:
                interrupt_tag(child, tag)
            except Exception:  # a server that does not answer runs nothing that could be stopped
                continue

    def has_lost_java(self) -> bool:
        """Whether the Java process behind the sessions has ended."""
        return any(has_lost_java(child) for child in self._all())

    def has_lost_server(self) -> bool:
        """Whether the Connect server behind the sessions does not answer now: asked anew, for a few seconds."""
        return self._remote is not None and not self._remote.answers()

    def _all(self) -> list[SparkSession]:
        with self._lock:
            return [child for _, child in self._children]

    def close(self) -> None:
        """Let go of all children."""
        with self._lock:
            children = [*(child for _, child in self._children), *self._apart.values()]
            self._children, self._apart = [], {}
        self._local = threading.local()
        for child in children:
            _release(child)

    def _make(self) -> SparkSession:
        if self._remote is not None:
            return self._remote.child()
        parent = self._parent()
        new_session = getattr(parent, "newSession", None)  # Connect has none, and says so by an AttributeError
        if new_session is None:
            self._remote = _remote(parent)
            return self._remote.child()
        child: SparkSession = new_session()
        for name in _INHERITED:
            value = parent.conf.get(name, None)
            if value is not None:
                child.conf.set(name, value)
        return child

    def _keep(self, child: SparkSession) -> None:
        me = threading.current_thread()
        with self._lock:
            over = [(t, c) for t, c in self._children if not t.is_alive() or t is me]
            self._children = [pair for pair in self._children if pair not in over] + [(me, child)]
        for _, old in over:
            _release(old)


# A predecessor may belong to another project that is open in this process.
_EVERYBODY: WeakSet[ChildSessions] = WeakSet()


def _remote(parent: Any) -> _Remote:
    # The channel, not the address: a session that was given to us may have been made with a channel of its own.
    channel = copy.copy(parent.client._builder)
    channel._params = {name: value for name, value in channel._params.items() if name != _SESSION_ID}
    policies = parent.client.get_retry_policies()
    bare = _Remote(type(parent), channel, policies, {}).child()
    try:
        fresh = bare.conf.getAll
        gained = {name: value for name, value in parent.conf.getAll.items() if fresh.get(name) != value}
        settings = {
            name: value
            for name, value in gained.items()
            if not name.startswith(_IDENTITY) and _takes(bare, name, value)
        }
    finally:
        _release(bare)
    return _Remote(type(parent), channel, policies, settings)


def _takes(session: Any, name: str, value: str) -> bool:
    """Whether a setting can be set in a session. Spark's own answer knows its own settings only, not a project's."""
    try:
        session.conf.set(name, value)
    except Exception as error:
        if is_lost_server(error):
            raise
        return False
    return True


def _is_lost(child: Any) -> bool:
    """Whether a Connect session was closed, by us or because the server no longer knows it."""
    return _is_remote(child) and bool(child.is_stopped)


def _release(child: Any) -> None:
    """A classic child is a part of its parent and needs nothing."""
    if _is_remote(child) and not child.is_stopped:
        child.client.set_retry_policies([])  # a server that is gone has forgotten it anyway
        child.stop()


def _is_remote(session: Any) -> bool:
    return getattr(session, "newSession", None) is None
