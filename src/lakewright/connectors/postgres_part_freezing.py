"""Old parts of PostgreSQL in one read-only table per year: which they are, and how they come into it.

Guarantee:
    The view shows the same rows, before and after; what is frozen already is not written again. A part that no load has
    reached is not frozen over. Nobody writes to a frozen table: the database refuses it by a trigger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import date

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted, words
from lakewright.connectors.postgres_parts import KnownPart, attach, known_parts, lock_view, notes_of
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.model.parts import LONGEST_NAME

__all__ = ["fold_parts", "old_by_year", "parts_there"]

_FROZEN = "_lw_frozen"


def parts_there(session: Session, view: TableName) -> list[KnownPart]:
    """The parts in order of time, for those who only look: nothing is made where nothing was ever loaded."""
    row = ask(session, "SELECT to_regclass(%s) IS NOT NULL", (notes_of(view),)).fetchone()
    return known_parts(session, view) if row is not None and row[0] else []


def old_by_year(session: Session, view: TableName, before: date) -> list[list[KnownPart]]:
    """What each read-only table is to hold, where that is not one table yet: the parts that end on or before a day.

    A part that is not old, or was never loaded, separates what is before from what is behind it: nothing is frozen
    there, and it may still come.
    """
    groups: list[list[KnownPart]] = []
    last: KnownPart | None = None
    for part in known_parts(session, view):
        old = part.frozen or (part.end <= before and _was_loaded(session, part))
        if old and last is not None and last.end == part.start and last.start.year == part.start.year:
            groups[-1].append(part)
        elif old:
            groups.append([part])
        last = part if old else None
    return [group for group in groups if len(group) > 1 or not group[0].frozen]


def fold_parts(session: Session, view: TableName, parts: Sequence[KnownPart]) -> TableName:
    """Put parts that follow each other into one read-only table, which takes their place.

    Where one of them is frozen already, the others are added to its table: no row of it is written again.
    """
    start, end = min(part.start for part in parts), max(part.end for part in parts)
    table = _frozen_table(view, start, end)
    home = next((part for part in parts if part.frozen), None)
    if home is None:
        ask(session, f"CREATE TABLE {table.sql} (LIKE {parts[0].table.sql} INCLUDING ALL)")
        _make_read_only(session, table)
    others = [part for part in parts if part != home]
    _add_rows(session, table if home is None else home.table, others)
    lock_view(session, view)
    if home is not None and home.table != table:
        ask(session, f"ALTER TABLE {home.table.sql} RENAME TO {quoted(table.name)}")
    names = [part.table.name for part in parts]
    ask(session, f"DELETE FROM {notes_of(view)} WHERE view = %s AND part = ANY(%s)", (view.name, names))
    loaded = sorted(day for part in parts for day in part.loaded)
    asked = f"INSERT INTO {notes_of(view)} VALUES (%s, %s, %s, %s, true, %s)"
    ask(session, asked, (view.name, table.name, start, end, loaded))
    attach(session, view)
    for part in others:
        ask(session, f"DROP TABLE {part.table.sql}")
    return table


def _frozen_table(view: TableName, start: date, end: date) -> TableName:
    """Named after the days that it holds: PostgreSQL would cut them off a name that is too long, without a word."""
    begin, days = view.name, f"_frozen_{start:%Y%m%d}_{end:%Y%m%d}"
    if len(begin.encode()) + len(days) > LONGEST_NAME:
        short = f"_{hashlib.sha256(begin.encode()).hexdigest()[:8]}"
        begin = begin.encode()[: LONGEST_NAME - len(days) - len(short)].decode(errors="ignore") + short
    return view.beside(f"{begin}{days}")


def _add_rows(session: Session, frozen: TableName, parts: Sequence[KnownPart]) -> None:
    """Copy the rows of parts into a read-only table. Others may read them meanwhile, and nobody writes to them."""
    columns = ", ".join(quoted(name) for name in stored_columns(session, frozen) or {})
    ask(session, f'ALTER TABLE {frozen.sql} DISABLE TRIGGER "{_FROZEN}"')
    for part in parts:
        # Another loader that is still at work would write rows that this copy does not see, and that go with the part.
        ask(session, f"LOCK TABLE {part.table.sql} IN SHARE MODE")
        ask(session, f"INSERT INTO {frozen.sql} ({columns}) SELECT {columns} FROM {part.table.sql}")
    ask(session, f'ALTER TABLE {frozen.sql} ENABLE TRIGGER "{_FROZEN}"')


def _was_loaded(session: Session, part: KnownPart) -> bool:
    """Whether a load has ever come through: the table is made before the rows come.

    Other loaders (after ``prepare_part``) note no days: their rows tell.
    """
    if part.loaded:
        return True
    row = ask(session, f"SELECT EXISTS (SELECT FROM {part.table.sql})").fetchone()
    return row is not None and bool(row[0])


def _make_read_only(session: Session, table: TableName) -> None:
    refuse = table.beside("_lw_refuse_frozen").sql
    ask(
        session,
        f"CREATE OR REPLACE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql AS "
        f"{words('BEGIN RAISE EXCEPTION USING ERRCODE = $$25006$$, MESSAGE = TG_TABLE_NAME || $$ is frozen$$; END')}",
    )
    ask(
        session,
        f'CREATE TRIGGER "{_FROZEN}" BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table.sql} '
        f"FOR EACH STATEMENT EXECUTE FUNCTION {refuse}()",
    )
