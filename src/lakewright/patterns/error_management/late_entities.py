"""Late data by entity: make only the results of those again whose rows have changed, not whole partitions.

Guarantee:
    Exactly the entities of which the source's change feed tells a row since the version that was read last are made
    again, from all their rows at one version; the results of all others stay as they are, in their files. A repeat
    changes nothing more. What is returned is the version that was read: the next call begins after it.
Consequences:
    - The source needs its change feed, the target deletion vectors (both are told where they are missing).
    - An entity with rows in a partition is told by the partition and its own columns: name both in ``keys``.
    - Results that come from several entities (a total, a rank) do not follow: use partitions for those.
    - An entity that ``make`` gives no result any more (it has no row left, or none that counts) loses what it had in a
      commit of its own, after that of the others. After a kill in between, a repeat from the same version does it.
    - The new results are held in memory while they are written.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.sql import quoted
from lakewright.patterns.error_management.dynamic_late_data_integrator import newer_than_table
from lakewright.patterns.idempotency.data_overwrite import overwrite_slice
from lakewright.patterns.idempotency.delta_paths import newest_version, table_exists
from lakewright.patterns.ingestion.change_feed import read_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["repair_entities"]

_NAME = "Dynamic Late Data Integrator"


def repair_entities(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    keys: Sequence[str],
    after: int,
    make: Callable[[DataFrame], DataFrame],
) -> int:
    """Runs jobs that make the results in ``target`` again of those entities whose rows in ``source`` changed after a
    version; returns the version that they were made of.

    Both are paths of Delta tables, and both have the columns ``keys``, which tell an entity. ``make`` gets all rows of
    the changed entities, and gives their results.
    """
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{_NAME}: 'keys' is a list of at least one column, such as ['day', 'user_id'].")
    if not table_exists(spark, target):
        raise InputError(
            f"{_NAME}: there are no results at {target} that could be made again.", hint="Make all of them once."
        )
    version = newest_version(spark, source)
    if version < after:
        raise newer_than_table(source, after, version)
    if version == after:
        return after
    changed = read_changes(spark, source, from_version=after + 1, upto=version + 1).select(*keys).distinct()
    if not changed.where(" OR ".join(f"{quoted(key)} IS NULL" for key in keys)).isEmpty():
        raise InputError(
            f"{_NAME}: rows have changed in {source} that belong to no entity: {' or '.join(keys)} is NULL. Nothing "
            "was made again.",
            hint="Make their partitions again, or set such rows aside before.",
        )
    rows = spark.read.format("delta").option("versionAsOf", version).load(source)
    left = rows.join(changed, list(keys), "left_semi")
    made = make(left).persist()  # asked twice, and both answers have to be about the same results
    try:
        overwrite_slice(made, target, using=keys, empty="allow")
        _drop_results(spark, target, changed.join(made, list(keys), "left_anti"), keys)
    finally:
        made.unpersist()
    return version


def _drop_results(spark: SparkSession, target: str, gone: DataFrame, keys: Sequence[str]) -> None:
    """Take away what is left of entities that have no result any more; no commit where there are none."""
    if gone.isEmpty():
        return
    view = f"lw_{uuid.uuid4().hex}"
    gone.createOrReplaceTempView(view)
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
    try:
        spark.sql(f"MERGE INTO delta.`{target}` t USING {view} s ON {same} WHEN MATCHED THEN DELETE")
    finally:
        spark.catalog.dropTempView(view)
