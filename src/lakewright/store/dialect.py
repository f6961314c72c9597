"""What is special about one database: how it is opened, how writing begins, whose clock counts, what its errors mean.

Everything else in the store is portable SQL. This module decides which database it is; what only PostgreSQL needs
is in ``postgres``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError

from lakewright.errors import LakewrightError, StoreBusyError, StoreError, TargetError
from lakewright.store import postgres

__all__ = ["explained", "lease_time", "make_engine", "reading", "shown_url", "switch_to_wal", "writing"]

_WRITES = "lakewright_writes"
_OLDEST_SQLITE = (3, 35, 0)  # the first with RETURNING
_PAUSES = (0.1, 0.4, 1.0)
"""Seconds between attempts to connect to a server: nothing was sent yet, so each attempt is safe."""


def make_engine(url: URL, *, busy_timeout: timedelta) -> Engine:
    """An engine that waits for its turn to write, on PostgreSQL or on an SQLite file that keeps foreign keys."""
    if url.drivername in postgres.NAMES:
        return postgres.make_engine(url, busy_timeout=busy_timeout)
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"This Python brings SQLite {sqlite3.sqlite_version}; the store needs 3.35 or newer.",
            hint="Use a newer Python build.",
        )
    # Without a limit: threads that wait for their turn to write each hold a connection meanwhile.
    engine = create_engine(url, max_overflow=-1, connect_args={"timeout": busy_timeout.total_seconds()})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own way of beginning would start with a read and upgrade it later, where two processes
    # deadlock; from here on every BEGIN is ours.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _on_begin(conn: Connection) -> None:
    writes = conn.get_execution_options().get(_WRITES, False)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def switch_to_wal(engine: Engine, *, busy_timeout: timedelta) -> None:
    """Let readers go on while one process writes; the file remembers it.

    SQLite does not wait for its turn here, unlike anywhere else, so processes that create one store at the
    same time would fail: we wait ourselves.
    """
    deadline = time.monotonic() + busy_timeout.total_seconds()
    with explained(engine):
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            while True:
                try:
                    cursor.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
        finally:
            connection.close()


def lease_time(conn: Connection, now: datetime) -> datetime:
    """The clock by which leases end: the server's where machines share it, else this machine's, which is ``now``."""
    return postgres.server_time(conn) if _on_server(conn.engine) else now


def shown_url(url: URL) -> str:
    """A store as people are told of it: a path, or an address without password and options."""
    if url.get_backend_name() == "sqlite":
        return url.database or "?"
    return URL.create("postgresql", url.username, None, url.host, url.port, url.database).render_as_string()


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent look at the store."""
    with explained(engine), _connected(engine) as conn:
        if _on_server(engine):
            conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield conn


@contextlib.contextmanager
def writing(engine: Engine, conn: Connection | None = None) -> Iterator[Connection]:
    """A transaction that may write: the one given, or one of its own, committed at the end."""
    if conn is not None:
        yield conn
        return
    with explained(engine), _connected(engine) as own:
        own.execution_options(**{_WRITES: True})
        transaction = own.begin()
        try:
            fate = postgres.begin_writing(own) if _on_server(engine) else None
            yield own
        except BaseException:
            transaction.rollback()
            raise
        try:
            transaction.commit()
        except DBAPIError as error:
            if fate is None or not error.connection_invalidated:
                raise
            _find_out(engine, fate, error)


def _find_out(engine: Engine, fate: str, lost: DBAPIError) -> None:
    """The answer to a commit was lost: go on where it was committed, raise where it was not or nobody can tell."""
    try:
        with _connected(engine) as conn, conn.begin():
            committed = postgres.outcome(conn, fate)
    except DBAPIError as error:
        raise TargetError(
            f"The connection to the store {shown_url(engine.url)} was lost while it committed, and it does not answer "
            "since: whether that was written is not known.",
            hint="Run again once it answers: a step that was committed is found in the log of its table.",
        ) from error
    if not committed:
        raise lost


@contextlib.contextmanager
def _connected(engine: Engine) -> Iterator[Connection]:
    for pause in _PAUSES if _on_server(engine) else ():
        try:
            conn = engine.connect()
            break
        except DBAPIError as error:
            if not isinstance(_meaning(error, engine), TargetError):
                raise
            time.sleep(pause)
    else:
        conn = engine.connect()
    with conn:
        yield conn


def _on_server(engine: Engine) -> bool:
    return engine.dialect.name == "postgresql"


@contextlib.contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Turn the database's refusals into errors that say what to do."""
    try:
        yield
    except IntegrityError:
        raise  # never an outside cause: a mistake of ours, and its trace is wanted
    except (DBAPIError, sqlite3.Error) as error:
        raise _meaning(error, engine) from error


def _meaning(error: DBAPIError | sqlite3.Error, engine: Engine) -> LakewrightError:
    if isinstance(error, DBAPIError) and _on_server(engine):
        return postgres.explain(error, engine.url, shown_url(engine.url))
    cause = error.orig if isinstance(error, DBAPIError) else error
    return _explain(str(cause), engine.url.database or "?")


def _explain(cause: str, path: str) -> StoreError:
    if "not a database" in cause or "malformed" in cause:
        return StoreError(
            f"The file {path} is not a usable SQLite database ({cause}).",
            hint="Move it away and run `lakewright store rebuild`: the logs of the lake hold what it knew.",
        )
    if "locked" in cause or "busy" in cause:
        return StoreBusyError(
            f"The store {path} is in use: another process has held it for too long. Nothing was written.",
            hint="Wait for it to end, or end it (`lakewright status` names the workers), then try again.",
        )
    if "readonly" in cause or "unable to open" in cause:
        return StoreError(
            f"The store {path} cannot be opened for writing ({cause}).",
            hint="Give this user write permission on the file and its folder, or put the store elsewhere.",
        )
    if "full" in cause or "disk I/O" in cause:
        return StoreBusyError(
            f"The disk under the store {path} refused to write ({cause}).",
            hint="Free some space, then try again.",
        )
    return StoreError(f"The store {path} refused: {cause}.", hint="If it stays so, run `lakewright store rebuild`.")
