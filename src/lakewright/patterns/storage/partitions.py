"""What each partition of a Delta table holds: rows, files, bytes and the time of its last change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Partition", "list_partitions"]


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as it stands."""

    values: Mapping[str, object]
    rows: int
    files: int
    bytes: int
    last_update: datetime


def list_partitions(spark: SparkSession, path: str) -> list[Partition]:
    """Runs a job over the table's file metadata (no column is read); the partitions in order of their values."""
    from pyspark.sql import functions as F

    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").select("partitionColumns").first()
    names: list[str] = list(detail[0]) if detail is not None else []
    if not names:
        raise ConfigurationError(f"Horizontal Partitioner: the table {path} has no partitions.")
    keys = [F.col(f"`{name}`") for name in names]
    files = (
        spark.read.format("delta")
        .load(path)
        .select(*keys, "_metadata.file_path", "_metadata.file_size", "_metadata.file_modification_time")
        .groupBy(*names, "file_path")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.first("file_size").alias("size"),
            F.max("file_modification_time").alias("at"),
        )
    )
    found = (
        files.groupBy(*names)
        .agg(
            F.sum("rows").alias("_rows"),
            F.count(F.lit(1)).alias("_files"),
            F.sum("size").alias("_bytes"),
            F.max("at").alias("_at"),
        )
        .orderBy(*keys)
    )
    return [
        Partition({name: row[name] for name in names}, row["_rows"], row["_files"], row["_bytes"], row["_at"])
        for row in found.collect()
    ]
