"""Vacuum, the second half of Compactor: delete the files that no version within the retention needs.

Guarantee:
    A retention below the safe minimum (7 days, or longer where the table declares so) is refused unless it is
    overridden in so many words. Exactly the retention that was asked for counts; a dry run lists the files and deletes
    none.
Consequences:
    - Versions that were made of deleted files can no longer be read, and no restore goes back to them.
    - A writer or reader that is under way for longer than the retention would lose its files: hence the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.paths import local_folder
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.own_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SAFE_RETENTION", "Vacuumed", "declared_retention", "refuse_short_retention", "vacuum_table"]

SAFE_RETENTION = timedelta(days=7)
"""Nobody writes to a table, or reads one version of it, for longer than this."""

_PROPERTY = "delta.deletedFileRetentionDuration"
_LISTING_TASKS = "8"


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What a vacuum deleted, or would delete."""

    dry_run: bool
    files: tuple[str, ...] = ()
    """(A dry run) the files and empty folders that would go."""
    deleted: int | None = None
    """How many went; None where the log does not tell."""


def vacuum_table(
    spark: SparkSession,
    path: str,
    *,
    retention: str | timedelta = SAFE_RETENTION,
    dry_run: bool = False,
    unsafe: bool = False,
    log: bool = True,
) -> Vacuumed:
    """Runs the jobs that delete the files of a Delta table that no version younger than ``retention`` needs.

    ``unsafe=True`` allows less than the safe minimum, for a table that nobody else reads or writes meanwhile. Without
    ``log`` the table's history does not tell of it: then no commit is made.

    >>> spark.range(1).write.format("delta").save(folder)
    >>> vacuum_table(spark, folder, dry_run=True).files
    ()
    >>> vacuum_table(spark, folder, retention="1 hour")
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: Vacuum: a retention of 1 hour is below the safe minimum of 7 days. ...
    """
    wanted = parse_duration(retention) if isinstance(retention, str) else retention
    if not unsafe:
        refuse_short_retention("Vacuum", wanted, max(SAFE_RETENTION, declared_retention(spark, path) or SAFE_RETENTION))
    hours = math.ceil(wanted.total_seconds() / 3600)
    settings = {
        # Delta 4.4 ignores a retention that is not 0 hours, unless it is told not to.
        "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
        "spark.databricks.delta.retentionDurationCheck.enabled": str(not unsafe).lower(),
        "spark.databricks.delta.vacuum.logging.enabled": str(log).lower(),
    }
    if local_folder(path) is not None:
        # One folder is listed by as many tasks as this says: 10,000 by default.
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = _LISTING_TASKS
    with own_session(spark, settings) as own:
        statement = f"VACUUM delta.`{path}` RETAIN {hours} HOURS"
        if dry_run:
            return Vacuumed(True, tuple(row[0] for row in own.sql(f"{statement} DRY RUN").collect()))
        own.sql(statement)
        return Vacuumed(False, deleted=_deleted(own, path) if log else None)


def refuse_short_retention(what: str, retention: timedelta, minimum: timedelta) -> None:
    """Refuse to delete files that somebody may still need."""
    if retention < minimum:
        raise ConfigurationError(
            f"{what}: a retention of {_shown(retention)} is below the safe minimum of {_shown(minimum)}. A writer or "
            "reader that is under way would lose its files, and versions could no longer be read. Nothing was deleted.",
            hint=f"Keep files for {_shown(minimum)}. If nobody reads or writes the table meanwhile: unsafe=True.",
        )


def declared_retention(spark: SparkSession, path: str) -> timedelta | None:
    """How long the table itself says that replaced files are kept; None where it does not, or in other words."""
    row = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").select("properties").first()
    text = None if row is None else dict(row[0] or {}).get(_PROPERTY)
    if text is None:
        return None
    try:
        return parse_duration(text.lower().removeprefix("interval").strip())
    except ConfigurationError:
        return None  # Delta itself checks it once more


def _deleted(own: SparkSession, path: str) -> int | None:
    row = own.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").select("operation", "operationMetrics").first()
    if row is None or row[0] != "VACUUM END":
        return None
    told = dict(row[1] or {}).get("numDeletedFiles")
    return None if told is None else int(told)


def _shown(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    unit, size = next(
        (u for u in (("day", 86_400), ("hour", 3600), ("minute", 60)) if seconds and seconds % u[1] == 0), ("second", 1)
    )
    count = seconds // size
    return f"{count} {unit}{'' if count == 1 else 's'}"
