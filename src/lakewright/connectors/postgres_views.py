"""A view over versioned tables of PostgreSQL: ``devices`` shows ``devices_3``, and ``devices_2`` is kept behind it.

Each function is part of the caller's transaction. Tables of ours are told by their comment, which also says whether a
version was ever shown: only those are counted as loads, and only tables of ours are ever dropped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted, words
from lakewright.connectors.postgres_dropping import drop_unless_held
from lakewright.errors import ConfigurationError, SchemaChangeError, TargetError

__all__ = ["Version", "drop_unused", "grants_on", "note_version", "show_version", "shown_version", "versions_of"]

_OURS = "lakewright"


@dataclass(frozen=True, slots=True)
class Version:
    """One versioned table behind a view."""

    number: int
    table: TableName
    rows: int
    was_shown: bool


def versions_of(session: Session, view: TableName) -> dict[int, Version]:
    """The versions of a view that are there, by number."""
    schema = "current_schema()" if view.schema is None else "%s"
    found = ask(
        session,
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c "
        f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = {schema} "
        f"AND obj_description(c.oid, 'pg_class') LIKE '%%\"{_OURS}\"%%'",
        [] if view.schema is None else [view.schema],
    ).fetchall()
    versions = {}
    for name, comment in found:
        if (noted := _noted(comment)) is not None and name == f"{view.name}_{noted['version']}":
            one = Version(noted["version"], view.beside(name), noted["rows"], noted["shown"])
            versions[one.number] = one
    return versions


def note_version(session: Session, version: Version) -> None:
    """Write down, as the table's comment, what it is."""
    noted = {"version": version.number, "rows": version.rows, "shown": version.was_shown}
    ask(session, f"COMMENT ON TABLE {version.table.sql} IS {words(json.dumps({_OURS: noted}))}")


def shown_version(session: Session, view: TableName) -> int | None:
    """The number of the version that the view shows; None where there is no view yet. Refuses somebody else's."""
    kind = ask(session, "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", (view.sql,)).fetchone()
    if kind is None:
        return None
    if kind[0] != "v":
        raise TargetError(
            f"{view} is a table, and versions are shown by a view of that name. Nothing was written.",
            hint=f"Rename it first: ALTER TABLE {view} RENAME TO ...; or choose another name for the view.",
        )
    tables = ask(
        session,
        "SELECT DISTINCT c.relname FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid "
        "JOIN pg_class c ON c.oid = d.refobjid WHERE r.ev_class = to_regclass(%s) AND c.relkind = 'r' "
        "AND d.classid = 'pg_rewrite'::regclass",
        (view.sql,),
    ).fetchall()
    shown = [one.number for one in versions_of(session, view).values() if [(one.table.name,)] == tables]
    if not shown:
        raise TargetError(
            f"The view {view} is there already, and does not show a version that was loaded for it. "
            "Nothing was written.",
            hint=f"Choose another name, or drop it: DROP VIEW {view}.",
        )
    return shown[0]


def show_version(session: Session, view: TableName, version: Version) -> None:
    """Point the view at a version. What it may be read by stays; a view that others depend on keeps its shape."""
    new = _columns(session, version.table)
    listed = ", ".join(quoted(name) for name, _ in new)
    select = f"SELECT {listed} FROM {version.table.sql}"
    old = _columns(session, view)
    if old == new[: len(old)]:  # only then does PostgreSQL replace a view
        ask(session, f"CREATE OR REPLACE VIEW {view.sql} AS {select}")
    else:
        grants = grants_on(session, view)
        _refuse_dependents(session, view, old, new)
        ask(session, f"DROP VIEW {view.sql}")
        ask(session, f"CREATE VIEW {view.sql} AS {select}")
        for grant in grants:
            ask(session, grant)
    if not version.was_shown:  # one that a keeper owns is noted from the start
        note_version(session, Version(version.number, version.table, version.rows, True))


def drop_unused(session: Session, view: TableName, *, keep: int) -> tuple[int, ...]:
    """Drop the oldest versions but the last ``keep``, never the one that is shown; tells which.

    One that somebody still reads (a long query, a backup) does not hold up the switch: the next load drops it.
    """
    if keep < 1:
        raise ConfigurationError(f"{view}: keep is at least 1, not {keep}.")
    shown = shown_version(session, view)
    versions = versions_of(session, view)
    old = sorted(number for number in versions if number != shown)[: max(len(versions) - keep, 0)]
    return tuple(number for number in old if drop_unless_held(session, versions[number].table))


def _columns(session: Session, relation: TableName) -> list[tuple[str, str]]:
    rows = ask(
        session,
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (relation.sql,),
    )
    return [(str(name), str(kind)) for name, kind in rows]


def grants_on(session: Session, view: TableName) -> list[str]:
    """The statements that give a view that is made anew what others were granted on it."""
    rows = ask(
        session,
        "SELECT a.privilege_type, CASE a.grantee WHEN 0 THEN NULL ELSE a.grantee::regrole::text END, a.is_grantable "
        "FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner",
        (view.sql,),
    ).fetchall()
    return [
        f"GRANT {privilege} ON {view.sql} TO {'PUBLIC' if role is None else role}"
        + (" WITH GRANT OPTION" if grantable else "")
        for privilege, role, grantable in rows
    ]


def _refuse_dependents(
    session: Session, view: TableName, old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]
) -> None:
    rows = ask(
        session,
        "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
        "WHERE d.refobjid = to_regclass(%s) AND d.classid = 'pg_rewrite'::regclass "
        "AND r.ev_class <> to_regclass(%s) ORDER BY 1",
        (view.sql, view.sql),
    ).fetchall()
    if rows:
        changed = [name for name, _ in old if (name, dict(old)[name]) not in new] or [name for name, _ in old]
        raise SchemaChangeError(
            f"{view}: the load has another shape ({', '.join(changed)} is gone, moved or of another type), and "
            f"{', '.join(str(row[0]) for row in rows)} is built on the view. It shows what it showed.",
            hint="Drop what is built on it first, or give the new shape a view of its own.",
        )


def _noted(comment: str | None) -> dict[str, Any] | None:
    try:
        noted = json.loads(comment or "")
    except ValueError:
        return None
    return noted.get(_OURS) if isinstance(noted, dict) else None
