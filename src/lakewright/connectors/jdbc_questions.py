"""What a JDBC source asks the database before it reads: columns, what is new, and the real bounds of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import (
    Session,
    TableName,
    ask,
    beside_values,
    no_such_table,
    quoted,
    words,
)
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.arrivals import JsonValue

if TYPE_CHECKING:
    from lakewright.connectors.jdbc import Jdbc

__all__ = [
    "FoundColumn",
    "ask_bounds",
    "ask_columns",
    "ask_fingerprint",
    "ask_intervals",
    "ask_lower",
    "ask_range",
    "is_endless",
    "relation",
]

_READABLE = frozenset(
    ["bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bpchar", "name", "citext",
     "date", "timestamp", "timestamptz", "bytea", "uuid", "json", "jsonb", "inet", "cidr", "macaddr"]
)  # fmt: skip
"""Types that Spark has a counterpart for; a range, an interval or a point would arrive as something else."""

_ENDS = ("infinity", "-infinity")
_ENDLESS = {
    **dict.fromkeys(["date", "timestamp with time zone", "timestamp without time zone"], _ENDS),
    **dict.fromkeys(["real", "double precision", "numeric"], ("NaN", "Infinity", "-Infinity")),
    **dict.fromkeys(["smallint", "integer", "bigint"], ()),
}
"""The values of a type above or below all others: as the end of a range they leave nothing to come after it."""


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column of the table or query: its type for people, and whether it is a number or a time."""

    name: str
    kind: str
    category: str
    """As PostgreSQL sorts its types: N numbers, D dates and times."""
    readable: bool
    permitted: bool = True

    @property
    def rises(self) -> bool:
        return self.category in ("N", "D")


def relation(source: Jdbc, columns: Sequence[str]) -> str:
    """The rows to read, as a query."""
    listed = ", ".join(quoted(name) for name in columns) or "*"
    inner = TableName.parse(source.table).sql if source.table is not None else f"({source.query}) AS q"
    return f"SELECT {listed} FROM {inner}"


def ask_columns(session: Session, source: Jdbc, *, what: str) -> dict[str, FoundColumn]:
    """All columns by name; refuses unknown ones, and of those that are read the ones that cannot be."""
    described = _described(session, source, what)
    kinds = {row[0]: row[1:] for row in _types(session, sorted({oid for _, oid, _ in described}))}
    found = {name: FoundColumn(name, *kinds[oid], permitted) for name, oid, permitted in described}
    named = [*source.columns, *[name for name in (source.key, source.cursor) if name is not None]]
    if missing := [name for name in dict.fromkeys(named) if name not in found]:
        raise MissingColumnsError(pattern=what, missing=missing, present=list(found))
    chosen = {name: found[name] for name in dict.fromkeys([*(source.columns or found), *named])}
    if hidden := [column.name for column in chosen.values() if not column.permitted]:
        raise ConfigurationError(
            f"{what}: permission denied: the connection's user may not read {', '.join(hidden)}. Nothing was read.",
            hint="Grant the right (GRANT SELECT ON ...), or name the other columns in columns=[...].",
        )
    if strange := [column for column in chosen.values() if not column.readable]:
        first = strange[0]
        raise InputError(
            f"{what}: the column '{first.name}' is {first.kind}, which Spark has no type for. Nothing was read.",
            hint=f'Read it as text: query="SELECT ..., {first.name}::text ...", or name the others in columns=[...].',
        )
    for option, name in (("key", source.key), ("cursor", source.cursor)):
        if name is not None and not found[name].rises:
            raise InputError(
                f"{what}: {option} is '{name}', which is {found[name].kind}; it has to be a number, a date or a time.",
                hint="Choose another column, or leave it out.",
            )
    return found


