"""A view that shows a table without the columns of Lakewright's own; readers get it instead of the table.

Guarantee:
    A role that reads the view sees every column but those (``_lw_…``, or the ones that are named), and cannot read the
    table. A column that the table gains is in the view from the same transaction on.
Consequences:
    - The roles have to be there, and need the right to use the schema.
    - The view reads with the rights of its owner, who is the one that writes the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakewright.connectors.postgres_connection import Session, TableName, ask, connecting, quoted
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.connectors.postgres_views import grants_on
from lakewright.errors import ConfigurationError
from lakewright.model.columns import SYSTEM_PREFIX
from lakewright.model.connections import Connection

__all__ = ["hide_columns", "show_through_view"]


def hide_columns(
    connection: Connection, *, table: str, view: str, readers: Sequence[str] = (), columns: Sequence[str] = ()
) -> None:
    """Make, or bring up to date, a view of a table without some columns, and let ``readers`` read it alone.

    ``columns`` are hidden beside Lakewright's own.
    """
    with connecting(connection, what=view, effect="Nothing was changed.") as session, session.transaction():
        target = TableName.parse(table)
        if stored_columns(session, target) is None:
            raise ConfigurationError(f"{view}: there is no table {table} that it could show.")
        show_through_view(session, target, TableName.parse(view), readers=readers, hidden=columns)


def show_through_view(
    session: Session, table: TableName, view: TableName, *, readers: Sequence[str], hidden: Sequence[str] = ()
) -> None:
    """The same within the caller's transaction; nothing is done where the view and its readers are as they should be.

    What others were granted on the view stays, also where it has to be made anew.
    """
    stored = stored_columns(session, table) or {}
    shown = [name for name in stored if not name.startswith(SYSTEM_PREFIX) and name not in hidden]
    there = [
        str(row[0])
        for row in ask(
            session,
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum",
            (view.sql,),
        )
    ]
    # A view can be given further columns at its end only.
    columns = [*[name for name in there if name in shown], *[name for name in shown if name not in there]]
    if columns != there:
        grants: list[str] = []
        if there and columns[: len(there)] != there:
            grants = grants_on(session, view)
            ask(session, f"DROP VIEW {view.sql}")
        listed = ", ".join(quoted(name) for name in columns)
        for statement in (f"CREATE OR REPLACE VIEW {view.sql} AS SELECT {listed} FROM {table.sql}", *grants):
            ask(session, statement)
    _let_read(session, table, view, readers)


def _let_read(session: Session, table: TableName, view: TableName, readers: Sequence[str]) -> None:
    """Only what is not so yet: two slices that are made at once could not both change the rights of one table."""
    on_table, on_view = _granted(session, table), _granted(session, view)
    if any(role is None for role, _ in on_table):
        ask(session, f"REVOKE ALL ON {table.sql} FROM PUBLIC")
    for role in readers:
        if any(one == role for one, _ in on_table):
            ask(session, f"REVOKE ALL ON {table.sql} FROM {quoted(role)}")
        if (role, "SELECT") not in on_view:
            ask(session, f"GRANT SELECT ON {view.sql} TO {quoted(role)}")


def _granted(session: Session, relation: TableName) -> set[tuple[str | None, str]]:
    """Who was granted what by name, on all of a relation or on some of its columns; None is everybody."""
    who = "SELECT CASE a.grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(a.grantee)::text END, a.privilege_type"
    rows = ask(
        session,
        f"{who} FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%s) "
        f"UNION {who} || ' of a column' FROM pg_attribute c, aclexplode(c.attacl) a WHERE c.attrelid = to_regclass(%s)",
        (relation.sql, relation.sql),
    )
    return {(role, privilege) for role, privilege in rows}
