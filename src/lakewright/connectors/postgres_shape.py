"""The shape of a table of PostgreSQL: made where it is not there, given the columns that it gained, else refused.

Somebody else's table is written to only where the project says ``adopt=True``: replacing a slice of it, or all of it,
would otherwise delete rows that nobody can bring back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted
from lakewright.connectors.postgres_ledger import Ledger
from lakewright.connectors.postgres_types import fits, postgres_type
from lakewright.errors import ConfigurationError, SchemaChangeError, TargetError
from lakewright.model.columns import CONTEXT_COLUMN, SYSTEM_PREFIX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lakewright.connectors.postgres_partitions import RangePartitions

__all__ = [
    "StoredColumn",
    "fit_table",
    "has_unique_key",
    "lock_key",
    "refuse_retyped",
    "refuse_strangers",
    "stored_columns",
]


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column as the database describes it."""

    name: str
    kind: str
    filled: bool
    """Whether the database gives it a value by itself: a default, an identity, a generated column."""
    is_enum: bool = False


def stored_columns(session: Session, table: TableName) -> dict[str, StoredColumn] | None:
    """The columns of a table by name, in order; None where there is no such table."""
    found = ask(session, "SELECT to_regclass(%s)::oid, current_schema() IS NULL", (table.sql,)).fetchone()
    if found is None or found[0] is None:
        return None
    kind = ask(session, "SELECT relkind FROM pg_class WHERE oid = %s", (found[0],)).fetchone()
    if kind is not None and kind[0] not in ("r", "p", b"r", b"p"):
        raise ConfigurationError(f"{table} is no table that rows can be written to (a view, or a foreign table).")
    rows = ask(
        session,
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atthasdef OR a.attidentity <> '', t.typtype = 'e' "
        "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (found[0],),
    )
    return {name: StoredColumn(name, kind, bool(filled), bool(enum)) for name, kind, filled, enum in rows}


def fit_table(
    session: Session,
    ledger: Ledger,
    schema: StructType,
    *,
    adopt: bool,
    keys: Sequence[str] = (),
    optional: Sequence[str] = (),
    partitions: RangePartitions | None = None,
) -> None:
    """Make the table, or bring it to the frame's columns, within the caller's transaction.

    ``optional`` names columns that the table need not have.
    """
    table, dataset = ledger.table, ledger.dataset
    types = {field.name: postgres_type(dataset, field) for field in schema.fields}
    if not _needs_change(session, ledger, types, optional):
        return
    # Slices are made side by side: whoever comes second finds it done.
    ask(session, f"SELECT pg_advisory_xact_lock({lock_key(f'shape of {table}')})")
    stored = stored_columns(session, table)
    if stored is None:
        _create(session, table, types, keys, partitions)
        ledger.own(session)
        return
    if not ledger.owns(session):
        if not adopt:
            raise TargetError(
                f"{dataset}: the table {table} is there already, and was not made for this dataset. Its rows would be "
                "replaced. Nothing was written.",
                hint="Choose another name, or say PostgresTable(..., adopt=True) to let this dataset write to it.",
            )
        ledger.own(session)
    _refuse_changes(dataset, types, stored)
    for name in [name for name in types if name not in stored and name not in optional]:
        ask(session, f"ALTER TABLE {table.sql} ADD COLUMN IF NOT EXISTS {quoted(name)} {types[name]}")
        if name.startswith(SYSTEM_PREFIX) and name != CONTEXT_COLUMN:
            _index(session, table, name)


def _needs_change(session: Session, ledger: Ledger, types: dict[str, str], optional: Sequence[str]) -> bool:
    stored = stored_columns(session, ledger.table)
    if stored is None or not ledger.owns(session):
        return True
    _refuse_changes(ledger.dataset, types, stored)
    return any(name not in stored and name not in optional for name in types)


def _create(
    session: Session,
    table: TableName,
    types: dict[str, str],
    keys: Sequence[str],
    partitions: RangePartitions | None,
) -> None:
    columns = [f"{quoted(name)} {kind}" for name, kind in types.items()]
    if keys:
        columns.append(f"PRIMARY KEY ({', '.join(quoted(key) for key in keys)})")
    by = "" if partitions is None else f" PARTITION BY RANGE ({quoted(partitions.by)})"
    ask(session, f"CREATE TABLE {table.sql} ({', '.join(columns)}){by}")
    for name in types:
        if name.startswith(SYSTEM_PREFIX) and name != CONTEXT_COLUMN:
            _index(session, table, name)


def _index(session: Session, table: TableName, column: str) -> None:
    ask(session, f"CREATE INDEX ON {table.sql} ({quoted(column)})")


def _refuse_changes(dataset: str, types: dict[str, str], stored: dict[str, StoredColumn]) -> None:
    lost = [one for one in stored.values() if one.name not in types and not one.filled]
    if lost := [one for one in lost if not one.name.startswith(SYSTEM_PREFIX)]:
        raise SchemaChangeError(
            f"{dataset}: the column {', '.join(one.name for one in lost)} is in the table and no longer in the rows. "
            "Nothing was written.",
            hint=f'Keep it as NULL (F.lit(None).cast("...") AS {lost[0].name}), or give the new shape a new name.',
        )
    refuse_retyped(dataset, types, stored)


def refuse_retyped(what: str, types: Mapping[str, str], stored: Mapping[str, StoredColumn]) -> None:
    """Refuse rows whose values the table could take only by rounding or cutting them, or not at all."""
    for name, kind in types.items():
        if name in stored and not fits(kind, stored[name].kind, is_enum=stored[name].is_enum):
            raise SchemaChangeError(
                f"{what}: the column {name} is {stored[name].kind} in the table and {kind} in the rows. "
                "Nothing was written.",
                hint="Cast it to what the table has, or give the new shape a new name.",
            )


def refuse_strangers(what: str, names: Sequence[str], stored: Sequence[str], table: TableName) -> None:
    """Refuse rows with a column that the table lacks."""
    if strangers := [name for name in names if name not in stored]:
        raise SchemaChangeError(
            f"{what}: the rows have a column {', '.join(strangers)} that the table {table} lacks. Nothing was written.",
            hint=f"Add it to the table first (ALTER TABLE {table} ADD COLUMN ...), or drop it from the rows.",
        )


def has_unique_key(session: Session, table: TableName, keys: Sequence[str]) -> bool:
    """Whether the database itself keeps rows apart by exactly these columns."""
    rows = ask(
        session,
        "SELECT array_agg(a.attname::text) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL "
        "GROUP BY i.indexrelid",
        (table.sql,),
    )
    return any(sorted(row[0]) == sorted(keys) for row in rows)


def lock_key(text: str) -> int:
    """The number of an advisory lock that stands for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