def _described(session: Session, source: Jdbc, what: str) -> list[tuple[str, int, bool]]:
    """Name and type of each column, and whether we may read it: a table tells that without being read."""
    if source.table is None:
        description = ask(session, f"{relation(source, ())} LIMIT 0").description or []
        return [(column.name, column.type_code, True) for column in description]
    table = TableName.parse(source.table)
    row = ask(session, "SELECT to_regclass(%s)::oid", (table.sql,)).fetchone()
    if row is None or row[0] is None:
        raise no_such_table(session, table, what=what)
    asked = (
        "SELECT attname, atttypid, has_column_privilege(attrelid, attnum, 'SELECT') FROM pg_attribute "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return [(name, oid, permitted) for name, oid, permitted in ask(session, asked, (row[0],))]


def _types(session: Session, oids: Sequence[int]) -> list[tuple[int, str, str, bool]]:
    # An array counts as what it holds; an enum is read as text, a domain as what it is made of.
    rows = ask(
        session,
        "SELECT t.oid, format_type(t.oid, NULL), t.typcategory, coalesce(e.typname, b.typname, t.typname), "
        "coalesce(e.typtype, t.typtype) FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typlen = -1 "
        "LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd' WHERE t.oid = ANY(%s::oid[])",
        (list(oids),),
    )
    return [(oid, kind, category, base in _READABLE or typtype == "e") for oid, kind, category, base, typtype in rows]


def ask_fingerprint(session: Session, source: Jdbc) -> tuple[int, str]:
    """The number of rows and an order-free sum of their hashes, made by the server in one query."""
    asked = f"SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)), 0)::text FROM ({_rows(source)}) AS r"
    row = ask(session, asked).fetchone()
    assert row is not None
    return int(row[0]), str(row[1])


def ask_range(session: Session, source: Jdbc, after: str | None, found: FoundColumn, *, what: str) -> str | None:
    """The highest value of the cursor above ``after``, as text; None where nothing is newer."""
    cursor = quoted(found.name)
    _refuse_unreachable(session, source, found, what)
    highest = f"SELECT max({cursor})::text FROM ({_rows(source)}) AS r"
    if after is None:
        row = ask(session, highest).fetchone()
    else:
        newer = beside_values(f"{highest} WHERE {cursor} >")
        row = ask(session, f"{newer} %s::{found.kind}", (after,)).fetchone()
    upto = None if row is None or row[0] is None else str(row[0])
    if upto is not None and is_endless(upto):  # written since it was looked for
        raise _endless(found.name, upto, what)
    return upto


def is_endless(value: str) -> bool:
    """Whether a value, as text, is above or below all others."""
    return value.lower() in ("nan", *_ENDS)


def ask_lower(session: Session, value: str, kind: str, by: timedelta) -> str:
    """A value of a date or time column, moved back, as text."""
    row = ask(
        session, f"SELECT (%s::{kind} - %s::interval)::{kind}::text", (value, f"{by.total_seconds()} s")
    ).fetchone()
    assert row is not None
    return str(row[0])


def ask_intervals(
    session: Session,
    source: Jdbc,
    found: FoundColumn,
    every: timedelta,
    begun: datetime | None,
    end: datetime,
    *,
    what: str,
) -> list[tuple[datetime, int]]:
    """The starts of the intervals before ``end`` that have rows, and how many, counted by the server in one query."""
    _refuse_unreachable(session, source, found, what)
    cursor, counted = beside_values(quoted(found.name)), beside_values(_rows(source))
    moment = cursor if found.kind == "timestamp with time zone" else f"({cursor}::timestamp AT TIME ZONE 'UTC')"
    since, values = ("", (end,)) if begun is None else (f" AND {moment} >= %s", (end, begun))
    rows = ask(
        session,
        f"SELECT date_bin('{every.total_seconds():.0f} s', {moment}, '1970-01-01Z'), count(*) "
        f"FROM ({counted}) AS r WHERE {moment} < %s{since} GROUP BY 1 ORDER BY 1",
        values,
    )
    return [(start.astimezone(UTC), int(count)) for start, count in rows]


def _refuse_unreachable(session: Session, source: Jdbc, found: FoundColumn, what: str) -> None:
    """Refuse rows that no range would ever have, or behind which none would ever have any."""
    cursor = quoted(found.name)
    ends = _ENDLESS.get(found.kind)
    # A column of its own type is compared as such, so that an index serves; a domain only by its text.
    compared, ends = (
        (cursor, ends) if ends is not None else (f"{cursor}::text", ("NaN", "Infinity", "-Infinity", *_ENDS))
    )
    where = f"{cursor} IS NULL" + (f" OR {compared} IN ({', '.join(map(words, ends))})" if ends else "")
    row = ask(session, f"SELECT {cursor}::text FROM ({_rows(source)}) AS r WHERE {where} LIMIT 1").fetchone()
    if row is None:
        return
    if row[0] is not None:
        raise _endless(found.name, str(row[0]), what)
    raise InputError(
        f"{what}: some rows have no {found.name} (NULL), so they would never be read. Nothing was read.",
        hint=f'Fill it, or read query="SELECT *, coalesce({found.name}, ...) AS changed FROM ..." by cursor="changed".',
    )


def _endless(cursor: str, value: str, what: str) -> InputError:
    return InputError(
        f"{what}: some rows have no finite {cursor} ({value}), so they, or all that comes later, would never be read. "
        "Nothing was read.",
        hint=f"Correct it, or leave them out: query=\"SELECT * FROM ... WHERE {cursor} > '-infinity' AND {cursor} < "
        "'infinity'\".",
    )


def ask_bounds(session: Session, source: Jdbc, found: FoundColumn, where: str) -> dict[str, JsonValue] | None:
    """The lowest and highest value of the key as Spark reads bounds; None where there is no row."""
    key = quoted(found.name)
    low, high = f"min({key})", f"max({key})"
    if found.category == "N":
        # Bounds are whole numbers to Spark. They only cut the rows into parts: none is left out beyond them.
        limit = 2**62
        low, high = (f"least(greatest({f}({at}::numeric), -{limit}), {limit})::bigint"
                     for f, at in (("floor", low), ("ceil", high)))  # fmt: skip
    else:
        only = f" FILTER (WHERE isfinite({key}))"
        form = "YYYY-MM-DD" if found.kind == "date" else "YYYY-MM-DD HH24:MI:SS.US"
        low, high = f"to_char({low}{only}, '{form}')", f"to_char({high}{only}, '{form}')"
    row = ask(session, f"SELECT {low}::text, {high}::text FROM ({_rows(source)}) AS r{where}").fetchone()
    if row is None or row[0] is None:
        return None
    return {"column": found.name, "low": row[0], "high": row[1]}


def _rows(source: Jdbc) -> str:
    """The rows with everything that is asked about, whether it is read or not."""
    if not source.columns:
        return relation(source, ())
    more = [name for name in (source.key, source.cursor) if name is not None]
    return relation(source, list(dict.fromkeys([*source.columns, *more])))
