"""Tables per week, month or year behind a view of PostgreSQL: cleaned by TRUNCATE or DROP, never by DELETE.

What is known of the parts lies beside them, in ``_lw_parts``, and changes in the transaction that changes them.

Guarantee:
    The view is locked before any table behind it, and a table leaves the view before it is dropped: a reader of the
    view waits for a moment and never meets a table that is missing. A day is loaded into its part once; what is frozen
    is not written to, which the database refuses as well.
Consequences:
    - TRUNCATE and DROP are no part of a snapshot: a reader whose transaction is REPEATABLE READ or SERIALIZABLE, and
      began before a part was made again, finds that part empty. Let it read in READ COMMITTED, or begin after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted
from lakewright.connectors.postgres_shape import lock_key, refuse_retyped, stored_columns
from lakewright.errors import ConfigurationError, LimitExceeded, SchemaChangeError, TargetError
from lakewright.model.parts import Part

__all__ = [
    "KnownPart", "add_gained_columns", "add_part_column", "attach", "begin_parts", "clean_by_drop", "create_part",
    "known_parts", "lock_view", "note_loaded", "notes_of", "refuse_frozen", "refuse_no_metadata", "swap_in",
    "types_of_parts",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A table behind the view."""

    table: TableName
    start: date
    end: date
    frozen: bool
    loaded: tuple[date, ...]


def begin_parts(session: Session, view: TableName) -> None:
    """Wait until nobody else changes the parts of the view; until the transaction ends nobody else does."""
    ask(session, f"SELECT pg_advisory_xact_lock({lock_key(f'parts of {view}')})")
    ask(
        session,
        f"CREATE TABLE IF NOT EXISTS {notes_of(view)} (view text, part text, starts date NOT NULL, ends date NOT NULL, "
        "frozen boolean NOT NULL DEFAULT false, loaded date[] NOT NULL DEFAULT '{}', PRIMARY KEY (view, part))",
    )


def known_parts(session: Session, view: TableName) -> list[KnownPart]:
    """The parts in order of time."""
    asked = f"SELECT part, starts, ends, frozen, loaded FROM {notes_of(view)} WHERE view = %s ORDER BY starts, part"
    return [
        KnownPart(view.beside(name), starts, ends, frozen, tuple(loaded))
        for name, starts, ends, frozen, loaded in ask(session, asked, (view.name,))
    ]


def refuse_frozen(parts: Sequence[KnownPart], part: Part, *, what: str) -> None:
    for one in parts:
        if one.frozen and one.start < part.end and part.start < one.end:
            raise TargetError(
                f"{what}: {part} is frozen: it lies in the read-only table {one.table}. Nothing was written.",
                hint="A correction of it goes into a table of its own; or an administrator writes it by SQL.",
            )


def create_part(session: Session, view: TableName, part: Part, types: Mapping[str, str], *, limit: int) -> TableName:
    """An empty table for a part, noted and in the view."""
    parts = known_parts(session, view)
    table = view.beside(f"{view.name}_{part.suffix}")
    if len(parts) >= limit:
        raise LimitExceeded(
            f"{view}: one more part would make {len(parts) + 1:,} tables, and the limit is {limit:,}. Nothing was "
            "written. Freeze old parts (freeze_after and `lakewright maintain`, or freeze_parts), or raise max_parts.",
            dataset=str(view),
            slice_id=str(part.start),
            rows=len(parts),
        )
    if stored_columns(session, table) is not None:
        raise TargetError(
            f"The table {table} is there already, and is no part of {view}. Nothing was written.",
            hint="Rename it, or choose another name for the view.",
        )
    if parts:
        types = types_of_parts(session, parts[-1].table, types, what=str(view))
    lock_view(session, view)
    _create(session, table, types)
    asked = f"INSERT INTO {notes_of(view)} (view, part, starts, ends) VALUES (%s, %s, %s, %s)"
    ask(session, asked, (view.name, table.name, part.start, part.end))
    attach(session, view)
    return table


def clean_by_drop(session: Session, view: TableName, part: KnownPart, types: Mapping[str, str]) -> None:
    """Take a table out of the view, drop it, make it anew and empty, and take it in again."""
    lock_view(session, view)
    attach(session, view, without=part)
    ask(session, f"DROP TABLE {part.table.sql}")
    _create(session, part.table, types)
    attach(session, view)


