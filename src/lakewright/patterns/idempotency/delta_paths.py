"""A Delta table named by its path alone: what the writers need when they are used without a lake.

Nothing here carries an identity: a caller who wants one commit per batch gives ``batch`` where a function has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from lakewright.model.ddl import type_text
from lakewright.model.overwrites import only_within, overwriting
from lakewright.model.receipts import Commit
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "DeltaPath",
    "add_missing_columns",
    "last_commit",
    "newest_version",
    "partition_columns",
    "table_exists",
    "table_schema",
]

_NO_TABLE = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE")


class DeltaPath:
    """Fulfils ``model.protocols.Table`` for a plain path."""

    def __init__(self, path: str, spark: SparkSession, *, properties: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._spark = spark
        self._properties = dict(properties or {})  # of a table that a MERGE makes

    @property
    def path(self) -> str:
        return self._path

    @property
    def spark(self) -> SparkSession:
        return self._spark

    def exists(self) -> bool:
        return table_exists(self._spark, self._path)

    def schema(self) -> StructType:
        return self.read().schema

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path)

    def replace(
        self, frame: DataFrame, *, where: str, partition_by: Sequence[str] = (), within: bool = False
    ) -> Commit | None:
        rows = only_within(frame, where) if where != "true" and not within and not self.exists() else frame
        writer = overwriting(rows)
        writer = writer.partitionBy(*partition_by) if partition_by else writer
        (writer if where == "true" else writer.option("replaceWhere", where)).save(self._path)
        return last_commit(self._spark, self._path)

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> None:
        """Make the empty table, so that there is something to merge into."""
        empty = self._spark.createDataFrame([], schema).write.format("delta").mode("ignore").options(**self._properties)
        (empty.partitionBy(*partition_by) if partition_by else empty).save(self._path)

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        if not self.exists():
            self.create(frame.schema, partition_by=partition_by)
        view = f"lw_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)
        try:
            self._spark.sql(f"MERGE INTO delta.`{self._path}` t USING {view} s ON {on} {clauses}")
        finally:
            self._spark.catalog.dropTempView(view)
        return last_commit(self._spark, self._path)


def table_exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at the path; anything but "there is none" is raised."""
    return table_schema(spark, path) is not None


def table_schema(spark: SparkSession, path: str) -> StructType | None:
    """The columns of the Delta table at the path; None where there is none."""
    try:
        # Over Connect nothing is looked up before the schema is asked for.
        return spark.read.format("delta").load(path).schema
    except Exception as error:
        if any(word in str(error) for word in _NO_TABLE):
            return None
        raise


def add_missing_columns(spark: SparkSession, path: str, schema: StructType, *, but: Sequence[str] = ()) -> None:
    """Add the columns that a table lacks, as nullable, in a commit of its own; none where it lacks none."""
    present = {name.lower() for name in spark.read.format("delta").load(path).columns}
    new = [field for field in schema if field.name.lower() not in present and field.name not in but]
    if new:
        listed = ", ".join(f"{quoted(field.name)} {type_text(field.dataType)}" for field in new)
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({listed})")


def partition_columns(spark: SparkSession, path: str) -> tuple[str, ...]:
    """The columns that a table is partitioned by."""
    row = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").select("partitionColumns").first()
    return tuple(row[0]) if row is not None else ()


def newest_version(spark: SparkSession, path: str) -> int:
    """The version that a table is at."""
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").select("version").first()
    assert row is not None
    return int(row[0])


def last_commit(spark: SparkSession, path: str) -> Commit | None:
    """The newest commit of a table, from its history."""
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    return None if row is None else _commit(row)


def _commit(row: Row) -> Commit:
    metrics: Mapping[str, str] = row["operationMetrics"] or {}
    return Commit(
        version=row["version"],
        committed_at=row["timestamp"].replace(tzinfo=UTC),
        operation=row["operation"],
        metadata=row["userMetadata"],
        metrics={name: int(value) for name, value in metrics.items() if str(value).isdigit()},
        touched={},
    )
