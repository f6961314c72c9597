"""A table of PostgreSQL as the destination of a dataset: ``into=PostgresTable("blog_db", "daily_pages")``.

Guarantee:
    A slice is replaced (or its changes are applied) in one transaction, which also writes the ledger's row. Killed,
    cut off or overtaken at any moment, the table holds each slice once, as its last attempt made it: what was committed
    is found in the ledger, what was not is rolled back by the server, and a late transaction of an attempt that was
    overtaken is refused.
Consequences:
    - The table gets the column ``_lw_event`` or ``_lw_arrival`` (indexed), which tells slices apart, where the writer
      replaces slices. Beside it lie ``_lw_ledger`` and ``_lw_ledger_log``: leave them to Lakewright.
    - Somebody else's table is refused unless ``adopt=True``. Rows that were there before belong to no slice and stay,
      unless the dataset has one slice, the whole.
    - It cannot be rolled back, and no step reads it: declare it as a source (``Jdbc``) of its own for that.
    - The user needs the right to create tables in the schema (staging and ledger).
    - A connection pooler must keep sessions together (PgBouncer: ``pool_mode = session``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import TableName
from lakewright.connectors.postgres_opened import OpenedRelation, PostgresDestination
from lakewright.connectors.postgres_partitions import RangePartitions
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connections
from lakewright.model.identity import RESTORE_PART
from lakewright.model.outside import KeyedChanges
from lakewright.model.protocols import Writer

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from pyspark.sql import DataFrame

    from lakewright.connectors.postgres_connection import Session
    from lakewright.connectors.postgres_staging import Stage
    from lakewright.connectors.postgres_transaction import Transaction
    from lakewright.model.receipts import Commit
    from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer
    from lakewright.patterns.data_value.fifo_orderer import FifoOrderer

__all__ = ["PostgresTable", "RangePartitions"]

_NAME = re.compile(r"(?:[^.\x00]{1,63}\.)?[^.\x00]{1,63}")


@dataclass(frozen=True, slots=True)
class PostgresTable(PostgresDestination):
    """A table (``daily_pages`` or ``reports.daily_pages``) of a connection in ``lakewright.toml``."""

    connection: str
    table: str
    adopt: bool = False
    partition_by_range: RangePartitions | None = None
    view: str | None = None
    """A view of the table without the columns of Lakewright's own, which readers get instead of it."""
    readers: Sequence[str] = ()
    """The roles that may read the view; the table itself is denied to them, and to everybody by default."""
    order: FifoOrderer | BinPackOrderer | None = None
    """The order in which the rows of a slice are inserted: an identity column of the table rises in it."""

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("PostgresTable: name the connection, as [connections.NAME] declares it.")
        if not _NAME.fullmatch(self.table) or TableName.parse(self.table).name.startswith("_lw_"):
            raise ConfigurationError(
                f"PostgresTable: '{self.table}' is no name for a table. Write daily_pages or reports.daily_pages."
            )
        if self.view is not None and (not _NAME.fullmatch(self.view) or self.view == self.table):
            raise ConfigurationError(f"PostgresTable: '{self.view}' is no name for a view of {self.table}.")
        if self.readers and self.view is None:
            raise ConfigurationError("PostgresTable: 'readers' read a view, and no 'view' is named.")
        object.__setattr__(self, "readers", tuple(self.readers))

    @property
    def relation(self) -> str:
        return self.table

    @property
    def opened_as(self) -> type[OpenedTable]:
        return OpenedTable

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse a history, which needs a MERGE of Delta's, and keys that PostgreSQL could not keep apart."""
        if getattr(writer, "history", None) is not None:
            raise ConfigurationError(
                f"{dataset}: a history (Scd2) cannot be written to PostgreSQL yet.",
                hint="Keep the history in a dataset of the lake, and send what is current: a step that reads it with "
                "writer=Merger(keys=[...]), into=PostgresTable(...).",
            )
        if getattr(writer, "restores", False) and self.adopt:
            raise ConfigurationError(
                f"{dataset}: StatefulMerger rebuilds the table from its history, which does not tell of the rows of a "
                "table that was adopted.",
                hint="Leave adopt=True out and let it begin with a table of its own.",
            )
        keys = getattr(writer, "keys", None)
        if self.order is not None and not getattr(writer, "replaces_slice", False):
            raise ConfigurationError(
                f"{dataset}: rows that are merged by key have no order of their own.",
                hint="Leave order out, or use writer=DataOverwrite(): each slice is inserted in its order.",
            )
        ranges = self.partition_by_range
        if keys is not None and ranges is not None and ranges.by not in keys:
            raise ConfigurationError(
                f"{dataset}: PostgreSQL keeps keys apart only within a partition, so '{ranges.by}' has to be one of "
                f"the keys ({', '.join(keys)}).",
                hint="Add it to the keys, or leave partition_by_range out.",
            )

    def maintain(self, dataset: str, *, connections: Connections, dry_run: bool, now: datetime) -> tuple[bool, str]:
        """VACUUM the table and its ledger; returns what PostgreSQL tells of it."""
        from lakewright.connectors.postgres_vacuum import vacuum_postgres

        connection, name = self._connection(dataset, connections), TableName.parse(self.table)
        done = vacuum_postgres(connection, self.table, dry_run=dry_run)
        for ledger in ("_lw_ledger", "_lw_ledger_log"):
            vacuum_postgres(connection, str(name.beside(ledger)), dry_run=dry_run)
        word = f"{done.dead_rows_before:,} dead rows" + (" to vacuum" if dry_run else " vacuumed")
        return True, f"{word}, {done.bytes_after:,} bytes on disk"


