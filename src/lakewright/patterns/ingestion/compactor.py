"""Compactor: turn many small files into few large ones while readers and writers go on.

Problem:
    A job that lands events every few seconds leaves tiny files, and readers spend most of their time opening them.
Guarantee:
    Rows stay as they are: the files are joined in a commit of their own that says so, and a reader sees the old files
    or the new ones. What dies half-way has changed nothing, and on a table without small files nothing is done.
Consequences:
    - It costs computing: thresholds (``min_files``, ``min_benefit``, ``mean_below``) and a partition filter decide.
    - The small files stay on disk until ``vacuum_table`` passes their retention; it has to be scheduled.
    - After that, versions that were made of them can no longer be read.
    - A writer that replaces rows of the same files at the same time may have to repeat its commit, or this one is left.
    - Plain JSON, CSV or Parquet files have no log: ``compact_files`` writes aside and swaps, never in place.
    - A compacted Kafka topic may still hold older values of a key: fold it by ``keep_latest_per_key``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.model.maintenance import Maintained, MaintenanceContext, When
from lakewright.model.paths import local_folder
from lakewright.model.sizes import parse_size
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.compact_files import CompactedFiles, compact_files
from lakewright.patterns.ingestion.compaction_plan import SMALL, Thresholds, plan_compaction
from lakewright.patterns.ingestion.latest_per_key import keep_latest_per_key
from lakewright.patterns.ingestion.own_session import own_session
from lakewright.patterns.ingestion.table_files import TableFiles, describe_files, read_files
from lakewright.patterns.ingestion.vacuum import SAFE_RETENTION, Vacuumed, refuse_short_retention, vacuum_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Compacted",
    "CompactedFiles",
    "Compactor",
    "Vacuumed",
    "compact_files",
    "compact_table",
    "keep_latest_per_key",
    "vacuum_table",
]

_WHAT = "Compactor"
_CHANGES = ("FilesAdded", "FilesRemoved")
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
_NO_TABLE = (
    "DELTA_MISSING",
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "not a Delta table",
)


@dataclass(frozen=True, slots=True)
class Compactor:
    """The ``maintenance`` option of a dataset.

    ``when="after run"`` compacts also at the end of each run that wrote to the dataset; files are deleted by
    `lakewright maintain` alone. ``retention`` is how long files that are no longer used stay: by default 7 days, or as
    long as the dataset's ``history``.
    """

    target_size: str = "128 MB"
    min_files: int = 20
    min_benefit: float = 0.2
    mean_below: str | None = None
    retention: str | None = None
    when: When = "maintain"
    unsafe: bool = False

    def __post_init__(self) -> None:
        _thresholds(self.target_size, self.min_files, self.min_benefit, self.mean_below)
        if self.when not in get_args(When):
            hint = did_you_mean(str(self.when), get_args(When))
            raise ConfigurationError(f"{_WHAT}: when is 'maintain' or 'after run', not {self.when!r}.", hint=hint)
        if self.retention is not None and not self.unsafe:
            refuse_short_retention(_WHAT, parse_duration(self.retention), SAFE_RETENTION)

    def run(self, ctx: MaintenanceContext) -> Maintained:
        """Runs the job that joins small files, where the table's own figures say that it pays."""
        found = read_files(ctx.path) or describe_files(ctx.session(), ctx.path)
        limits = _thresholds(self.target_size, self.min_files, self.min_benefit, self.mean_below)
        plan = plan_compaction(found, limits)
        if not plan.due or ctx.dry_run:
            expected = found.files - plan.joined + plan.into
            return Maintained(plan.due, plan.reason, found.files, expected, found.bytes, found.bytes)
        added, removed, version = _Total(), _Total(), None
        for where in plan.pieces:
            commit = ctx.compact(where, limits.target_bytes)
            if commit is not None:
                told = commit.metrics
                added = added.plus(told.get("numAddedFiles", 0), told.get("numAddedBytes", 0))
                removed = removed.plus(told.get("numRemovedFiles", 0), told.get("numRemovedBytes", 0))
                version = commit.version
        files, size = _after(ctx.path, found, added, removed)
        return Maintained(version is not None, plan.reason, found.files, files, found.bytes, size, version)

    def keeps(self, history: timedelta | None) -> timedelta:
        """How long files that are no longer used stay."""
        if self.retention is not None:
            return parse_duration(self.retention)
        return max(SAFE_RETENTION, history or SAFE_RETENTION)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done to a table: its files and bytes before and after, and the version that did it."""

    version: int | None
    """None where nothing was done; ``reason`` says why."""
    reason: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def compact_table(
    spark: SparkSession,
    path: str,
    *,
    where: str | None = None,
    target_size: str = "128 MB",
    min_files: int = 2,
    min_benefit: float = 0.0,
    mean_below: str | None = None,
) -> Compacted:
    """Runs a job that joins the small files of a Delta table in one commit, where that pays.

    ``where`` names the partitions to look at (only partition columns); a table with liquid clustering takes none and is
    clustered by it. Fewer small files than ``min_files``, a share of files saved below ``min_benefit``, or files of
    ``mean_below`` and more on average: nothing is done.

    >>> for visit in ("v1", "v2"):
    ...     one = spark.createDataFrame([(visit,)], "visit string").coalesce(1)
    ...     one.write.format("delta").mode("append").save(folder)
    >>> done = compact_table(spark, folder)
    >>> done.version, done.files_before, done.files_after
    (2, 2, 1)
    >>> compact_table(spark, folder).reason
    '1 file, below 2'
    """
    limits = _thresholds(target_size, min_files, min_benefit, mean_below)
    found = _look(spark, path)
    if found.clustered and where is not None:
        raise ConfigurationError(
            f"{_WHAT}: {path} has liquid clustering, which looks at the whole table. Nothing was changed.",
            hint="Leave 'where' out.",
        )
    plan = plan_compaction(found, limits)
    unchanged = Compacted(None, plan.reason, found.files, found.files, found.bytes, found.bytes)
    if not plan.due:
        return unchanged
    with own_session(spark, optimize_settings(limits.target_bytes)) as own:
        metrics = _optimize(own, path, where, found)
        if not metrics["numFilesAdded"]:
            return replace(unchanged, reason=f"{plan.reason}, none of them there")
        version = own.conf.get(_LAST_COMMIT, None)
    added, removed = (_Total(metrics[f"num{what}"], metrics[f"f{what[1:]}"]["totalSize"]) for what in _CHANGES)
    files, size = _after(path, found, added, removed)
    return Compacted(None if version is None else int(version), plan.reason, found.files, files, found.bytes, size)


class _Total(NamedTuple):
    files: int = 0
    bytes: int = 0

    def plus(self, files: int, size: int) -> _Total:
        return _Total(self.files + files, self.bytes + size)


def _after(path: str, before: TableFiles, added: _Total, removed: _Total) -> tuple[int, int]:
    """The table's files and bytes now: as its log tells, or reckoned, where others may have added files meanwhile."""
    now = read_files(path)
    if now is not None:
        return now.files, now.bytes
    files, size = before.files + added.files - removed.files, before.bytes + added.bytes - removed.bytes
    return max(files, added.files), max(size, added.bytes)


