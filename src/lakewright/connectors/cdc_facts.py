"""What change data capture needs to know of a database, asked of its catalogue. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.cdc_slot import SlotState, slot_state
from lakewright.connectors.postgres_connection import Session, ask

__all__ = ["DatabaseFacts", "PublicationFacts", "ServerFacts", "TableFacts", "database_facts"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server allows, and to whom."""

    database: str
    user: str
    wal_level: str
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    may_replicate: bool
    may_create: bool
    """Whether the user may make a publication in this database."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table that is to be captured, as the database sees it."""

    name: str
    kind: str
    """``r`` a table, ``p`` a partitioned one, ``v`` a view, and so on."""
    logged: bool
    identity: str
    """``d`` by its primary key, ``i`` by an index, ``f`` the whole row, ``n`` nothing."""
    has_key: bool
    may_select: bool
    may_enter_schema: bool
    owned: bool


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """A publication that is there already."""

    owned: bool
    tables: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """All that the preflight asks of a database."""

    server: ServerFacts
    slot: SlotState | None
    publication: PublicationFacts | None
    tables: tuple[TableFacts | str, ...]
    """A table that is not there is its name alone."""
    known: tuple[str, ...] = ()
    """The tables of the database."""

    def ready_publication(self, tables: Sequence[str]) -> bool:
        """Whether somebody else has made the publication, with all that is needed: it is used as it is."""
        found = self.publication
        return found is not None and not found.owned and set(tables) <= set(found.tables)


def database_facts(session: Session, names: CaptureNames, tables: Sequence[str]) -> DatabaseFacts:
    """Ask the catalogue; changes nothing."""
    found = tuple(_table(session, table) or table for table in tables)
    missing = any(isinstance(table, str) for table in found)
    return DatabaseFacts(
        server=_server(session),
        slot=slot_state(session, names.slot),
        publication=_publication(session, names.publication),
        tables=found,
        known=_known_tables(session) if missing else (),
    )


def _server(session: Session) -> ServerFacts:
    row = ask(
        session,
        "SELECT current_database(), current_user, current_setting('wal_level'), "
        "current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots), "
        "current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication), "
        # A role of a managed service replicates as a member of one that the provider made.
        "r.rolreplication OR r.rolsuper OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' "
        "AND pg_has_role(m.oid, 'MEMBER')), "
        "has_database_privilege(current_database(), 'CREATE') "
        "FROM pg_roles r WHERE r.rolname = current_user",
    ).fetchone()
    assert row is not None
    return ServerFacts(*row)


def _table(session: Session, name: str) -> TableFacts | None:
    schema, _, table = name.partition(".")
    row = ask(
        session,
        "SELECT c.relkind::text, c.relpersistence = 'p', c.relreplident::text, "
        "EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), "
        "has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), pg_has_role(c.relowner, 'USAGE') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s "
        "AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        [schema, table],
    ).fetchone()
    return None if row is None else TableFacts(name, *row)


def _publication(session: Session, name: str) -> PublicationFacts | None:
    row = ask(
        session,
        "SELECT pg_has_role(pubowner, 'USAGE'), pubinsert, pubupdate, pubdelete FROM pg_publication WHERE pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        return None
    operations = tuple(op for op, has in zip(("insert", "update", "delete"), row[1:], strict=True) if has)
    rows = ask(session, "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", [name]).fetchall()
    return PublicationFacts(bool(row[0]), tuple(f"{schema}.{table}" for schema, table in rows), operations)


def _known_tables(session: Session) -> tuple[str, ...]:
    rows = ask(
        session,
        "SELECT schemaname || '.' || tablename FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
    ).fetchall()
    return tuple(str(row[0]) for row in rows)
