"""Loading one day, or all days, of a part of PostgreSQL: the part is looked up, the rows are sent, then they count.

Two transactions: the first finds or makes the table, the second cleans it where that is due, moves the rows in and
notes the days. Until the second one ends, readers see what they saw.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date

from lakewright.connectors.postgres_connection import (
    ConnectionArguments,
    Session,
    TableName,
    ask,
    beside_values,
    quoted,
)
from lakewright.connectors.postgres_dropping import PATIENT, drop_unless_held
from lakewright.connectors.postgres_parts import (
    KnownPart,
    begin_parts,
    create_part,
    known_parts,
    note_loaded,
    refuse_frozen,
    swap_in,
    types_of_parts,
)
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_shape import lock_key
from lakewright.connectors.postgres_version_load import Filling
from lakewright.connectors.postgres_write_once import NEW, drop_dead_loads
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.failpoints import failpoint
from lakewright.model.parts import Part, PartTables, part_of, part_runs

__all__ = ["load_part", "part_table"]


def load_part(
    session: Session,
    parts: PartTables,
    filling: Filling,
    *,
    day: date,
    whole: bool,
    arguments: ConnectionArguments,
    what: str,
    guard: Callable[[], None] = lambda: None,
    finish: Callable[[int], None] = lambda rows: None,
    part: Part | None = None,
) -> int:
    """Load a day into its part, or (``whole``) all its days at once; returns the rows.

    ``part`` is where the day lies, if that is not told by the calendar of parts, which cuts weeks at 1 January.
    ``guard`` is asked within each transaction; ``finish`` is the last thing in the one that counts.
    """
    import psycopg

    part = part_of(day, parts.every) if part is None else part
    view, types = TableName.parse(parts.view), filling.types()
    cleans = whole or part.start == day
    aside = view.beside(f"{NEW}{secrets.token_hex(8)}") if cleans and parts.clean == "drop" else None
    with session.transaction():
        guard()
        known = part_table(session, view, part, what=what)
        _refuse_again(known, part, day, cleans=cleans, what=what)
        target = known.table if known else create_part(session, view, part, types, limit=parts.max_parts)
        types = types_of_parts(session, target, types, what=what)
        if aside is not None:
            drop_dead_loads(session, view)
            ask(session, f"SELECT pg_advisory_lock({lock_key(aside.name)})")
            _create(session, aside, types)
    try:
        with filling.sending(session, aside or target, arguments) as move:
            failpoint("staged")
            with settled_transaction(session, arguments, what=what):
                guard()
                known = part_table(session, view, part, what=what)
                _refuse_again(known, part, day, cleans=cleans, what=what)
                assert known is not None
                if cleans and aside is None:
                    ask(session, f"TRUNCATE {target.sql}")
                rows = move()
                if parts.time is not None:
                    _refuse_outside(session, aside or target, parts.time, part, what=what)
                if aside is not None:
                    swap_in(session, view, known, aside)
                days = [run.day for run in part_runs(part.start, part.end, every=parts.every)] if whole else [day]
                note_loaded(session, view, target, sorted({*days, *(() if cleans else known.loaded)}))
                finish(rows)
    finally:
        if aside is not None:
            with suppress(psycopg.Error):  # the next load drops it
                drop_unless_held(session, aside, wait=PATIENT)
                ask(session, f"SELECT pg_advisory_unlock({lock_key(aside.name)})")
    return rows


def part_table(session: Session, view: TableName, part: Part, *, what: str) -> KnownPart | None:
    """The table of a part, if it is there; whoever asks has the parts for itself until its transaction ends."""
    begin_parts(session, view)
    parts = known_parts(session, view)
    refuse_frozen(parts, part, what=what)
    found = [one for one in parts if one.start < part.end and part.start < one.end]
    if found and (found[0].start, found[0].end) != (part.start, part.end):
        raise ConfigurationError(
            f"{what}: {found[0].table} holds {found[0].start} up to {found[0].end}, which is not {part}: the parts "
            "were cut by another granularity. Nothing was written.",
            hint="Keep it, or load the dataset behind another view.",
        )
    return found[0] if found else None


def _refuse_again(known: KnownPart | None, part: Part, day: date, *, cleans: bool, what: str) -> None:
    if cleans:
        return
    if known is None:
        raise TargetError(
            f"{what}: there is no table for {part} yet. Nothing was written.",
            hint=f"Its first day makes it: begin with {part.start}.",
        )
    if day in known.loaded:
        raise ConfigurationError(
            f"{what}: the day was loaded already, and the smallest that can be made again is one {part.every}: {part}. "
            "Nothing was written.",
            hint=f"Begin with {part.start}, which cleans it (part_runs lists the days); for less use Data Overwrite.",
        )


def _refuse_outside(session: Session, table: TableName, time: str, part: Part, *, what: str) -> None:
    column = beside_values(quoted(time))
    row = ask(
        session,
        f"SELECT count(*) FROM {beside_values(table.sql)} WHERE NOT coalesce({column} >= %s::timestamp AND "
        f"{column} < %s::timestamp, false)",
        (part.start, part.end),
    ).fetchone()
    if row is not None and row[0]:
        raise InputError(
            f"{what}: {row[0]:,} rows lie outside {part}, by {time}. Nothing was written.",
            hint="Filter the rows to the day, or correct their time.",
        )


def _create(session: Session, table: TableName, types: Mapping[str, str]) -> None:
    ask(session, f"CREATE TABLE {table.sql} ({', '.join(f'{quoted(name)} {kind}' for name, kind in types.items())})")
