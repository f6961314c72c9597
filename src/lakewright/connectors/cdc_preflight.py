"""Preflight of change data capture: everything that a database lacks for it, by name, with the statement that mends it.

Guarantee:
    All that is missing is told at once, not the first of it only. The facts are judged without the database, so that
    each rule can be tested alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lakewright.connectors.cdc_facts import DatabaseFacts, ServerFacts, TableFacts
from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.cdc_slot import SlotState
from lakewright.connectors.postgres_connection import TableName, quoted
from lakewright.errors import LakewrightError, did_you_mean

__all__ = ["Problem", "problems_of"]


class Problem(NamedTuple):
    """Something that is missing: the setting, role, table or service by its name, what is wrong, and the cure."""

    name: str
    what: str
    cure: str
    error: LakewrightError | None = None
    """Where somebody could not be asked: why."""

    def __str__(self) -> str:
        return f"{self.name}: {self.what} {self.cure}"


def problems_of(
    facts: DatabaseFacts, names: CaptureNames, *, snapshot: bool, partitions: int, ours: bool
) -> list[Problem]:
    """What is missing. ``ours`` says that this capture's own connector may be the reader of the slot."""
    tables = [str(t) if isinstance(t, str) else t.name for t in facts.tables]
    return [
        *_of_server(facts.server, facts.slot),
        *_of_slot(facts.slot, facts.server.database, ours),
        *_of_publication(facts, names.publication, tables),
        *[problem for table in facts.tables for problem in _of_table(table, facts, snapshot, partitions)],
    ]


def _of_server(server: ServerFacts, slot: SlotState | None) -> list[Problem]:
    found: list[Problem] = []
    if server.wal_level != "logical":
        found.append(
            Problem(
                "wal_level",
                f"is '{server.wal_level}', and logical replication needs 'logical'.",
                "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL.",
            )
        )
    if slot is None and server.used_slots >= server.max_slots:
        found.append(
            Problem(
                "max_replication_slots",
                f"all {server.max_slots} replication slots are in use.",
                f"ALTER SYSTEM SET max_replication_slots = {server.used_slots + 2}; then restart PostgreSQL; or drop "
                "one that nobody needs: SELECT pg_drop_replication_slot('...');",
            )
        )
    reads = slot is not None and slot.active_pid is not None
    if not reads and server.used_senders >= server.max_senders:
        found.append(
            Problem(
                "max_wal_senders",
                f"all {server.max_senders} WAL senders are in use.",
                f"ALTER SYSTEM SET max_wal_senders = {server.used_senders + 2}; then restart PostgreSQL.",
            )
        )
    if not server.may_replicate:
        found.append(
            Problem(
                "REPLICATION",
                f"the role {server.user} may not replicate.",
                f"ALTER ROLE {quoted(server.user)} REPLICATION;",
            )
        )
    return found


def _of_slot(slot: SlotState | None, database: str, ours: bool) -> list[Problem]:
    if slot is None:
        return []
    drop = f"SELECT pg_drop_replication_slot('{slot.name}');"
    title = f"replication slot {slot.name}"
    if slot.plugin != "pgoutput" or slot.database != database:
        what = f"belongs to somebody else ({slot.plugin or 'physical'} of {slot.database or 'the whole server'})."
        return [Problem(title, what, "Give this capture a slot of its own: slot='...'.")]
    if slot.lost:
        return [
            Problem(
                title,
                "is lost (wal_status = 'lost'): the log that it stood on is removed, and changes since then with it.",
                f"Decommission the capture (or {drop}), register it again with snapshot=True, and raise "
                "max_slot_wal_keep_size.",
            )
        ]
    if slot.active_pid is not None and not ours:
        return [
            Problem(
                title,
                f"is taken: process {slot.active_pid} of the database ({slot.reader or 'unnamed'}) reads it, and it "
                "is not this capture's connector.",
                f"End it (SELECT pg_terminate_backend({slot.active_pid});), or give this capture a slot of its own: "
                "slot='...'.",
            )
        ]
    return []


