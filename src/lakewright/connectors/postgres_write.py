"""Writing to PostgreSQL without a pipeline: append, replace what a condition tells, or apply changes by key.

Guarantee:
    Rows are sent by COPY from the executors into a staging table; then one transaction changes the target, so that a
    reader sees all of it or nothing, and a failure leaves the target as it was. ``overwrite_rows`` and ``merge_rows``
    leave the same table however often they are repeated; ``copy_into`` adds the rows each time, so it says where it
    does not know whether it has: the connection was lost under the COMMIT, and the server can no longer be asked.
Consequences:
    - Every executor connects to the database: it takes as many connections as tasks run at once. Coalesce a frame that
      has many more partitions than the database has connections to spare.
    - The executors need psycopg too (``lakewright[postgres]``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_changes import fold_staged, refuse_missing_columns
from lakewright.connectors.postgres_connection import (
    Session,
    TableName,
    ask,
    connect,
    connection_arguments,
    quoted,
)
from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_shape import has_unique_key, stored_columns
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError
from lakewright.model.connections import Connection
from lakewright.model.outside import KeyedChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["changed_rows", "copy_into", "merge_rows", "merge_staged", "overwrite_rows", "replace_staged"]

Metrics = dict[str, int]

# By the table itself: it may be named with or without its schema.
_ALONE = (
    "SELECT pg_advisory_xact_lock(hashtext('lakewright.overwrite'), to_regclass(%s)::oid::bigint::bit(32)::integer)"
)


def copy_into(df: DataFrame, connection: Connection, *, table: str) -> int:
    """Runs a job that adds all rows to a table in one transaction; returns how many."""
    return _write(df, connection, table, lambda session, stage: _insert(session, stage), repeatable=False)


def overwrite_rows(df: DataFrame, connection: Connection, *, table: str, where: str = "true") -> int:
    """Runs a job that replaces the rows of a table that fulfil ``where`` (SQL of the database) by the frame's.

    DELETE and INSERT are one transaction: where the INSERT fails, nothing was deleted. A row that does not fulfil
    ``where`` is refused before. Of two calls at once the second waits for the first. Returns the rows written.
    """

    def change(session: Session, stage: Stage) -> int:
        # Without it the DELETE of a second call sees nothing of the rows that the first one is about to commit.
        ask(session, _ALONE, (stage.target.sql,))
        return replace_staged(session, stage, where=where, within=False)["numOutputRows"]

    return _write(df, connection, table, change)


def merge_rows(
    df: DataFrame,
    connection: Connection,
    *,
    table: str,
    keys: Sequence[str],
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
) -> int:
    """Runs a job that applies changes by key: see Merger. The table needs a unique index on exactly the keys.

    Of several changes of one key the last by ``sequence`` counts; without it they are refused, as a key that is NULL
    is, and nothing is written. Returns the rows changed.
    """
    changes = KeyedChanges(keys, sequence, deleted, delete)
    refuse_missing_columns(df.columns, changes, what=f"{connection.name}: {table}")

    def change(session: Session, stage: Stage) -> int:
        fold_staged(session, stage, changes)
        return changed_rows(merge_staged(session, stage, changes))

    return _write(df, connection, table, change, extra={deleted: "boolean"} if deleted else {})


def changed_rows(metrics: Metrics) -> int:
    """How many rows a merge inserted, updated and deleted."""
    counted = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return sum(metrics[name] for name in counted)


def _write(
    df: DataFrame,
    connection: Connection,
    table: str,
    change: Callable[[Session, Stage], int],
    extra: Mapping[str, str] = MappingProxyType({}),
    *,
    repeatable: bool = True,
) -> int:
    import psycopg

    target = TableName.parse(table)
    arguments = connection_arguments(connection)
    stage = Stage(stage_name(target, secrets.token_hex(8), 1), target, f"{connection.name}: {target}")
    try:
        with connect(arguments) as session, staging(session, stage, df.columns, extra=extra):
            stage.fill(df, arguments)
            with settled_transaction(session, arguments, what=stage.what, repeatable=repeatable):
                stage.refuse_incomplete(session)
                return change(session, stage)
    except psycopg.Error as error:
        explained = explain_database_error(error, what=stage.what, effect="Nothing was written.")
        raise explained from explained.__cause__


def replace_staged(session: Session, stage: Stage, *, where: str, within: bool, order: str = "") -> Metrics:
    """Delete what fulfils the condition and insert the staged rows, within the caller's transaction.

    ``order`` is an ORDER BY in which they are inserted.
    """
    if not within and where != "true":
        row = ask(session, f"SELECT count(*) FROM {stage.rows()} WHERE NOT coalesce(({where}), false)").fetchone()
        if row is not None and row[0]:
            raise InputError(
                f"{stage.what}: {row[0]:,} rows lie outside what is being replaced ({where}). Nothing was written.",
                hint="Filter the rows to the slice, or widen the predicate.",
            )
    deleted = ask(session, f"DELETE FROM {stage.target.sql} WHERE {where}").rowcount
    return {"numOutputRows": _insert(session, stage, order), "numDeletedRows": deleted}


def _insert(session: Session, stage: Stage, order: str = "") -> int:
    columns = ", ".join(quoted(name) for name in stage.columns)
    rows = f"SELECT {columns} FROM {stage.rows()} {order}"
    return ask(session, f"INSERT INTO {stage.target.sql} ({columns}) {rows}").rowcount


def merge_staged(session: Session, stage: Stage, changes: KeyedChanges) -> Metrics:
    """Apply the staged changes, one of a key and no key NULL (see `fold_staged`), within the caller's transaction."""
    columns = _merged_columns(session, stage, changes)
    gone = f"coalesce(staged.{quoted(changes.deleted)}, false)" if changes.deleted else "false"
    same = " AND ".join(f"known.{quoted(key)} = staged.{quoted(key)}" for key in changes.keys)
    newer = _newer(changes, "staged")
    deleted = marked = 0
    if changes.deleted and changes.delete == "hard":
        statement = f"DELETE FROM {stage.target.sql} AS known USING {stage.rows()} WHERE {gone} AND {same}{newer}"
        deleted = ask(session, statement).rowcount
    elif changes.deleted:
        # A flagged row for an unknown key is not inserted, so it is no upsert.
        update = ", ".join(f"{quoted(name)} = {_value(name, changes)}" for name in columns)
        statement = f"UPDATE {stage.target.sql} AS known SET {update} FROM {stage.rows()} "
        marked = ask(session, f"{statement}WHERE {gone} AND {same}{newer}").rowcount
    new = ask(
        session,
        f"SELECT count(*) FROM {stage.rows()} WHERE NOT {gone} "
        f"AND NOT EXISTS (SELECT 1 FROM {stage.target.sql} AS known WHERE {same})",
    ).fetchone()
    inserted = 0 if new is None else int(new[0])
    written = ask(session, _upsert(stage, changes, columns, gone)).rowcount
    return {
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": max(written - inserted, 0) + marked,
        "numTargetRowsDeleted": deleted,
        "numDeletedRows": deleted,
    }


