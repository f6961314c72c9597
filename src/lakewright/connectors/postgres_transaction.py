"""One attempt's write to a table of PostgreSQL: shape, stage, then everything that counts in one transaction.

Order: the ledger says whether the attempt was overtaken; the table is made or gains columns; the executors send the
rows into staging; then, in one transaction, the slice's row of the ledger is locked and its number raised, the rows
are counted, the slice is replaced or its changes are applied, staging is dropped (unless a backup reads it: then a
later write drops it), and the ledger's log is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import (
    ConnectionArguments,
    Session,
    TableName,
    connect,
    connection_arguments,
)
from lakewright.connectors.postgres_errors import explain_database_error, state_of
from lakewright.connectors.postgres_ledger import Ledger
from lakewright.connectors.postgres_partitions import RangePartitions, ensure_partitions
from lakewright.connectors.postgres_shape import fit_table
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.errors import LeaseHeldError
from lakewright.failpoints import failpoint
from lakewright.model.connections import Connection
from lakewright.model.identity import Identity
from lakewright.model.outside import KeyedChanges
from lakewright.model.receipts import Change, Commit
from lakewright.model.slices import ANY_CELL, Slice

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame

__all__ = ["Transaction"]


class _OvertakenError(Exception):
    """Ends the transaction without a change: a higher number is in the ledger."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is written, where, and by whom."""

    connection: Connection
    table: TableName
    dataset: str
    identity: Identity
    frame: DataFrame
    what: str
    still_mine: Callable[[], bool]
    adopt: bool = False
    partitions: RangePartitions | None = None
    changes: KeyedChanges | None = None

    def write(self, operation: str, change: Callable[[Session, Stage], Mapping[str, int]]) -> Commit | None:
        """Runs the job and the transaction; None, without a change, where a newer attempt was first."""
        import psycopg

        arguments = connection_arguments(self.connection)
        stage = Stage(stage_name(self.table, self.identity.app_id, self.identity.number), self.table, self.what)
        committing = False
        try:
            with connect(arguments) as session:
                if not self._prepare(session):
                    return None
                with staging(session, stage, self.frame.columns, extra=self._extra()):
                    stage.fill(self.frame, arguments)
                    failpoint("staged")
                    if self.partitions is not None:
                        ensure_partitions(session, self.table, stage, self.partitions)
                    with session.transaction():
                        commit = self._change(session, stage, operation, change)
                        committing = True
                    committing = False
                    failpoint(f"committed.{self.identity.part}")
                    return commit
        except _OvertakenError:
            return None
        except psycopg.Error as error:
            if committing and state_of(error)[:2] in ("08", "57"):
                return self._settle(arguments, error)
            explained = explain_database_error(error, what=self.what, effect="Nothing was written.")
            raise explained from explained.__cause__

    def _prepare(self, session: Session) -> bool:
        """Bring the table into shape; False where the attempt was overtaken, so that nothing need be sent."""
        ledger = Ledger(self.table, self.dataset)
        with session.transaction():
            ledger.create(session)
            if ledger.is_overtaken(session, self.identity):
                return False
            if not self.still_mine():
                raise self._lost_lease()
            fit_table(
                session,
                ledger,
                self.frame.schema,
                adopt=self.adopt,
                keys=() if self.changes is None else self.changes.keys,
                optional=self._optional(),
                partitions=self.partitions,
            )
        return True

    def _change(
        self, session: Session, stage: Stage, operation: str, change: Callable[[Session, Stage], Mapping[str, int]]
    ) -> Commit:
        ledger = Ledger(self.table, self.dataset)
        if not ledger.take(session, self.identity):
            raise _OvertakenError
        if not self.still_mine():
            raise self._lost_lease()
        stage.refuse_incomplete(session)
        metrics = change(session, stage)
        stage.drop(session)
        return ledger.append(
            session, self.identity, operation=operation, metrics=metrics, touched=self._touched(metrics)
        )

    def _settle(self, arguments: ConnectionArguments, error: psycopg.Error) -> Commit:
        """The answer to the commit was lost: the ledger knows whether it was made."""
        import psycopg

        ledger = Ledger(self.table, self.dataset)
        effect = "It is not known whether it was committed; the next attempt makes the slice again, or finds it made."
        try:
            # Whoever holds the slice's row has ended, one way or the other, once we have it.
            with connect(arguments) as session, session.transaction():
                ledger.lock(session, self.identity)
                found = ledger.find(session, self.identity)
        except psycopg.Error as second:
            explained = explain_database_error(second, what=self.what, effect=effect)
            raise explained from explained.__cause__
        if found is not None:
            return found
        explained = explain_database_error(error, what=self.what, effect="Nothing was written.")
        raise explained from explained.__cause__

    def _optional(self) -> tuple[str, ...]:
        """The flag of deleted rows need not be a column of the table, unless it marks them there."""
        marked = self.changes is not None and self.changes.delete == "soft"
        return () if marked else tuple(self._extra())

    def _extra(self) -> dict[str, str]:
        """The flag of deleted rows, which staging needs in any case."""
        flag = None if self.changes is None else self.changes.deleted
        return {} if flag is None else {flag: "boolean"}

    def _touched(self, metrics: Mapping[str, int]) -> dict[str, Change]:
        slice_ = Slice.parse(self.identity.slice_id)
        if self.changes is not None:
            return {ANY_CELL: Change(added=None, removed=None)}
        cell = slice_.value if slice_.kind == "event" else ANY_CELL
        return {cell: Change(metrics["numOutputRows"], metrics["numDeletedRows"])}

    def _lost_lease(self) -> LeaseHeldError:
        return LeaseHeldError(
            f"{self.what}: another run has taken over. Nothing was written.",
            name=self.dataset,
            owner="another run",
        )