def _of_publication(facts: DatabaseFacts, name: str, tables: Sequence[str]) -> list[Problem]:
    publication, title = facts.publication, f"publication {name}"
    listed = ", ".join(TableName.parse(table).sql for table in tables)
    if publication is not None:
        found: list[Problem] = []
        if missing := [op for op in ("insert", "update", "delete") if op not in publication.operations]:
            cure = f"ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate');"
            found.append(Problem(title, f"leaves out every {' and '.join(missing)}.", cure))
        absent = [table for table in tables if table not in publication.tables]
        if absent and not publication.owned:
            added = ", ".join(TableName.parse(table).sql for table in absent)
            cure = f"Let its owner run: ALTER PUBLICATION {quoted(name)} ADD TABLE {added};"
            found.append(Problem(title, f"does not hold {', '.join(absent)}, and is somebody else's.", cure))
        return found
    foreign = [one.name for one in facts.tables if isinstance(one, TableFacts) and not one.owned]
    cure = f"Let the owner, or a superuser, run: CREATE PUBLICATION {quoted(name)} FOR TABLE {listed};"
    if foreign:
        what = f"is not there, and {facts.server.user}, who does not own {', '.join(foreign)}, cannot make it."
        return [Problem(title, what, cure)]
    if not facts.server.may_create:
        grant = f"GRANT CREATE ON DATABASE {quoted(facts.server.database)} TO {quoted(facts.server.user)};"
        what = f"is not there, and {facts.server.user} may not make one in {facts.server.database}."
        return [Problem(title, what, f"{grant} {cure}")]
    return []


def _of_table(table: TableFacts | str, facts: DatabaseFacts, snapshot: bool, partitions: int) -> list[Problem]:
    if isinstance(table, str):
        near = did_you_mean(table, facts.known)
        return [Problem(f"table {table}", "is not there.", near or "Correct its name, or make it first.")]
    title, sql, user = f"table {table.name}", TableName.parse(table.name).sql, quoted(facts.server.user)
    if table.kind == "p":
        return [Problem(title, "is partitioned, which is not supported.", "Name its partitions instead.")]
    if table.kind != "r":
        return [Problem(title, "is no table: only tables have a change log.", "Name the tables behind it.")]
    found: list[Problem] = []
    if not table.logged:
        cure = f"ALTER TABLE {sql} SET LOGGED;"
        found.append(Problem(title, "is unlogged or temporary: its changes are not in the log.", cure))
    full = f"ALTER TABLE {sql} REPLICA IDENTITY FULL;"
    if table.identity == "n" or (table.identity == "d" and not table.has_key):
        what = (
            "has REPLICA IDENTITY NOTHING" if table.identity == "n" else "has neither primary key nor REPLICA IDENTITY"
        )
        cure = (
            f"ALTER TABLE {sql} REPLICA IDENTITY DEFAULT;"
            if table.has_key
            else f"ALTER TABLE {sql} ADD PRIMARY KEY (...);"
        )
        refused = "once published, each UPDATE and DELETE on it would be refused."
        found.append(Problem(title, f"{what}: {refused}", f"{cure} or {full}"))
    elif not table.has_key and partitions > 1:
        what = "has no primary key: changes of one row would come in any order from several partitions."
        found.append(Problem(title, what, f"ALTER TABLE {sql} ADD PRIMARY KEY (...); or partitions=1."))
    if snapshot and not table.may_enter_schema:
        schema = quoted(table.name.partition(".")[0])
        found.append(Problem(title, "its schema is closed to the role.", f"GRANT USAGE ON SCHEMA {schema} TO {user};"))
    if snapshot and not table.may_select:
        what = "cannot be read, which its snapshot needs."
        found.append(Problem(title, what, f"GRANT SELECT ON {sql} TO {user};"))
    return found