def _merged_columns(session: Session, stage: Stage, changes: KeyedChanges) -> list[str]:
    refuse_missing_columns(stage.columns, changes, what=stage.what)
    if not has_unique_key(session, stage.target, changes.keys):
        listed = ", ".join(changes.keys)
        raise ConfigurationError(
            f"{stage.what}: the table has no unique index on ({listed}), by which rows could be found. "
            "Nothing was written.",
            hint=f"Give it one: ALTER TABLE {stage.target} ADD PRIMARY KEY ({listed}).",
        )
    stored = stored_columns(session, stage.target) or {}
    if changes.delete == "soft" and changes.deleted is not None and changes.deleted not in stored:
        raise SchemaChangeError(
            f"{stage.what}: the table has no column {changes.deleted}, by which deleted rows would be marked. Nothing "
            "was written.",
            hint=f'Add it: ALTER TABLE {stage.target} ADD COLUMN {changes.deleted} boolean; or use delete="hard".',
        )
    return [name for name in stage.columns if name in stored]


def _upsert(stage: Stage, changes: KeyedChanges, columns: Sequence[str], gone: str) -> str:
    names = ", ".join(quoted(name) for name in columns)
    values = ", ".join(_value(name, changes) for name in columns)
    keys = ", ".join(quoted(key) for key in changes.keys)
    updated = [name for name in columns if name not in changes.keys]
    update = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in updated)
    action = f"DO UPDATE SET {update} WHERE true{_newer(changes, 'excluded')}" if update else "DO NOTHING"
    return (
        f"INSERT INTO {stage.target.sql} AS known ({names}) SELECT {values} FROM {stage.rows()} WHERE NOT {gone} "
        f"ON CONFLICT ({keys}) {action}"
    )


def _value(name: str, changes: KeyedChanges) -> str:
    # A NULL flag is read as "not deleted".
    return f"coalesce(staged.{quoted(name)}, false)" if name == changes.deleted else f"staged.{quoted(name)}"


def _newer(changes: KeyedChanges, change: str) -> str:
    """Only what is not older than the row that is there counts; an equal one is a correction."""
    if changes.sequence is None:
        return ""
    at = quoted(changes.sequence)
    return f" AND (known.{at} IS NULL OR {change}.{at} >= known.{at})"
