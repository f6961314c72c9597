"""Dynamic Late Data Integrator: make exactly those past slices again that received late rows.

Problem:
    All late rows are wanted in the statistics, however old they are, and blindly making two weeks again every day is
    neither enough nor cheap.
Guarantee:
    A slice is selected if its input was changed after it was processed, and only then; compaction and VACUUM are no
    changes. What counts is the version that was read, not the time at which the work ended, so that rows that come
    meanwhile are selected next time. A slice that somebody has claimed is left to them. Where history is missing, an
    error says so.
Consequences:
    - Very late rows of a stateful pipeline make all later slices again (``stateful``); ``oldest`` caps that, and what
      lies before it is reported as skipped.
    - A claim whose owner died has to be given up: in a pipeline by the next run, or `lakewright unlock`.
    - Whoever reads these slices follows: `lakewright plan` shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.policies import Repair
from lakewright.patterns.idempotency.delta_paths import partition_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LateSelection", "PartitionState", "Repair", "changed_partitions", "slices_with_late_rows"]

_NAME = "Dynamic Late Data Integrator"
_COMMIT = r"^([0-9]{20})\.json$"
_DAMAGED = ("MALFORMED_RECORD_IN_PARSING", "ChecksumException")
_FILE = "STRUCT<partitionValues: MAP<STRING, STRING>, dataChange: BOOLEAN>"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What is known of a partition: up to when, or which version, it was processed, and when it last changed."""

    partition: str
    processed: datetime | int | None
    updated: datetime | int | None
    claimed: bool = False
    """Whether somebody processes it now, or plans to."""


@dataclass(frozen=True, slots=True)
class LateSelection:
    """What a run has to make again, oldest first, and what it leaves out because it is too old."""

    selected: tuple[str, ...]
    skipped: tuple[str, ...] = ()


def slices_with_late_rows(
    states: Iterable[PartitionState], *, current: str, oldest: str | None = None, stateful: bool = False
) -> LateSelection:
    """The partitions before ``current`` that changed after they were processed, and that nobody has claimed.

    Partitions before ``oldest`` are told as skipped. With ``stateful`` every partition from the first selected one on
    is made again, in order; refused while somebody has claimed one of them, which would be made of what is not right
    yet.

    >>> slices_with_late_rows([PartitionState("2024-12-17", 7, 5), PartitionState("2024-12-18", 7, 9)],
    ...     current="2024-12-20").selected
    ('2024-12-18',)
    """
    known = sorted(states, key=lambda state: state.partition)
    if not known:
        raise InputError(
            f"{_NAME}: the state is empty, so nothing tells which partitions were processed. Nothing was selected.",
            hint="Rebuild it from the table's log and the results that are there, or process everything once.",
        )
    if twice := [one.partition for one, other in pairwise(known) if one.partition == other.partition]:
        raise InputError(f"{_NAME}: the state tells the partition {twice[0]} twice. Nothing was selected.")
    before = [state for state in known if state.partition < current]
    late = [state.partition for state in before if not state.claimed and _is_late(state)]
    selected = [partition for partition in late if oldest is None or partition >= oldest]
    skipped = tuple(partition for partition in late if partition not in selected)
    if stateful and selected:
        chain = [state for state in before if state.partition >= selected[0]]
        if claimed := [state.partition for state in chain if state.claimed]:
            raise InputError(
                f"{_NAME}: {selected[0]} received late rows, and {claimed[0]}, which is made of it, is claimed by "
                "somebody else. Nothing was selected.",
                hint="Select again when the claim is given back: what is late stays late until it is processed.",
            )
        selected = [state.partition for state in chain]
    return LateSelection(tuple(selected), skipped)


def _is_late(state: PartitionState) -> bool:
    if state.processed is None or state.updated is None:
        return False  # never processed is missing, not late; never changed since is neither
    if isinstance(state.processed, datetime) != isinstance(state.updated, datetime):
        raise ConfigurationError(f"{_NAME}: the partition {state.partition} compares a time with a version.")
    return bool(state.updated > state.processed)  # type: ignore[operator]


