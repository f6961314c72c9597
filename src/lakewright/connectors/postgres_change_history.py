"""Every change of a table of PostgreSQL with the execution that brought it, and the table as it was before one of them.

Each call is part of the caller's transaction: table and history change together, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakewright.connectors.postgres_connection import Session, TableName, ask, beside_values, quoted
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.connectors.postgres_staging import Stage
from lakewright.connectors.postgres_write import Metrics, merge_staged
from lakewright.errors import ConfigurationError, SchemaChangeError
from lakewright.model.columns import SYSTEM_PREFIX
from lakewright.model.outside import KeyedChanges
from lakewright.patterns.idempotency.going_back import LOG

__all__ = ["ChangeHistory"]


@dataclass(frozen=True, slots=True)
class ChangeHistory:
    """One execution: where it goes, and how its changes are applied."""

    target: TableName
    history: TableName
    what: str
    changes: KeyedChanges
    at: Any
    """The execution's place among the others: a time, or a text that sorts."""
    column: str = "execution_time"
    kind: str = "timestamptz"

    def take_back(self, session: Session, columns: Sequence[str]) -> list[Any]:
        """Take away what this execution and later ones have brought; returns which, in order.

        ``columns`` are those of the changes: a rebuild knows nothing of others, and leaves them to the database.
        """
        self._fit(session)
        self._refuse_lacking(session, columns)
        # One execution at a time; readers of both tables go on.
        ask(session, f"LOCK TABLE {self.history.sql} IN SHARE ROW EXCLUSIVE MODE")
        held = beside_values(self.history.sql)
        asked = f"SELECT DISTINCT {self.column} FROM {held} WHERE {self.column} >= %s ORDER BY 1"
        undone = [row[0] for row in ask(session, asked, (self.at,)).fetchall()]
        if undone:
            self._refuse_forgetting(session, columns)
            self._rebuild(session, columns)
        listed = ", ".join(map(str, undone))
        LOG.info("%s: %s: %s", self.what, self.at, f"rebuilt without {listed}." if undone else "nothing to rebuild.")
        return undone

    def merge(self, session: Session, stage: Stage) -> Metrics:
        """Add the staged changes to the history, and apply them."""
        columns = beside_values(", ".join(quoted(name) for name in stage.columns))
        into, rows = beside_values(self.history.sql), beside_values(stage.rows())
        ask(session, f"INSERT INTO {into} ({columns}, {self.column}) SELECT {columns}, %s FROM {rows}", (self.at,))
        return merge_staged(session, stage, self.changes)

    def _fit(self, session: Session) -> None:
        """Make the history like its target, or give it the columns that the target has gained."""
        wanted = {column.name: column.kind for column in (stored_columns(session, self.target) or {}).values()}
        if self.changes.deleted:
            wanted.setdefault(self.changes.deleted, "boolean")
        if (stored := stored_columns(session, self.history)) is not None:
            for name in [name for name in wanted if name not in stored]:
                ask(session, f"ALTER TABLE {self.history.sql} ADD COLUMN {quoted(name)} {wanted[name]}")
            return
        row = ask(session, f"SELECT EXISTS (SELECT 1 FROM {self.target.sql})").fetchone()
        if row is not None and row[0]:
            raise ConfigurationError(
                f"{self.what}: the table holds rows that no history tells of; a rebuild would lose them. "
                "Nothing was written.",
                hint=f"Put them into {self.history} as the first execution, or begin with an empty table.",
            )
        listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
        ask(session, f"CREATE TABLE {self.history.sql} ({listed}, {self.column} {self.kind} NOT NULL)")
        ask(session, f"CREATE INDEX ON {self.history.sql} ({self.column})")

    def missing(self, session: Session, undone: Sequence[Any]) -> list[Any]:
        """Note what was taken away, until it is merged again; returns all that the table lacks, in order.

        Within the transaction that takes it away: a caller that dies before it hears the answer asks again.
        """
        noted = self.history.beside(f"{self.history.name}_missing")
        ask(session, f"CREATE TABLE IF NOT EXISTS {noted.sql} ({self.column} {self.kind} PRIMARY KEY)")
        table = beside_values(noted.sql)
        for one in undone:
            ask(session, f"INSERT INTO {table} VALUES (%s) ON CONFLICT DO NOTHING", (one,))
        ask(session, f"DELETE FROM {table} WHERE {self.column} = %s", (self.at,))
        return [row[0] for row in ask(session, f"SELECT {self.column} FROM {noted.sql} ORDER BY 1").fetchall()]

    def _refuse_lacking(self, session: Session, columns: Sequence[str]) -> None:
        stored = (stored_columns(session, self.target) or {}).values()
        lacking = [one.name for one in stored if one.name not in columns and not one.filled]
        if lacking := [name for name in lacking if not name.startswith(SYSTEM_PREFIX)]:
            raise SchemaChangeError(
                f"{self.what}: the changes have no column {', '.join(lacking)}, which a rebuild from them would empty. "
                "Nothing was written.",
                hint="Bring it with each change, drop it from the table, or let the database fill it by a DEFAULT.",
            )

    def _refuse_forgetting(self, session: Session, columns: Sequence[str]) -> None:
        """Refuse to give a column its DEFAULT again for which earlier executions have brought values."""
        for one in (stored_columns(session, self.target) or {}).values():
            if not one.filled or one.name in columns:
                continue
            brought = f"{self.column} < %s AND {beside_values(quoted(one.name))} IS NOT NULL"
            asked = f"SELECT 1 FROM {beside_values(self.history.sql)} WHERE {brought} LIMIT 1"
            if ask(session, asked, (self.at,)).fetchone() is not None:
                raise SchemaChangeError(
                    f"{self.what}: the changes have no column {one.name}, which earlier ones have brought: a rebuild "
                    "would put the DEFAULT in the place of their values. Nothing was written.",
                    hint="Bring it with each change.",
                )

    def _rebuild(self, session: Session, brought: Sequence[str]) -> None:
        """Go back to the last change of each key before this execution."""
        ask(session, f"DELETE FROM {beside_values(self.history.sql)} WHERE {self.column} >= %s", (self.at,))
        ask(session, f"DELETE FROM {self.target.sql}")
        stored = [name for name in stored_columns(session, self.target) or {} if name in brought]
        flag = self.changes.deleted
        columns = ", ".join(quoted(name) for name in stored)
        values = ", ".join(
            f"coalesce(last.{quoted(name)}, false)" if name == flag else f"last.{quoted(name)}" for name in stored
        )
        keys = ", ".join(quoted(key) for key in self.changes.keys)
        ask(
            session,
            f"INSERT INTO {self.target.sql} ({columns}) SELECT {values} FROM (SELECT DISTINCT ON ({keys}) * "
            f"FROM {self.history.sql} ORDER BY {keys}, {self.column} DESC) AS last WHERE {self._stays()}",
        )

    def _stays(self) -> str:
        """Which last changes are rows of the table: not the deleted ones; softly, those that were ever there."""
        flag = self.changes.deleted
        if flag is None:
            return "true"
        alive = f"NOT coalesce(last.{quoted(flag)}, false)"
        if self.changes.delete == "hard":
            return alive
        same = " AND ".join(f"earlier.{quoted(key)} = last.{quoted(key)}" for key in self.changes.keys)
        alive_then = f"NOT coalesce(earlier.{quoted(flag)}, false)"
        return f"({alive} OR EXISTS (SELECT 1 FROM {self.history.sql} AS earlier WHERE {same} AND {alive_then}))"
