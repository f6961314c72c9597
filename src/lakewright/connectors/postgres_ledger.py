"""The ledger: what a Delta log is to a table of the lake, for a table of PostgreSQL.

It lies beside the table, in the same database, so that a row of it is written by the very transaction that writes the
data. ``_lw_ledger`` has a row per dataset, slice and part with the highest number; ``_lw_ledger_log`` one per
transaction that counted, at a rising position per dataset.

Guarantee:
    Whoever writes takes the slice's row first, and is refused unless its number is higher: a transaction of an attempt
    that was overtaken changes nothing, however late it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from lakewright.connectors.postgres_connection import Session, TableName, ask, connecting
from lakewright.errors import TargetError
from lakewright.model.connections import Connection
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit

__all__ = ["Ledger", "PostgresLog"]

_MAKING = 0x6C775F6C6564  # "lw_led": an advisory lock, since two sessions cannot make the same table at once


class Ledger:
    """The ledger's rows of one dataset in one table; every call is part of the caller's transaction."""

    def __init__(self, table: TableName, dataset: str) -> None:
        self.table = table
        self.dataset = dataset
        self._numbers = table.beside("_lw_ledger").sql
        self._log = table.beside("_lw_ledger_log").sql
        self._key = (table.name, dataset)

    def create(self, session: Session) -> None:
        """Make the two tables where they are not there yet."""
        if self.exists(session):
            return
        ask(session, f"SELECT pg_advisory_xact_lock({_MAKING})")
        ask(
            session,
            f"CREATE TABLE IF NOT EXISTS {self._numbers} (target text, dataset text, slice text, part text, "
            "number bigint NOT NULL, PRIMARY KEY (target, dataset, slice, part))",
        )
        ask(
            session,
            f"CREATE TABLE IF NOT EXISTS {self._log} (target text, dataset text, position bigint, "
            "committed_at timestamptz NOT NULL, operation text NOT NULL, identity text NOT NULL, "
            "metrics text NOT NULL, touched text NOT NULL, PRIMARY KEY (target, dataset, position))",
        )

    def exists(self, session: Session) -> bool:
        row = ask(session, "SELECT to_regclass(%s) IS NOT NULL", (self._log,)).fetchone()
        return row is not None and bool(row[0])

    def owns(self, session: Session) -> bool:
        """Whether the dataset has made or adopted the table."""
        asked = f"SELECT 1 FROM {self._numbers} WHERE (target, dataset) = (%s, %s) AND slice = '' AND part = ''"
        return ask(session, asked, self._key).fetchone() is not None

    def own(self, session: Session) -> None:
        """Note that the table is the dataset's from now on; its row also counts the positions."""
        ask(
            session,
            f"INSERT INTO {self._numbers} VALUES (%s, %s, '', '', 0) ON CONFLICT DO NOTHING",
            self._key,
        )

    def is_overtaken(self, session: Session, identity: Identity) -> bool:
        """Whether a number as high as the attempt's is recorded for its slice and part."""
        asked = f"SELECT number FROM {self._numbers} WHERE (target, dataset, slice, part) = (%s, %s, %s, %s)"
        row = ask(session, asked, (*self._key, identity.slice_id, identity.part)).fetchone()
        return row is not None and row[0] >= identity.number

    def take(self, session: Session, identity: Identity) -> bool:
        """Lock the slice's row and raise its number; False, without a change, where it is not lower."""
        taken = ask(
            session,
            f"INSERT INTO {self._numbers} AS known VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT (target, dataset, slice, part) DO UPDATE SET number = excluded.number "
            "WHERE known.number < excluded.number RETURNING number",
            (*self._key, identity.slice_id, identity.part, identity.number),
        )
        return taken.fetchone() is not None

    def shut_out(self, session: Session, identity: Identity) -> None:
        """Raise the numbers of all slices to the attempt's, which is at work on the whole dataset.

        Waits for whoever is committing one; an older attempt that only sleeps changes nothing any more.
        """
        which = "(target, dataset) = (%s, %s) AND slice <> '' AND number < %s"
        raised = f"UPDATE {self._numbers} SET number = %s WHERE {which}"
        ask(session, raised, (identity.number, *self._key, identity.number))

    def holds(self, session: Session, identity: Identity) -> bool:
        """Whether the attempt's number is still the one recorded for its slice and part."""
        asked = f"SELECT number FROM {self._numbers} WHERE (target, dataset, slice, part) = (%s, %s, %s, %s)"
        row = ask(session, asked, (*self._key, identity.slice_id, identity.part)).fetchone()
        return row is not None and row[0] == identity.number

    def lock(self, session: Session, identity: Identity) -> None:
        """Wait until nobody else is at work on the slice."""
        # The row of a slice's first write cannot be seen before its commit. To insert it waits for that, too.
        first = f"INSERT INTO {self._numbers} VALUES (%s, %s, %s, %s, 0) ON CONFLICT DO NOTHING"
        ask(session, first, (*self._key, identity.slice_id, identity.part))
        asked = f"SELECT 1 FROM {self._numbers} WHERE (target, dataset, slice, part) = (%s, %s, %s, %s) FOR UPDATE"
        ask(session, asked, (*self._key, identity.slice_id, identity.part))

    def append(
        self,
        session: Session,
        identity: Identity,
        *,
        operation: str,
        metrics: Mapping[str, int],
        touched: Mapping[str, Change],
    ) -> Commit:
        """Write the log's row: the last thing before the commit, because it holds up the other slices."""
        self.own(session)
        moved = f"UPDATE {self._numbers} SET number = number + 1 WHERE (target, dataset) = (%s, %s) AND slice = '' "
        position = ask(session, moved + "AND part = '' RETURNING number", self._key).fetchone()
        assert position is not None
        cells = {cell: [change.added, change.removed] for cell, change in touched.items()}
        row = ask(
            session,
            f"INSERT INTO {self._log} VALUES (%s, %s, %s, clock_timestamp(), %s, %s, %s, %s) RETURNING *",
            (*self._key, position[0], operation, identity.to_json(), json.dumps(dict(metrics)), json.dumps(cells)),
        ).fetchone()
        assert row is not None
        return _commit(row)

    def find(self, session: Session, identity: Identity) -> Commit | None:
        """The transaction of exactly this attempt, if it was committed."""
        asked = f"SELECT * FROM {self._log} WHERE (target, dataset, identity) = (%s, %s, %s)"
        row = ask(session, asked, (*self._key, identity.to_json())).fetchone()
        return None if row is None else _commit(row)

    def bounds(self, session: Session) -> tuple[int | None, int | None]:
        asked = f"SELECT min(position), max(position) FROM {self._log} WHERE (target, dataset) = (%s, %s)"
        row = ask(session, asked, self._key).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def commits(self, session: Session, after: int, upto: int) -> list[Commit]:
        asked = (
            f"SELECT * FROM {self._log} WHERE (target, dataset) = (%s, %s) AND position > %s AND position <= %s "
            "ORDER BY position"
        )
        return [_commit(row) for row in ask(session, asked, (*self._key, after, upto))]


