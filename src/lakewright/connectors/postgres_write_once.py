"""Write-once versions behind a view of PostgreSQL: a table per load, never written to again, and owned by a keeper.

Guarantee:
    A table of a load appears whole, judged and under a number that no load had before, in one transaction: a number of
    a table that is there, or that the ledger of a pipeline tells of, is not given again. A load that fails or is killed
    leaves none. With a keeper that transaction also hands the table over: afterwards the database
    itself denies the loader DELETE, UPDATE, TRUNCATE and DROP, and the load is refused where it would not.
Consequences:
    - The loader must be neither a superuser nor the owner of the schema, who may drop whatever is in it.
    - Rows that wait lie in ``_lw_new_...``; what a killed load left there is dropped by the next one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress

from lakewright.connectors.postgres_connection import ConnectionArguments, Session, TableName, ask, quoted, words
from lakewright.connectors.postgres_dropping import PATIENT, drop_unless_held
from lakewright.connectors.postgres_keeper import hand_over, refuse_no_keeper
from lakewright.connectors.postgres_shape import lock_key
from lakewright.connectors.postgres_version_load import Filling, judge_version
from lakewright.connectors.postgres_views import Version, show_version, shown_version, versions_of
from lakewright.errors import TargetError
from lakewright.failpoints import failpoint
from lakewright.model.loads import LoadLimits

__all__ = ["NEW", "drop_dead_loads", "load_once", "loaded_for", "lock_view", "point_at"]

NEW = "_lw_new_"


def load_once(
    session: Session,
    view: TableName,
    filling: Filling,
    *,
    arguments: ConnectionArguments,
    limits: LoadLimits,
    what: str,
    keeper: str | None = None,
    made_from: str | None = None,
    after: int = 0,
    guard: Callable[[], None] = lambda: None,
) -> Version:
    """A whole, judged, protected version under the next number; the view is left as it is.

    ``made_from`` is noted with it, for `loaded_for`; ``after`` is the highest number that is known to have been given,
    whether its table is still there or not; ``guard`` is asked within each transaction.
    """
    import psycopg

    new = view.beside(f"{NEW}{secrets.token_hex(8)}")
    with session.transaction():
        guard()
        if keeper is not None:
            refuse_no_keeper(session, view, keeper, what=what)
        shown_version(session, view)  # refuses a view or table that somebody else made
        drop_dead_loads(session, view)
        ask(session, f"SELECT pg_advisory_lock({lock_key(new.name)})")
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in filling.types().items())
        ask(session, f"CREATE TABLE {new.sql} ({columns})")
    try:
        with filling.sending(session, new, arguments) as move:
            failpoint("staged")
            with session.transaction():
                guard()
                lock_view(session, view)
                version = _finished(session, view, Version(after, new, move(), True), limits, what, made_from)
                if keeper is not None:
                    hand_over(session, version.table, keeper, what=what)
        failpoint("loaded")
        return version
    finally:
        with suppress(psycopg.Error):  # the next load drops it
            drop_unless_held(session, new, wait=PATIENT)
            ask(session, f"SELECT pg_advisory_unlock({lock_key(new.name)})")


def point_at(session: Session, view: TableName, number: int) -> Version:
    """Let the view show a version that is there, in the caller's transaction."""
    lock_view(session, view)
    shown_version(session, view)
    known = versions_of(session, view)
    if number not in known:
        listed = ", ".join(str(one) for one in sorted(known)) or "none"
        raise TargetError(
            f"{view}: there is no version {number} to point at. There are: {listed}. The view shows what it showed."
        )
    show_version(session, view, known[number])
    return known[number]


def loaded_for(session: Session, view: TableName, made_from: str) -> int | None:
    """The newest version that was made from exactly this."""
    found = []
    for number, one in versions_of(session, view).items():
        row = ask(session, "SELECT obj_description(to_regclass(%s), 'pg_class')", (one.table.sql,)).fetchone()
        if row is not None and json.loads(row[0])["lakewright"].get("from") == made_from:
            found.append(number)
    return max(found, default=None)


def lock_view(session: Session, view: TableName) -> None:
    """Wait until nobody else numbers or shows a version, until the transaction ends."""
    ask(session, f"SELECT pg_advisory_xact_lock({lock_key(f'view {view}')})")


def _finished(
    session: Session, view: TableName, loaded: Version, limits: LoadLimits, what: str, made_from: str | None
) -> Version:
    """Judge what was loaded and give it its name, and a number above its own and all that are there."""
    known, current = versions_of(session, view), shown_version(session, view)
    before = None if current is None else known[current].rows
    judge_version(session, loaded, limits, what=what, rows_before=before)
    number = max(loaded.number, *known, 0) + 1
    table = view.beside(f"{view.name}_{number}")
    taken = ask(session, "SELECT to_regclass(%s) IS NOT NULL", (table.sql,)).fetchone()
    if taken is not None and taken[0]:
        raise TargetError(
            f"The table {table} is there already, and was not loaded for {view}. Nothing was written.",
            hint="Rename it, or choose another name for the view.",
        )
    # Noted as shown from the start: its number is never given again, and its owner will not be we.
    noted = {"version": number, "rows": loaded.rows, "shown": True, "from": made_from}
    ask(session, f"COMMENT ON TABLE {loaded.table.sql} IS {words(json.dumps({'lakewright': noted}))}")
    ask(session, f"ALTER TABLE {loaded.table.sql} RENAME TO {quoted(table.name)}")
    return Version(number, table, loaded.rows, True)


def drop_dead_loads(session: Session, view: TableName) -> None:
    """Drop what loads left that were killed: the lock on its name is free. What a backup holds is left to the next."""
    schema = "current_schema()" if view.schema is None else "%s"
    found = ask(
        session,
        f"SELECT tablename FROM pg_tables WHERE schemaname = {schema} AND starts_with(tablename, '{NEW}') "
        "AND pg_has_role(tableowner, 'USAGE')",
        () if view.schema is None else (view.schema,),
    ).fetchall()
    for (name,) in found:
        free = ask(session, f"SELECT pg_try_advisory_xact_lock({lock_key(name)})").fetchone()
        if free is not None and free[0]:
            drop_unless_held(session, view.beside(name))