class OpenedTable(OpenedRelation[PostgresTable]):
    """A `PostgresTable` opened for one attempt: fulfils ``OutsideTable``, ``MergesRows`` and ``RestoresRows``."""

    def exists(self) -> bool:
        from lakewright.connectors.postgres_connection import connecting
        from lakewright.connectors.postgres_shape import stored_columns

        with connecting(self._connection, what=self._what) as session:
            return stored_columns(session, self._relation) is not None

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that replaces the rows that fulfil ``where``; None where a newer attempt was first."""
        from lakewright.connectors.postgres_write import replace_staged

        def change(session: Session, stage: Stage) -> Mapping[str, int]:
            done = replace_staged(session, stage, where=where, within=within, order=self._in_order(session, stage))
            self._show(session)
            return done

        return self._writing(frame).write("DELETE AND INSERT", change)

    def merge_rows(self, frame: DataFrame, changes: KeyedChanges) -> Commit | None:
        """Runs a job that applies changes by key; None where a newer attempt was first."""
        from lakewright.connectors.postgres_write import merge_staged

        def change(session: Session, stage: Stage) -> Mapping[str, int]:
            done = merge_staged(session, stage, changes)
            self._show(session)
            return done

        return self._writing(frame, changes).write("INSERT ON CONFLICT", change)

    def merge_rows_restoring(
        self, frame: DataFrame, changes: KeyedChanges, *, execution: str, back_to: int | None
    ) -> Commit | None:
        """Runs a job that takes the table back to what it was before an execution, and applies its changes, in one
        transaction; None where a newer attempt was first.

        The ledger tells of both. ``back_to`` is the position that the receipts know; where the history knows better,
        all slices are told to be made again.
        """
        from lakewright.connectors.postgres_change_history import ChangeHistory
        from lakewright.connectors.postgres_ledger import Ledger

        kept = self._relation.beside(f"{self._relation.name}_history")
        order = {"column": "_lw_execution", "kind": 'text COLLATE "C"'}
        history = ChangeHistory(self._relation, kept, self._what, changes, execution, **order)

        def change(session: Session, stage: Stage) -> Mapping[str, int]:
            if history.take_back(session, stage.columns) or back_to is not None:
                details = {"restored_to": -1 if back_to is None else back_to}
                went_back = replace(self._identity, kind="restore", part=RESTORE_PART, inputs={}, details=details)
                Ledger(self._relation, self._dataset).append(
                    session, went_back, operation="RESTORE", metrics={}, touched={}
                )
            done = history.merge(session, stage)
            self._show(session)
            return done

        return self._writing(frame, changes).write("INSERT ON CONFLICT", change)

    def touch(self) -> Commit | None:
        """Record the attempt's number and identity, without rows: what a fence is."""
        from lakewright.connectors.postgres_connection import connecting
        from lakewright.connectors.postgres_ledger import Ledger

        ledger = Ledger(self._relation, self._dataset)
        told = connecting(self._connection, what=self._what, effect="Nothing was written.")
        with told as session, session.transaction():
            ledger.create(session)
            if not ledger.take(session, self._identity):
                return None
            return ledger.append(session, self._identity, operation="FENCE", metrics={}, touched={})

    def _in_order(self, session: Session, stage: Stage) -> str:
        from lakewright.connectors.postgres_in_order import order_by

        order = self._destination.order
        return "" if order is None else order_by(session, stage, order)

    def _show(self, session: Session) -> None:
        from lakewright.connectors.postgres_hidden import show_through_view

        if (view := self._destination.view) is not None:
            show_through_view(session, self._relation, TableName.parse(view), readers=self._destination.readers)

    def _writing(self, frame: DataFrame, changes: KeyedChanges | None = None) -> Transaction:
        from lakewright.connectors.postgres_transaction import Transaction

        return Transaction(
            self._connection,
            self._relation,
            self._dataset,
            self._identity,
            frame,
            what=self._what,
            still_mine=self._still_mine,
            adopt=self._destination.adopt,
            partitions=self._destination.partition_by_range,
            changes=changes,
        )
