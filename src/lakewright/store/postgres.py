"""PostgreSQL as the store: how it is reached, how writing begins, how the fate of a commit is found out.

Guarantee:
    Writers take turns, as on SQLite: each holds one advisory lock of the database until its transaction ends, so
    that no number is drawn twice and no lease granted twice, nor two processes make the tables. A commit whose
    answer was lost is asked for again, never sent again. No message holds a password.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from lakewright.errors import ConfigurationError, LakewrightError, StoreBusyError, StoreError, TargetError

__all__ = ["NAMES", "begin_writing", "explain", "make_engine", "outcome", "server_time"]

NAMES = ("postgresql", "postgres", "postgresql+psycopg")
"""How an address may begin."""
_WRITERS = 0x6C616B6577  # "lakew": the advisory lock that writers pass on
_CONNECT_SECONDS = 5
_SILENT_SECONDS = 60
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""An answer of a machine that has vanished is waited for a minute; Linux would wait for hours."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_engine(url: URL, *, busy_timeout: timedelta) -> Engine:
    """An engine whose connections are tried before use, and give up where they would wait for ever."""
    if "@" in (url.host or ""):
        raise ConfigurationError(
            "The address of the store cannot be read: it holds more than one '@'.",
            hint="In a password write @ as %40, / as %2F and : as %3A.",
        )
    if "password" in url.query:
        raise ConfigurationError(
            "The address of the store holds the password as an option, where it would be shown.",
            hint="Write it as postgresql://USER:PASSWORD@HOST/DATABASE, or leave it out and set PGPASSWORD.",
        )
    ours = {"connect_timeout": _CONNECT_SECONDS, "application_name": "lakewright", **_KEEPALIVES}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            max_overflow=-1,  # threads that wait for their turn to write each hold a connection meanwhile
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # with the lock, each statement sees all that was written before
            connect_args={key: value for key, value in ours.items() if key not in url.query},
        )
    except ImportError:
        raise ConfigurationError(
            "A store on PostgreSQL needs the package psycopg, which is not installed.",
            hint='pip install "lakewright[postgres]"',
        ) from None

    def prepare(connection: Any, _record: object) -> None:
        # A process that is stopped in the middle of a transaction must not hold up all the others for ever.
        milliseconds = max(1, round(busy_timeout.total_seconds() * 1000))
        connection.execute(f"SET lock_timeout = {milliseconds}")
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_SILENT_SECONDS}s'")
        connection.commit()

    event.listen(engine, "connect", prepare)
    return engine


def begin_writing(conn: Connection) -> str:
    """Wait for our turn to write; returns the transaction's id, by which `outcome` finds its fate."""
    # Two statements: the second must see what the writer before us has committed.
    conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
    return str(conn.exec_driver_sql("SELECT pg_current_xact_id()::text").scalar_one())


def outcome(conn: Connection, transaction: str) -> bool:
    """Whether a transaction of a connection that was lost has been committed."""
    begin_writing(conn)  # once we have the lock, that transaction has ended one way or the other
    asked = conn.exec_driver_sql("SELECT pg_xact_status(%(id)s::xid8)", {"id": transaction})
    return asked.scalar_one_or_none() == "committed"


def server_time(conn: Connection) -> datetime:
    """The server's clock: the same for all machines that share the store."""
    asked = conn.exec_driver_sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return _EPOCH + timedelta(microseconds=asked.scalar_one())


def explain(error: DBAPIError, url: URL, shown: str) -> LakewrightError:
    """What a refusal of the server means to people."""
    cause = " ".join(str(error.orig).split())
    if url.password:
        cause = cause.replace(str(url.password), "***")
    code = getattr(error.orig, "sqlstate", None) or ""
    if not code and f'database "{url.database}" does not exist' in cause:
        code = "3D000"  # what fails before there is a connection comes as text alone
    for known, (kind, message, hint) in _MEANINGS.items():
        if any(code == mark or (" " in mark and mark in cause) for mark in known):
            return kind(
                message.format(store=shown, cause=cause), hint=hint.format(name=url.database, user=url.username)
            )
    if error.connection_invalidated or code.startswith(("08", "40", "53", "57")):
        return TargetError(
            f"The connection to the store {shown} was lost ({cause}). Nothing of this transaction was written.",
            hint="Run again: what was committed before stays, what had begun is recovered.",
        )
    if not code:
        return TargetError(
            f"The store {shown} cannot be reached ({cause}).",
            hint="Start the server, or correct host and port of 'store' in the target (`lakewright doctor` looks); "
            "then run again: what was committed before stays, what had begun is recovered.",
        )
    return StoreError(
        f"The store {shown} refused: {cause}.", hint="If it stays so, ask whoever looks after the server."
    )


# By the server's code or, for what fails before there is a connection, by its words.
_MEANINGS: dict[tuple[str, ...], tuple[type[LakewrightError], str, str]] = {
    (
        "28P01",
        "28000",
        "password authentication failed",
        "no password supplied",
        "no pg_hba.conf entry",
        "FATAL: role",
    ): (
        ConfigurationError,
        "The store {store} did not let us in ({cause}).",
        "Check user and password: in 'store' of the target, LAKEWRIGHT_STORE, PGPASSWORD or ~/.pgpass.",
    ),
    ("3D000",): (
        ConfigurationError,
        "The store {store}: there is no such database.",
        "Make it (`createdb {name}`), or correct 'store' in the target.",
    ),
    ("42501",): (
        ConfigurationError,
        "The store {store}: the user may not do that ({cause}).",
        'Let the user own the database: ALTER DATABASE "{name}" OWNER TO "{user}".',
    ),
    ("55P03",): (
        StoreBusyError,
        "The store {store} is in use: another process has held it for too long. Nothing was written.",
        "Wait for it to end, or end it (`lakewright status` names the workers), then try again.",
    ),
    ("53300", "too many clients", "remaining connection slots"): (
        TargetError,
        "The store {store} takes no further connection ({cause}).",
        "Let fewer processes run at once, or raise max_connections of the server.",
    ),
    ("53100", "No space left on device", "File too large", "Disk quota exceeded"): (
        StoreBusyError,
        "The disk under the store {store} refused to write ({cause}).",
        "Free some space, then try again.",
    ),
}
