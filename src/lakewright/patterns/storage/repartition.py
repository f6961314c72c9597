"""Repartition, an operation of Horizontal Partitioner: lay an existing table out by other columns.

Problem:
    Readers filter by another column than the one that was chosen once, and a table's partition columns are fixed.
Guarantee:
    One commit: a reader sees the old layout or the new one, with the same rows. They are counted before and after;
    where the figures differ, or somebody else wrote in between, the table is put back as it was.
Consequences:
    - Every row is read and written once. The old files stay until they are vacuumed, so the way back stays open.
    - A stream that follows the table sees all of its rows deleted and added.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.overwrites import overwriting
from lakewright.patterns.idempotency.delta_paths import newest_version, partition_columns, table_exists
from lakewright.patterns.storage.horizontal_partitioner import (
    HorizontalPartitioner,
    explain_null_partition,
    partition_rows,
    refuse_too_many_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Repartitioned", "repartition_table"]

_WHAT = "Repartition"


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """What a repartition did."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    rows: int
    version: int


def repartition_table(
    spark: SparkSession, path: str, *, layout: HorizontalPartitioner, drop: Sequence[str] = ()
) -> Repartitioned:
    """Runs the jobs that lay a Delta table out anew, and count its rows before and after.

    ``drop`` names columns to leave behind: those that only the old layout needed.

    >>> visits = spark.createDataFrame([("v1", "FR"), ("v2", "DE")], "visit string, country string")
    >>> visits.write.format("delta").save(folder)
    >>> repartition_table(spark, folder, layout=HorizontalPartitioner(by=["country"])).after
    ('country',)
    """
    if not table_exists(spark, path):
        raise ConfigurationError(f"{_WHAT}: there is no Delta table at {path}.")
    before, version = partition_columns(spark, path), newest_version(spark, path)
    rows = spark.read.format("delta").option("versionAsOf", version).load(path)
    frame = partition_rows(rows.drop(*drop), layout=layout, what=_WHAT)
    expected = rows.count()
    mark = uuid.uuid4().hex
    try:
        refuse_too_many_partitions(frame, layout=layout, what=_WHAT)
        writer = overwriting(frame).option("overwriteSchema", "true")
        writer.option("userMetadata", mark).partitionBy(*layout.by).save(path)
    except Exception as error:
        explained = explain_null_partition(error)
        if explained is None:
            raise
        raise explained from error
    ours = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where(f"userMetadata = '{mark}'").first()
    assert ours is not None
    written = int(ours["operationMetrics"].get("numOutputRows", -1))
    if ours["version"] == version + 1 and written == expected:
        return Repartitioned(before, tuple(layout.by), expected, version + 1)
    undone = ours["version"] == newest_version(spark, path)
    if undone:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {ours['version'] - 1}")
    raise TargetError(
        f"{_WHAT}: {path} had {expected:,} rows at version {version}, and {written:,} were written as version "
        f"{ours['version']}: somebody else wrote at the same time. "
        + ("The table was put back as it was." if undone else "They have written since, so it was left as it is."),
        hint="Let nobody write to it meanwhile, and repeat it."
        if undone
        else f"Look at its history; RESTORE TABLE ... TO VERSION AS OF {ours['version'] - 1} is the way back.",
    )