def swap_in(session: Session, view: TableName, part: KnownPart, new: TableName) -> None:
    """Put a table that was filled aside in the place of a part's, which is dropped."""
    lock_view(session, view)
    attach(session, view, without=part)
    ask(session, f"DROP TABLE {part.table.sql}")
    ask(session, f"ALTER TABLE {new.sql} RENAME TO {quoted(part.table.name)}")
    attach(session, view)


def note_loaded(session: Session, view: TableName, table: TableName, days: Sequence[date]) -> None:
    asked = f"UPDATE {notes_of(view)} SET loaded = %s WHERE view = %s AND part = %s"
    ask(session, asked, (list(days), view.name, table.name))


def attach(session: Session, view: TableName, *, without: KnownPart | None = None) -> None:
    """Let the view show all parts (but one)."""
    parts = known_parts(session, view)
    columns = stored_columns(session, parts[0].table) or {}
    listed = ", ".join(quoted(name) for name in columns)
    shown = [f"SELECT {listed} FROM {part.table.sql}" for part in parts if part != without]
    if not shown:
        shown = ["SELECT " + ", ".join(f"NULL::{one.kind} AS {quoted(name)}" for name, one in columns.items())]
        shown[0] += " WHERE false"
    ask(session, f"CREATE OR REPLACE VIEW {view.sql} AS {' UNION ALL '.join(shown)}")


def add_part_column(session: Session, view: TableName, name: str, kind: str) -> int:
    """Add an optional column to all parts, frozen ones too, and to the view; no row is written."""
    lock_view(session, view)
    parts = known_parts(session, view)
    if not parts:
        raise TargetError(f"{view} has no parts yet. Nothing was changed.")
    for part in parts:
        ask(session, f"ALTER TABLE {part.table.sql} ADD COLUMN IF NOT EXISTS {quoted(name)} {kind}")
    attach(session, view)
    return len(parts)


def add_gained_columns(session: Session, view: TableName, types: Mapping[str, str], *, what: str) -> list[str]:
    """Add what the parts do not have yet, as nullable; tells the columns in the order in which the parts have them.

    Where a column is retyped that is refused. Where one is lost nothing is added: the load refuses that.
    """
    begin_parts(session, view)
    parts = known_parts(session, view)
    stored = (stored_columns(session, parts[-1].table) or {}) if parts else {}
    refuse_retyped(what, types, stored)
    if not stored or any(name not in types for name in stored):
        return list(types)
    gained = [name for name in types if name not in stored]
    for name in gained:
        add_part_column(session, view, name, types[name])
    return [*stored, *gained]


def types_of_parts(session: Session, table: TableName, types: Mapping[str, str], *, what: str) -> dict[str, str]:
    """The types that the parts have, which each new table of theirs gets too; refuses rows that do not fit into them.

    A view shows one type per column: a table of its own types would be refused by the database, or change the others'.
    """
    stored = stored_columns(session, table) or {}
    if list(stored) != list(types):
        raise SchemaChangeError(
            f"{what}: the rows have the columns {', '.join(types)}, and the parts have {', '.join(stored)}. Nothing "
            "was written.",
            hint="An optional column is added to all parts by add_column_to_parts, without loading them again.",
        )
    refuse_retyped(what, types, stored)
    return {name: column.kind for name, column in stored.items()}


def lock_view(session: Session, view: TableName) -> None:
    """Before any table behind it: a reader holds the view first, too, so that nobody waits in a circle."""
    kind = ask(session, "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", (view.sql,)).fetchone()
    if kind is None:
        return
    if kind[0] != "v" or not known_parts(session, view):
        raise TargetError(
            f"{view} is there already, and is no view of parts. Nothing was written.",
            hint="Rename it, or choose another name for the view.",
        )
    # LOCK TABLE on a view would lock what lies behind it as well; replacing it by itself locks the view alone.
    attach(session, view)


def _create(session: Session, table: TableName, types: Mapping[str, str]) -> None:
    ask(session, f"CREATE TABLE {table.sql} ({', '.join(f'{quoted(name)} {kind}' for name, kind in types.items())})")


def notes_of(view: TableName) -> str:
    """The table that tells of the parts, as SQL."""
    return view.beside("_lw_parts").sql


def refuse_no_metadata(target: object) -> None:
    """Refuse what knows no TRUNCATE and DROP."""
    kind = getattr(target, "kind", None)
    if kind != "postgresql":
        name = getattr(target, "name", target)
        raise ConfigurationError(
            f"Fast Metadata Cleaner: {name} has no tables that could be truncated or dropped. Nothing was written.",
            hint="Use Data Overwrite: overwrite_slice for Delta, overwrite_files for plain files.",
        )
