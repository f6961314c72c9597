"""Staged changes of a table of PostgreSQL, judged and folded by key before they are merged, as Merger does it.

Each call is part of the caller's transaction: where it refuses, nothing was changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakewright.connectors.postgres_connection import Session, ask, quoted
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.connectors.postgres_staging import Stage
from lakewright.errors import MissingColumnsError
from lakewright.model.outside import KeyedChanges
from lakewright.patterns.idempotency.refusals import SAMPLES, null_keys, same_keys

__all__ = ["drop_outdated", "fold_staged", "refuse_missing_columns"]

_ORDERED = (
    "smallint", "integer", "bigint", "numeric", "real", "double precision", "boolean", "date", "timestamp", "bytea",
)  # fmt: skip
"""Types whose values both PostgreSQL and Spark put into the same order."""


def refuse_missing_columns(columns: Sequence[str], changes: KeyedChanges, *, what: str) -> None:
    """Refuse changes without a column that they are applied by."""
    needed = [*changes.keys, *[name for name in (changes.sequence, changes.deleted) if name]]
    if missing := [name for name in needed if name not in columns]:
        raise MissingColumnsError(pattern=f"{what} (Merger)", missing=missing, present=columns)


def fold_staged(session: Session, stage: Stage, changes: KeyedChanges) -> None:
    """Refuse staged rows whose key is NULL; keep the last change of each key, or refuse several that nothing orders.

    Of several with the same ``sequence`` the one that ``keep_last_change`` would take stays: ties are broken by the
    content.
    """
    keys = [quoted(key) for key in changes.keys]
    _refuse_null_keys(session, stage, changes.keys)
    if changes.sequence is None:
        asked = f"SELECT {', '.join(keys)} FROM {stage.rows()} GROUP BY {', '.join(keys)} HAVING count(*) > 1"
        if found := ask(session, f"{asked} ORDER BY {', '.join(keys)} LIMIT {SAMPLES}").fetchall():
            raise same_keys(found, keys=changes.keys, what=stage.what)
        return
    order = ", ".join([f"{quoted(changes.sequence)} DESC NULLS LAST", *_by_content(session, stage, changes)])
    ranked = f"SELECT ctid AS place, row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order}) AS rank"
    ask(
        session,
        f"DELETE FROM {stage.table.sql} AS one USING ({ranked} FROM {stage.table.sql} WHERE {stage.counted()}) "
        "AS ranked WHERE one.ctid = ranked.place AND ranked.rank > 1",
    )


def drop_outdated(session: Session, earlier: Sequence[Stage], stage: Stage, changes: KeyedChanges) -> None:
    """Drop the staged rows that are older than a deletion in an earlier stage, which leaves nothing to compare with."""
    if changes.sequence is None or changes.deleted is None:
        return
    at, flag = quoted(changes.sequence), quoted(changes.deleted)
    same = " AND ".join(f"one.{quoted(key)} = staged.{quoted(key)}" for key in changes.keys)
    for before in earlier:
        ask(
            session,
            f"DELETE FROM {stage.table.sql} AS one USING {before.rows()} WHERE {same} AND staged.{flag} "
            f"AND staged.{at} IS NOT NULL AND (one.{at} IS NULL OR one.{at} < staged.{at})",
        )


def _refuse_null_keys(session: Session, stage: Stage, keys: Sequence[str]) -> None:
    missing = " OR ".join(f"{quoted(key)} IS NULL" for key in keys)
    row = ask(session, f"SELECT count(*) FROM {stage.rows()} WHERE {missing}").fetchone()
    if row is not None and row[0]:
        listed = ", ".join(quoted(key) for key in keys)
        asked = f"SELECT {listed} FROM {stage.rows()} WHERE {missing} ORDER BY {listed} LIMIT {SAMPLES}"
        raise null_keys(ask(session, asked).fetchall(), keys=keys, what=stage.what, count=row[0])


def _by_content(session: Session, stage: Stage, changes: KeyedChanges) -> list[str]:
    """All other columns, in an order that does not follow the server's language; NULL first, as in Spark."""
    kinds = stored_columns(session, stage.table) or {}
    columns = [name for name in stage.columns if name not in (*changes.keys, changes.sequence)]
    return [f"{_comparable(name, kinds[name].kind)} NULLS FIRST" for name in columns]


def _comparable(name: str, kind: str) -> str:
    if kind.startswith(_ORDERED) and not kind.endswith("[]"):
        return quoted(name)
    return f'{quoted(name)}::text COLLATE "C"'