def changed_partitions(spark: SparkSession, path: str, *, column: str, after: int) -> dict[str | None, int]:
    """Runs jobs over the log of a Delta table: partition -> the last version after ``after`` that changed its rows.

    ``after`` is the lowest version that was processed; -1 is before the first. Compaction, which only moves rows, does
    not count.
    """
    from pyspark.sql import functions as F

    with _explained(path):
        reader = spark.read.schema(f"add {_FILE}, remove {_FILE}").option("mode", "FAILFAST")
        log = reader.json(f"{path}/_delta_log/*.json")
    # Beside the commits lie checkpoints and compacted logs, which tell of many commits at once.
    told = log.where(F.col("_metadata.file_name").rlike(_COMMIT)).select(
        F.regexp_extract("_metadata.file_name", _COMMIT, 1).cast("long").alias("version"),
        F.coalesce("add", "remove").alias("file"),
    )
    values = F.col("file.partitionValues")
    same = [values[column].alias("partition"), F.map_contains_key(values, column).alias("known")]
    by_partition = told.groupBy(*same).agg(F.max(F.when(F.col("file.dataChange"), F.col("version"))).alias("version"))
    with _explained(path):
        found = by_partition.collect()
        versions = {row["version"] for row in told.select("version").distinct().collect()}
    _refuse_lost_commits(versions, path, after)
    # Not by what the commits tell of files: of a table that is empty, or was not changed, they tell of none.
    if column not in partition_columns(spark, path):
        raise ConfigurationError(f"{_NAME}: {path} is not partitioned by '{column}'. Nothing was selected.")
    if any(row["known"] is False for row in found) and not any(row["known"] for row in found):
        raise ConfigurationError(
            f"{_NAME}: the log of {path} does not tell the values of '{column}' under this name: it is a table with "
            "column mapping, or it was laid out otherwise when it was last written. Nothing was selected.",
            hint="Ask its change feed: repair_entities(...) finds what was changed by the rows themselves.",
        )
    changed = {row["partition"]: row["version"] for row in found if row["version"] is not None and row["known"]}
    return {partition: version for partition, version in changed.items() if version > after}


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Spark's words about a log, in ours; over Connect it says only when asked for rows that there is none."""
    try:
        yield
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error):
            raise InputError(
                f"{_NAME}: there is no Delta table at {path}. Nothing was selected.", hint="Correct the path."
            ) from error
        if any(word in str(error) for word in _DAMAGED):
            raise InputError(
                f"{_NAME}: a commit in the log of {path} is damaged, so that nobody knows what it changed. Nothing was "
                "selected.",
                hint="Bring the file back from a copy. Or process everything once, and begin anew there.",
            ) from error
        raise


def _refuse_lost_commits(versions: Collection[int], path: str, after: int) -> None:
    """Refuse a log that does not tell of each commit after a version: what is not told is not "nothing to do"."""
    first, newest = min(versions, default=None), max(versions, default=None)
    if first is None or newest is None or after + 1 < first:
        raise InputError(
            f"{_NAME}: the log of {path} begins with version {first}, and changes after version {after} are asked for: "
            "what lies between is no longer there. Nothing was selected.",
            hint="Process everything once and begin anew there, or keep the log longer: delta.logRetentionDuration.",
        )
    if after > newest:
        raise newer_than_table(path, after, newest)
    if gone := [version for version in range(after + 1, newest) if version not in versions]:
        raise InputError(
            f"{_NAME}: the log of {path} has no version {gone[0]}, though later ones are there. Nothing was selected.",
            hint="Bring the file back from a copy. Or process everything once, and begin anew there.",
        )


def newer_than_table(path: str, after: int, newest: int) -> InputError:
    """What is said of a version that was processed, and that the table does not have."""
    return InputError(
        f"{_NAME}: version {after} was processed, and {path} is at version {newest}: it is another table, or was made "
        "anew. Nothing was selected.",
        hint="Process everything once, and begin anew with the version that was read.",
    )
