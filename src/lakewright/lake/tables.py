"""One table of the lake, opened for one attempt of one step.

Guarantee:
    Each call makes at most one commit of data, and that commit carries the attempt's identity: its JSON in
    ``userMetadata`` and its number as the transaction's version, so that Delta skips it if a newer attempt
    was there first. What the commit did is read back from the log, never from a second job. How long the table is
    to keep its versions is told before that, in a commit without data, where the table says otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakewright.errors import LeaseHeldError
from lakewright.failpoints import failpoint
from lakewright.lake.delta_errors import explain_write_error
from lakewright.lake.locks import TableLocks
from lakewright.lake.log import DeltaLog
from lakewright.model.ddl import type_text
from lakewright.model.identity import Identity
from lakewright.model.overwrites import only_within, overwriting
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

__all__ = ["AttemptTable"]

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP_ID = "spark.databricks.delta.write.txnAppId"
_APP_VERSION = "spark.databricks.delta.write.txnVersion"
_CHECK_ROWS = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
_RETENTION = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
"""What may be declared anew of a table that is there: it says how long versions are kept, and changes no file.

A change feed tells nothing of the commits before it, and deletion vectors shut out older readers: people turn them on.
"""


class AttemptTable:
    """Fulfils ``model.protocols.Table``."""

    def __init__(
        self,
        path: str,
        *,
        spark: SparkSession,
        log: DeltaLog,
        identity: Identity,
        locks: TableLocks,
        properties: Mapping[str, str] | None = None,
        still_mine: Callable[[], bool] = lambda: True,
        written: set[str] | None = None,
    ) -> None:
        self._path = path
        self._spark = spark
        self.identity = identity
        self._locks = locks
        self._properties = dict(properties or {})
        self._still_mine = still_mine
        self._written = set() if written is None else written
        self.log = log

    @property
    def path(self) -> str:
        return self._path

    @property
    def spark(self) -> SparkSession:
        return self._spark

    @property
    def has_written(self) -> bool:
        """Whether a write of this part has gone through, also where nobody could read its commit afterwards."""
        return self.identity.part in self._written

    def exists(self) -> bool:
        return self.log.exists()

    def schema(self) -> StructType:
        return self.log.schema() or self.read().schema

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        """Runs a job that replaces the rows that fulfil ``where`` by the frame's; None where Delta skipped it.

        ``within`` says that the frame was made to fulfil it, so that not each row is looked at once more.
        """
        self._keep_as_declared()

        def write() -> None:
            new = not self.exists()
            rows = only_within(frame, where) if new and where != "true" and not within else frame
            writer = overwriting(rows)
            if new:
                writer = writer.options(**self._properties)
            if partition_by:
                writer = writer.partitionBy(*partition_by)
            # "true" would be a full overwrite that may also change the schema: say what is meant instead.
            (writer if where == "true" else writer.option("replaceWhere", where)).save(self._path)

        return self._commit(write, where=where, settings={_CHECK_ROWS: "false"} if within else {})

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        """Runs a MERGE of the frame (``s``) into the table (``t``); None where Delta skipped it."""
        if not self.exists():
            self.create(frame.schema, partition_by=partition_by)
        self._keep_as_declared()

        def write() -> None:
            view = f"lw_{uuid.uuid4().hex}"
            frame.createOrReplaceTempView(view)
            try:
                self._spark.sql(f"MERGE INTO delta.`{self._path}` t USING {view} s ON {on} {clauses}")
            finally:
                self._spark.catalog.dropTempView(view)

        commit = self._commit(write)
        # A MERGE that changes nothing may leave no commit; an empty one then holds the receipt.
        return commit if commit is not None else self.touch()

    def append(self, frame: DataFrame, *, partition_by: Sequence[str] = ()) -> Commit | None:
        """Runs a job that adds a micro-batch; None where it was added before."""
        self._keep_as_declared()

        def write() -> None:
            writer = frame.write.format("delta").mode("append")
            if not self.exists():
                writer = writer.options(**self._properties)
            (writer.partitionBy(*partition_by) if partition_by else writer).save(self._path)

        return self._commit(write)

    def rewrite(self, frame: DataFrame, *, partition_by: Sequence[str]) -> Commit | None:
        """Runs a job that replaces all rows and the layout by the frame's; None where Delta skipped it."""

        def write() -> None:
            writer = overwriting(frame).option("overwriteSchema", "true")
            writer.partitionBy(*partition_by).save(self._path)

        return self._commit(write)

    def delete(self, where: str) -> Commit | None:
        """Runs a job that deletes rows; an empty commit holds the receipt where there were none."""

        def write() -> None:
            self._spark.sql(f"DELETE FROM delta.`{self._path}` WHERE {where}")

        commit = self._commit(write)
        return commit if commit is not None else self.touch()

    def touch(self) -> Commit | None:
        """Commit nothing but the identity (a fence, or the proof that a step found nothing to do)."""

        def write() -> None:
            self.read().limit(0).write.format("delta").mode("append").save(self._path)

        return self._commit(write)

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> Commit | None:
        """Make the empty table, so that what follows has something to merge into."""

        def write() -> None:
            empty = self._spark.createDataFrame([], schema)
            writer = empty.write.format("delta").mode("ignore").options(**self._properties)
            (writer.partitionBy(*partition_by) if partition_by else writer).save(self._path)

        return self._as("schema", "create")._commit(write)

    def add_columns(self, columns: Sequence[StructField]) -> Commit | None:
        """Add columns as nullable, in a schema commit of its own before the data; None where they are there."""

        def write() -> None:
            # Asked again: a slice that is made beside this one may have added them by now.
            there = {name.lower() for name in self.schema().names}
            new = ", ".join(
                f"{quoted(one.name)} {type_text(one.dataType)}" for one in columns if one.name.lower() not in there
            )
            if new:
                self._spark.sql(f"ALTER TABLE delta.`{self._path}` ADD COLUMNS ({new})")

        with self._locks.creating(self._path):
            return self._as("schema", "columns")._commit(write)

    def drop_columns(self, columns: Sequence[str]) -> Commit | None:
        """Runs a job that rewrites the table without some columns: none of its files holds them any more."""
        kept = self.read().drop(*columns)
        partitions = [name for name in self.log.partition_columns() or () if name not in columns]

        def write() -> None:
            writer = overwriting(kept).option("overwriteSchema", "true")
            writer.partitionBy(*partitions).save(self._path)

        return self._as("schema", "columns")._commit(write)

    def restore(self, version: int) -> Commit | None:
        """Go back to a version. RESTORE takes no identity: the lease is checked once more directly before it."""

        def write() -> None:
            self._spark.sql(f"RESTORE TABLE delta.`{self._path}` TO VERSION AS OF {version}")

        return self._commit(write, fenced=False)

    def optimize(self, *, where: str | None, settings: Mapping[str, str]) -> Commit | None:
        """Runs a job that joins small files; None where there were none. The rows stay as they are.

        OPTIMIZE takes no identity that Delta could compare: a late one joins files that are still there, or fails.
        """
        condition = "" if where is None else f" WHERE {where}"

        def write() -> None:
            self._spark.sql(f"OPTIMIZE delta.`{self._path}`{condition}")

        return self._commit(write, fenced=False, settings=settings)

    def _keep_as_declared(self) -> None:
        """Let the table keep its versions for as long as is declared now, in a commit of its own before the data."""
        if not self._declared_anew():
            return

        def write() -> None:
            # Asked once more under the lock: the slice beside this one may have said it already.
            if anew := self._declared_anew():
                listed = ", ".join(f"'{name}' = '{value}'" for name, value in anew.items())
                self._spark.sql(f"ALTER TABLE delta.`{self._path}` SET TBLPROPERTIES ({listed})")

        self._as("schema", "properties")._commit(write)
        failpoint("history_declared")

    def _declared_anew(self) -> dict[str, str]:
        wanted = {name: self._properties[name] for name in _RETENTION if name in self._properties}
        if not wanted or not self.exists():
            return {}
        told = self.log.properties()
        if told is None:  # an object store, or a log that was cleaned of it
            rows = self._spark.sql(f"SHOW TBLPROPERTIES delta.`{self._path}`").collect()
            told = {row["key"]: row["value"] for row in rows}
        return {name: value for name, value in wanted.items() if told.get(name) != value}

    def telling(self, **details: str) -> AttemptTable:
        """The same table, whose commits tell more than who wrote them."""
        return self._under(replace(self.identity, details={**self.identity.details, **details}))

    def _as(self, kind: str, part: str) -> AttemptTable:
        return self._under(self.identity.as_part(f"{self.identity.part}:{part}", "schema"))

    def _under(self, identity: Identity) -> AttemptTable:
        return AttemptTable(
            self._path,
            spark=self._spark,
            log=self.log,
            identity=identity,
            locks=self._locks,
            properties=self._properties,
            still_mine=self._still_mine,
            written=self._written,
        )

    def _commit(
        self,
        write: Callable[[], None],
        *,
        where: str | None = None,
        fenced: bool = True,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Commit | None:
        metadata = self.identity.to_json()
        alone = nullcontext() if self.exists() else self._locks.creating(self._path)
        with alone, self._locks.hold(self._path):
            if not self._still_mine():
                raise LeaseHeldError(
                    f"{self.identity.dataset}, slice {self.identity.slice_id}: another run has taken over. "
                    "Nothing was written.",
                    name=self.identity.dataset,
                    owner="another run",
                )
            before = self.log.latest()
            with self._identified(metadata, fenced=fenced, settings=settings):
                try:
                    write()
                except Exception as error:
                    explained = explain_write_error(error, dataset=self.identity.dataset, path=self._path, where=where)
                    if explained is None:
                        raise
                    raise explained from error
            self._written.add(self.identity.part)
            failpoint(f"committed.{self.identity.part}")
            for commit in self.log.commits(after=before):
                if commit.metadata == metadata:
                    return commit
        return None

    @contextmanager
    def _identified(self, metadata: str, *, fenced: bool, settings: Mapping[str, str]) -> Iterator[None]:
        # These settings exist only on the child session of this worker thread, and only during the commit: a
        # step that writes to Delta by itself must not carry our number.
        conf = self._spark.conf
        chosen = {_METADATA: metadata, **settings}
        if fenced:
            app_id, version = self.identity.transaction
            chosen |= {_APP_ID: app_id, _APP_VERSION: str(version)}
        for name, value in chosen.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name in chosen:
                conf.unset(name)
