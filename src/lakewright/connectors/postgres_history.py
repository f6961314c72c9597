"""Stateful Merger for a table of PostgreSQL, which keeps no versions: a history table keeps every change instead.

Guarantee:
    After an execution the table equals one built from scratch up to it. Whatever the history holds of this execution
    and of later ones is deleted, the table is rebuilt from what is left (the last change of each key), and then the
    changes are added to the history and merged: all in one transaction, so that a reader never sees a table between two
    states, and a failure at any moment leaves table and history as they were.
Consequences:
    - Later executions are gone until they are repeated, in order, one at a time: ``repeat`` names them, and a table
      beside the history (``<history>_missing``) holds them until then.
    - The changes bring every column of the table but those that the database fills by itself: a rebuild knows nothing
      else, and lets it fill them anew.
    - The history grows with every change and is never vacuumed away, so that every execution can be repeated. Delete
      its oldest executions by hand once nobody will repeat them, all but the last change of each key.
    - The table holds what the history holds, and nothing else: rows that were there before the first execution would be
      lost by a rebuild, so a table that is not empty is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_change_history import ChangeHistory
from lakewright.connectors.postgres_connection import TableName, connect, connection_arguments
from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.connectors.postgres_settling import settled_transaction
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.model.connections import Connection
from lakewright.model.outside import KeyedChanges
from lakewright.model.times import parse_time
from lakewright.patterns.idempotency.merger import keep_last_change
from lakewright.patterns.idempotency.stateful_merger import StatefulMerger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RebuiltMerge", "merge_rows_restoring"]

_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True, slots=True)
class RebuiltMerge:
    """What an execution did to the table."""

    rebuilt: bool
    """Whether the table was taken back first."""
    repeat: tuple[datetime, ...]
    """The other executions that the table lacks now, in order: they have to be repeated, too. They are noted in the
    database, so that a call that begins again where another one died tells them as well.
    """
    rows: int
    """Rows inserted, updated and deleted by the merge itself."""


def merge_rows_restoring(
    df: DataFrame,
    connection: Connection,
    *,
    table: str,
    keys: Sequence[str],
    execution_time: str | date | datetime,
    sequence: str | None = None,
    deleted: str | None = None,
    delete: Literal["hard", "soft"] = "hard",
    history: str | None = None,
) -> RebuiltMerge:
    """Runs the jobs and the transaction that merge the changes of one execution into a table, after the table was
    rebuilt where the execution repeats the past. The table needs a unique index on exactly the keys.

    ``history`` is the table that keeps every change (by default that of the target with ``_history``, made if it is not
    there): the target's columns, ``execution_time``, and the flag of deleted rows.
    """
    import psycopg

    writer = StatefulMerger(keys, sequence, deleted, delete)
    at, target = parse_time(execution_time), TableName.parse(table)
    kept = TableName.parse(history) if history else target.beside(f"{target.name}_history")
    what = f"{connection.name}: {target}"
    writer.check(df, what)
    rows = df if sequence is None else keep_last_change(df, keys=keys, sequence=sequence)
    # In order of execution the later change counts, whatever its sequence: so it is in the lake.
    changes = ChangeHistory(target, kept, what, KeyedChanges(tuple(keys), None, deleted, delete), at)
    arguments = connection_arguments(connection)
    stage = Stage(stage_name(target, secrets.token_hex(8), 1), target, what)
    extra = {deleted: "boolean"} if deleted else {}
    try:
        with connect(arguments) as session, staging(session, stage, rows.columns, extra=extra):
            stage.fill(rows, arguments)
            with settled_transaction(session, arguments, what=what):
                stage.refuse_incomplete(session)
                undone = changes.take_back(session, stage.columns)
                metrics = changes.merge(session, stage)
                lacking = tuple(changes.missing(session, undone))
                return RebuiltMerge(bool(undone), lacking, sum(metrics[name] for name in _CHANGED))
    except psycopg.Error as error:
        explained = explain_database_error(error, what=what, effect="Nothing was written.")
        raise explained from explained.__cause__
