"""Dropping tables that nobody needs any more, without waiting for whoever still reads them.

DROP TABLE needs the table for itself. A backup (``pg_dump``) holds every table of the database until it ends, and the
COPY of a machine that lost its power holds its table until the server notices. No write may depend on such a table.
"""

from __future__ import annotations

from lakewright.connectors.postgres_connection import LOCK_SECONDS, Session, TableName, ask

__all__ = ["PATIENT", "drop_unless_held"]

_AT_ONCE = 10
PATIENT = 1500
"""Milliseconds after which PostgreSQL has sent an autovacuum away that is at work on the table (deadlock_timeout)."""


def drop_unless_held(session: Session, table: TableName, *, wait: int = _AT_ONCE) -> bool:
    """Drop a table, if it is there; False, without a change, where another session holds it for ``wait`` milliseconds.

    Within the caller's transaction it is a savepoint, so that a table that stays does not undo the rest.
    """
    import psycopg

    try:
        with session.transaction():
            ask(session, f"SET LOCAL lock_timeout = '{wait}ms'")
            ask(session, f"DROP TABLE IF EXISTS {table.sql}")
            # It would outlive the savepoint.
            ask(session, f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
    except psycopg.errors.LockNotAvailable:
        return False
    return True
