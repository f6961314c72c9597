"""VACUUM in PostgreSQL, a variant of Compactor: make the room of rows that were replaced or deleted usable again.

Guarantee:
    Readers and writers go on meanwhile; no row changes. It runs outside any transaction, as PostgreSQL demands.
Consequences:
    - The file on disk does not become smaller: its free room is used by the next rows. ``VACUUM FULL`` gives it back to
      the system, and locks the table against everybody while it rewrites it; it is not done here.
    - Rows that an older transaction may still see stay until that one has ended.
    - PostgreSQL does the same by itself in the background; after a large replacement this is sooner.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.connectors.postgres_connection import Session, TableName, ask, connecting, no_such_table
from lakewright.model.connections import Connection

__all__ = ["VacuumedTable", "vacuum_postgres"]


@dataclass(frozen=True, slots=True)
class VacuumedTable:
    """A table as PostgreSQL's own statistics tell of it, before and after."""

    table: str
    dead_rows_before: int
    dead_rows_after: int
    bytes_before: int
    """On disk, with indexes."""
    bytes_after: int


def vacuum_postgres(
    connection: Connection, table: str, *, analyze: bool = True, dry_run: bool = False
) -> VacuumedTable:
    """Runs VACUUM (and with ``analyze`` gathers the planner's statistics) on one table; a dry run only looks."""
    name = TableName.parse(table)
    what = f"VACUUM of {connection.name}: {table}"
    with connecting(connection, what=what, effect="No row was changed.") as session:
        before = _look(session, name)
        if before is None:
            raise no_such_table(session, name, what=what)
        if not dry_run:
            ask(session, f"VACUUM {'(ANALYZE) ' if analyze else ''}{name.sql}")
        after = _look(session, name) or before
    return VacuumedTable(str(name), before[0], after[0], before[1], after[1])


def _look(session: Session, table: TableName) -> tuple[int, int] | None:
    """Dead rows and bytes of a table and its partitions; None where there is no such table."""
    row = ask(
        session,
        "WITH parts AS (SELECT to_regclass(%s)::oid AS relid UNION "
        "SELECT relid::oid FROM pg_partition_tree(to_regclass(%s))) "
        "SELECT bool_and(relid IS NOT NULL), coalesce(sum(pg_stat_get_dead_tuples(relid)), 0)::bigint, "
        "coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM parts",
        (table.sql, table.sql),
    ).fetchone()
    return None if row is None or not row[0] else (int(row[1]), int(row[2]))
