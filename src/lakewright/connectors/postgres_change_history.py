"""Every change of a table of PostgreSQL with the execution that brought it, and the table as it was before one of them.

Each call is part of the caller's transaction: table and history change together, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted
from lakewright.connectors.postgres_shape import stored_columns
from lakewright.connectors.postgres_staging import Stage
from lakewright.connectors.postgres_write import Metrics, merge_staged
from lakewright.errors import ConfigurationError
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

    def take_back(self, session: Session) -> list[Any]:
        """Take away what this execution and later ones have brought; returns which, in order."""
        self._fit(session)
        # One execution at a time; readers of both tables go on.
        ask(session, f"LOCK TABLE {self.history.sql} IN SHARE ROW EXCLUSIVE MODE")
        asked = f"SELECT DISTINCT {self.column} FROM {self.history.sql} WHERE {self.column} >= %s ORDER BY 1"
        undone = [row[0] for row in ask(session, asked, (self.at,)).fetchall()]
        if undone:
            self._rebuild(session)
        listed = ", ".join(map(str, undone))
        LOG.info("%s: %s: %s", self.what, self.at, f"rebuilt without {listed}." if undone else "nothing to rebuild.")
        return undone

    def merge(self, session: Session, stage: Stage) -> Metrics:
        """Add the staged changes to the history, and apply them."""
        columns = ", ".join(quoted(name) for name in stage.columns)
        insert = f"INSERT INTO {self.history.sql} ({columns}, {self.column}) SELECT {columns}, %s FROM {stage.rows()}"
        ask(session, insert, (self.at,))
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

    def _rebuild(self, session: Session) -> None:
        """Go back to the last change of each key before this execution."""
        ask(session, f"DELETE FROM {self.history.sql} WHERE {self.column} >= %s", (self.at,))
        ask(session, f"DELETE FROM {self.target.sql}")
        stored = stored_columns(session, self.target) or {}
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