class PostgresLog:
    """The ledger of one dataset as a log; each call is a short session of its own."""

    def __init__(self, connection: Connection, table: TableName, dataset: str) -> None:
        self.path = f"{connection.name}: {table}"
        self._connection = connection
        self._ledger = Ledger(table, dataset)

    def exists(self) -> bool:
        return self.latest() is not None

    def latest(self) -> int | None:
        return self.bounds()[1]

    def bounds(self) -> tuple[int | None, int | None]:
        with connecting(self._connection, what=self.path) as session:
            return self._ledger.bounds(session) if self._ledger.exists(session) else (None, None)

    def commit(self, version: int) -> Commit:
        for found in self.commits(after=version - 1, upto=version):
            return found
        raise TargetError(
            f"Position {version} of {self.path} is no longer in its ledger (_lw_ledger_log).",
            hint="Somebody deleted rows of it; `lakewright store rebuild` starts again from what is left.",
        )

    def commits(self, after: int | None = None, upto: int | None = None) -> Iterator[Commit]:
        with connecting(self._connection, what=self.path) as session:
            if not self._ledger.exists(session):
                return
            found = self._ledger.commits(session, -1 if after is None else after, 2**62 if upto is None else upto)
        yield from found


def _commit(row: tuple[Any, ...]) -> Commit:
    _, _, position, committed_at, operation, identity, metrics, touched = row
    moment: datetime = committed_at
    cells: dict[str, list[int | None]] = json.loads(touched)
    return Commit(
        version=position,
        committed_at=moment.astimezone(UTC),
        operation=operation,
        metadata=identity,
        metrics=json.loads(metrics),
        touched={cell: Change(added, removed) for cell, (added, removed) in cells.items()},
        data_change=bool(cells),
    )