def optimize_settings(target_bytes: int) -> dict[str, str]:
    """How Delta is told the size: OPTIMIZE takes no options, only settings of its session."""
    return {
        "spark.databricks.delta.optimize.maxFileSize": str(target_bytes),
        "spark.databricks.delta.optimize.minFileSize": str(int(SMALL * target_bytes)),
    }


def _optimize(own: SparkSession, path: str, where: str | None, found: TableFiles) -> Any:
    condition = "" if where is None else f" WHERE {where}"
    try:
        row = own.sql(f"OPTIMIZE delta.`{path}`{condition}").first()
    except Exception as error:
        if where is None or not any(
            word in str(error) for word in ("NON_PARTITION", "UNRESOLVED_COLUMN", "RECOGNIZE_PREDICATE")
        ):
            raise
        columns = ", ".join(found.columns) or "none: the table is not partitioned"
        raise ConfigurationError(
            f"{_WHAT}: where={where!r} cannot be used on {path}. Nothing was changed.",
            hint=f"It is SQL that names partition columns only ({columns}).",
        ) from error
    assert row is not None
    return row["metrics"]


def _look(spark: SparkSession, path: str) -> TableFiles:
    found = read_files(path)
    if found is not None:
        return found
    folder = local_folder(path)
    if folder is not None and folder.is_dir() and not (folder / "_delta_log").is_dir():
        kinds = sorted(
            {file.suffix for file in folder.iterdir() if file.suffix and not file.name.startswith((".", "_"))}
        )
        shown = f" It holds {', '.join(kinds)} files." if kinds else ""
        raise _no_table(path, shown)
    try:
        return describe_files(spark, path)
    except Exception as error:
        if not any(word in str(error) for word in _NO_TABLE):
            raise
        raise _no_table(path, "") from error


def _no_table(path: str, shown: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_WHAT}: there is no Delta table at {path}, so that files cannot be exchanged under its readers.{shown} "
        "Nothing was changed.",
        hint="Join plain files aside, and let readers follow: compact_files(spark, source, target, file_format=...).",
    )


def _thresholds(target_size: str, min_files: int, min_benefit: float, mean_below: str | None) -> Thresholds:
    target = parse_size(target_size)
    if target < 1:
        raise ConfigurationError(f"{_WHAT}: target_size is at least 1 B, not {target_size!r}.")
    if not isinstance(min_files, int) or min_files < 2:
        raise ConfigurationError(f"{_WHAT}: min_files is a number from 2 on, not {min_files!r}.")
    if not 0 <= min_benefit < 1:
        raise ConfigurationError(f"{_WHAT}: min_benefit is a share from 0 to below 1, not {min_benefit!r}.")
    return Thresholds(target, min_files, min_benefit, None if mean_below is None else parse_size(mean_below))
