"""Change Data Capture: follow every insert, update and delete of a table by its log, and keep a copy that is right.

Problem:
    To query a table again and again sees changes late, misses what changed twice in between, and never sees a row
    that was deleted.
Guarantee:
    `apply_change_events` leaves each row as its last change made it, by one MERGE: of several changes of a key in one
    batch the last counts, by its place in the source's log; one that is not newer than what was applied changes
    nothing, also where the row was deleted since. So any earlier batch may come again, whole or in part. A value that
    an update did not send keeps its last known value. `apply_row_versions` keeps every version with the time it was
    valid instead: one chain per key, whatever the order in which its changes come. `read_changes` gives every change of
    a Delta table from a version or a time on, or says which setting is missing.
Consequences:
    - A deleted row stays as a mark with its key and position; `read_latest_values` leaves it out. Marks are never taken
      away by themselves: delete those older than the topic's retention where they are many.
    - The table has deletion vectors: changes of scattered rows are cheap, and reading pays a little for it until the
      next compaction (``lakewright maintain``).
    - A TRUNCATE marks every row that is older. With several partitions in the topic a change from before it may come
      after it, for a key that was never seen: then that row stays.
    - Keys must be the source's primary key. A row that gets another key comes as a delete and an insert.
    - The feed of a Delta table holds what was committed since it was turned on, while the table keeps its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.model.protocols import WriteContext
from lakewright.model.receipts import Commit
from lakewright.patterns.idempotency.delta_paths import DeltaPath, partition_columns
from lakewright.patterns.ingestion.change_feed import read_changes
from lakewright.patterns.ingestion.latest_value import LatestValue, latest_rows
from lakewright.patterns.ingestion.row_versions import RowVersions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["apply_change_events", "apply_row_versions", "read_changes", "read_latest_values", "read_row_versions"]


def apply_change_events(changes: DataFrame, path: str, *, keys: Sequence[str]) -> Commit | None:
    """Runs a MERGE that brings a batch of changes (as `unwrap_changes` makes them) into a Delta table, and before it a
    job that looks at their keys; the table is made if it is not there.

    >>> events = [(1, "home", "insert", 10), (2, "about", "insert", 11), (1, None, "delete", 12)]
    >>> changes = spark.createDataFrame(events, "id int, page string, _op string, _lsn bigint")
    >>> _ = apply_change_events(changes, folder, keys=["id"])
    >>> _ = apply_change_events(changes.where("_op = 'insert'"), folder, keys=["id"])  # delivered once more
    >>> read_latest_values(spark, folder).collect()
    [Row(id=2, page='about')]
    """
    return _publish(LatestValue(keys), changes, path)


def read_latest_values(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a table that `apply_change_events` keeps, as they stand at their source; lazy."""
    return latest_rows(spark.read.format("delta").load(path))


def apply_row_versions(
    changes: DataFrame,
    path: str,
    *,
    keys: Sequence[str],
    at: str = "_committed_at",
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    current: str = "is_current",
) -> Commit | None:
    """Runs a MERGE that puts a batch of changes into the chains of versions in a Delta table, and before it a job that
    looks at their keys; the table is made if it is not there. One batch at a time.

    >>> from datetime import date
    >>> events = [(1, "home", "insert", 10, date(2026, 1, 1)), (1, "news", "update", 12, date(2026, 1, 3))]
    >>> columns = "id int, page string, _op string, _lsn bigint, _committed_at date"
    >>> _ = apply_row_versions(spark.createDataFrame(events, columns), folder, keys=["id"])
    >>> late = spark.createDataFrame([(1, "blog", "update", 11, date(2026, 1, 2))], columns)
    >>> _ = apply_row_versions(late, folder, keys=["id"])
    >>> read_row_versions(spark, folder).selectExpr("page", "day(valid_to) AS until").orderBy("page").collect()
    [Row(page='blog', until=3), Row(page='home', until=2), Row(page='news', until=None)]
    """
    writer = RowVersions(keys, at=at, valid_from=valid_from, valid_to=valid_to, current=current)
    return _publish(writer, changes, path)


def read_row_versions(spark: SparkSession, path: str) -> DataFrame:
    """The versions in a table that `apply_row_versions` keeps, with their validity; lazy."""
    return latest_rows(spark.read.format("delta").load(path))


def _publish(writer: LatestValue | RowVersions, changes: DataFrame, path: str) -> Commit | None:
    from lakewright.model.runs import Run
    from lakewright.model.slices import WHOLE
    from lakewright.model.times import utc_now

    table = DeltaPath(path, changes.sparkSession, properties=writer.table_properties)
    laid_out = partition_columns(table.spark, path) if table.exists() else ()
    run = Run(run_id="library", pipeline="library", time=utc_now())
    return writer.publish(changes, WriteContext(path, WHOLE, table, run, partition_by=laid_out))
