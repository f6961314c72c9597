"""Whether a COMMIT was made whose answer was lost: asked of PostgreSQL itself, by the number of the transaction.

Guarantee:
    Where the connection breaks under the COMMIT, a new session waits until that transaction has ended, and the server
    tells how. Only where it cannot be asked either is it said that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import ConnectionArguments, Session, ask, connect
from lakewright.connectors.postgres_errors import explain_database_error, state_of
from lakewright.errors import LakewrightError, TargetError

if TYPE_CHECKING:
    import psycopg

__all__ = ["settled_transaction"]

_REPEAT = "It is not known whether it was committed; to repeat it leaves the same."
_LOOK = "It is not known whether the rows were written: look before you send them again."
_LOCK = "hashtextextended('lakewright.commit ' || %s, 0)"


@contextmanager
def settled_transaction(
    session: Session, arguments: ConnectionArguments, *, what: str, in_doubt: str = _REPEAT, repeatable: bool = True
) -> Iterator[None]:
    """A transaction that fails only if it was not committed; the session may be closed afterwards.

    ``in_doubt`` is said where nobody can tell. What may not be repeated is then no failure that passes by itself.
    """
    import psycopg

    number = ""
    try:
        with session.transaction():
            yield
            number = _number(session)
    except psycopg.Error as error:
        if not number or state_of(error)[:2] not in ("08", "57"):
            raise
        session.close()  # so that the server need not wait for us, where it still does
        committed = _was_committed(arguments, number)
        if committed is None:
            unknown = _unknown(error, what, in_doubt, repeatable=repeatable)
            raise unknown from unknown.__cause__
        if not committed:
            raise


def _number(session: Session) -> str:
    """The transaction's number; whoever takes the lock of that number later has waited for its end."""
    row = ask(session, "SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    ask(session, f"SELECT pg_advisory_xact_lock({_LOCK})", (row[0],))
    return str(row[0])


def _was_committed(arguments: ConnectionArguments, number: str) -> bool | None:
    """None where nobody can tell: the server does not answer, or is another one that took over."""
    import psycopg

    try:
        with connect(arguments) as other, other.transaction():
            ask(other, f"SELECT pg_advisory_xact_lock({_LOCK})", (number,))
            row = ask(other, "SELECT pg_xact_status(%s::xid8)", (number,)).fetchone()
    except psycopg.Error:
        return None
    return {"committed": True, "aborted": False}.get(str(row[0])) if row is not None else None


def _unknown(error: psycopg.Error, what: str, in_doubt: str, *, repeatable: bool) -> LakewrightError:
    if repeatable:
        return explain_database_error(error, what=what, effect=in_doubt)
    # Without a cause it is no failure that passes by itself: whoever tried again would write every row twice.
    told = explain_database_error(error, what=what, effect=_LOOK).message
    return TargetError(told, hint="Look into the table once the database is back: no ledger tells.")
