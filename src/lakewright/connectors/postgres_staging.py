"""Staging: where rows wait, out of everybody's sight, until one transaction moves them into their table.

Guarantee:
    A staging table is shaped like its target (``LIKE``), so rows that would not fit fail before the target is
    touched. Its name carries the attempt's number. While its attempt lives, the attempt's session holds a lock on the
    name; a table whose lock is free belongs to a dead one, and the next writer of the same schema drops it. No write
    waits for that: where somebody else holds the table (a backup, the COPY of a machine that is gone), a later writer
    drops it. It is not logged, so a crash of the server empties it: the rows are counted before they are moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import (
    ConnectionArguments,
    Session,
    TableName,
    ask,
    quoted,
)
from lakewright.connectors.postgres_copy import TASK_COLUMN, TASK_SETTING, Sent, copy_rows
from lakewright.connectors.postgres_dropping import PATIENT, drop_unless_held
from lakewright.connectors.postgres_errors import explain_text
from lakewright.connectors.postgres_shape import lock_key, refuse_strangers, stored_columns
from lakewright.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Stage", "drop_dead_stages", "stage_name", "staging"]

_PREFIX = "_lw_stage_"


def stage_name(table: TableName, owner: str, number: int) -> TableName:
    """The staging table of one attempt; ``owner`` tells what it writes (dataset, slice and part).

    >>> stage_name(TableName("daily_pages"), "lw:daily_pages:2026-01-05:main", 7).name
    '_lw_stage_22306a93dcaa_7'
    """
    short = hashlib.sha256(f"{table}\0{owner}".encode()).hexdigest()[:12]
    return table.beside(f"{_PREFIX}{short}_{number}")


@dataclass(slots=True)
class Stage:
    """One staging table, and what was sent to it."""

    table: TableName
    target: TableName
    what: str
    columns: tuple[str, ...] = ()
    sent: Sent = field(default_factory=lambda: Sent((), 0))

    def fill(self, frame: DataFrame, arguments: ConnectionArguments) -> None:
        """Runs the job that sends the rows."""
        self.sent = copy_rows(frame, arguments, self.table, what=self.what)

    def rows(self) -> str:
        """The rows that count, as a table of a query."""
        return f"(SELECT * FROM {self.table.sql} WHERE {self.counted()}) AS staged"

    def counted(self) -> str:
        """The condition that tells them from those of attempts that do not count."""
        tasks = ", ".join(str(task) for task in self.sent.tasks) or "NULL"
        return f"{TASK_COLUMN} IN ({tasks})"

    def refuse_incomplete(self, session: Session) -> None:
        """Refuse to go on where rows that were sent are no longer there."""
        row = ask(session, f"SELECT count(*) FROM {self.rows()}").fetchone()
        if row is None or row[0] != self.sent.rows:
            text = f"{self.sent.rows} rows were staged and {0 if row is None else row[0]} are there: it has crashed"
            error = explain_text("57P02", text, what=self.what, effect="Nothing was written.")
            raise error from error.__cause__

    def drop(self, session: Session) -> None:
        """Drop it in the caller's transaction, so that a kill after the commit leaves none; not where it is held."""
        drop_unless_held(session, self.table)


@contextmanager
def staging(
    session: Session, stage: Stage, columns: Sequence[str], *, extra: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    """Make the staging table like its target; whatever happens, it is gone afterwards, if the server can be reached
    and nobody else holds it.

    ``extra`` names columns of the rows that the target need not have, with their types.
    """
    import psycopg

    drop_dead_stages(session, stage.table)
    _create(session, stage, columns, extra or {})
    try:
        yield stage
    finally:
        with suppress(psycopg.Error):  # the next writer drops it
            drop_unless_held(session, stage.table, wait=PATIENT)
            ask(session, f"SELECT pg_advisory_unlock({lock_key(stage.table.name)})")


def _create(session: Session, stage: Stage, columns: Sequence[str], extra: Mapping[str, str]) -> None:
    stored = stored_columns(session, stage.target)
    if stored is None:
        raise ConfigurationError(f"{stage.what}: there is no table {stage.target}. Nothing was written.")
    refuse_strangers(stage.what, columns, [*stored, *extra], stage.target)
    stage.columns = tuple(columns)
    task = f"{TASK_COLUMN} bigint NOT NULL DEFAULT current_setting('{TASK_SETTING}')::bigint"
    ask(session, f"SELECT pg_advisory_lock({lock_key(stage.table.name)})")
    with session.transaction():
        ask(session, f"DROP TABLE IF EXISTS {stage.table.sql}")
        ask(session, f"CREATE UNLOGGED TABLE {stage.table.sql} (LIKE {stage.target.sql}, {task})")
        # What the database fills by itself would be NOT NULL here, and have no value.
        for name in [name for name in stored if name not in columns]:
            ask(session, f"ALTER TABLE {stage.table.sql} DROP COLUMN {quoted(name)}")
        for name in [name for name in extra if name not in stored]:
            ask(session, f"ALTER TABLE {stage.table.sql} ADD COLUMN {quoted(name)} {extra[name]}")


def drop_dead_stages(session: Session, own: TableName) -> None:
    """Drop the staging tables of attempts that are gone, and those of the same slice that were overtaken."""
    schema = "current_schema()" if own.schema is None else "%s"
    found = ask(
        session,
        f"SELECT tablename FROM pg_tables WHERE schemaname = {schema} AND starts_with(tablename, '{_PREFIX}') "
        "AND pg_has_role(tableowner, 'USAGE')",
        () if own.schema is None else (own.schema,),
    ).fetchall()
    family, _, number = own.name.rpartition("_")
    for (name,) in found:
        its_family, _, its_number = name.rpartition("_")
        if name == own.name or not its_number.isdigit():
            continue
        overtaken = its_family == family and int(its_number) < int(number)
        if overtaken or _is_free(session, name):
            drop_unless_held(session, own.beside(name))


def _is_free(session: Session, name: str) -> bool:
    row = ask(session, f"SELECT pg_try_advisory_lock({lock_key(name)})").fetchone()
    if row is None or not row[0]:
        return False
    ask(session, f"SELECT pg_advisory_unlock({lock_key(name)})")
    return True
