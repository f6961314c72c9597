"""The executions that a Delta table holds, kept in its own commits: what Stateful Merger remembers without a store.

Every merge carries the time of its execution as ``userMetadata``, in the very commit that it makes: there is no second
write that could be lost between the two. What a RESTORE took away is left out, whoever made it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakewright.errors import TargetError
from lakewright.model.overwrites import overwriting
from lakewright.model.receipts import Commit
from lakewright.model.times import parse_time
from lakewright.patterns.idempotency.delta_paths import DeltaPath, last_commit
from lakewright.patterns.idempotency.going_back import Execution
from lakewright.patterns.ingestion.own_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

__all__ = ["MergeHistory", "StampedPath", "read_merges", "restore_to", "shown", "stamp", "truncate"]

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MARK = "lakewright.stateful_merger"


@dataclass(frozen=True, slots=True)
class MergeHistory:
    """The merges that count, newest first, and whether the log still tells of all that were ever made."""

    executions: tuple[Execution, ...] = ()
    complete: bool = True
    lacking: tuple[str, ...] = ()
    """What a repeat of an earlier execution took away and nobody has merged since, in order."""
    emptied: int | None = None
    """The version that emptied the table before them, where one did."""


def shown(at: datetime) -> str:
    """An execution's time for people and for the commit.

    >>> shown(parse_time("2024-10-07"))
    '2024-10-07T00:00:00+00:00'
    """
    return at.isoformat()


def stamp(at: datetime, step: str) -> str:
    """What a commit carries; each is told from the others, so that one's own can be found."""
    return json.dumps({_MARK: 1, "execution": shown(at), "step": step, "id": uuid.uuid4().hex})


def read_merges(spark: SparkSession, path: str) -> MergeHistory:
    """Runs a job that reads the table's history."""
    asked = spark.sql(f"DESCRIBE HISTORY delta.`{path}`")
    rows = asked.select("version", "operation", "operationParameters", "userMetadata").collect()
    return followed({row["version"]: row.asDict() for row in rows}, path)


def followed(commits: Mapping[int, Mapping[str, Any]], path: str) -> MergeHistory:
    """The merges that count: from the newest commit back, and at a RESTORE on from where it went.

    >>> merged = lambda day: {"operation": "MERGE", "userMetadata": stamp(parse_time(day), "merge")}
    >>> back = {"operation": "RESTORE", "operationParameters": {"version": "1"}, "userMetadata": None}
    >>> made = {"operation": "WRITE", "userMetadata": None}
    >>> found = followed({0: made, 1: merged("2024-10-05"), 2: merged("2024-10-06"), 3: back}, "t")
    >>> [(one.name[:10], one.version, one.found) for one in found.executions], found.complete
    ([('2024-10-05', 1, 0)], True)
    >>> ours = {**back, "userMetadata": stamp(parse_time("2024-10-07"), "restore")}
    >>> followed({0: made, 1: merged("2024-10-05"), 2: merged("2024-10-06"), 3: ours}, "t").lacking
    ('2024-10-06T00:00:00+00:00',)
    """
    return replace(_held(commits, max(commits), path), lacking=_lacking(commits, path))


def _lacking(commits: Mapping[int, Mapping[str, Any]], path: str) -> tuple[str, ...]:
    # What somebody took away by a RESTORE of his own is meant to be gone.
    steps = {version: told["step"] for version, one in commits.items() if (told := _told(one["userMetadata"]))}
    taken: set[str] = set()
    for version, step in steps.items():
        if step == "merge" or version - 1 not in commits:
            continue
        try:
            before, after = (_names(_held(commits, at, path)) for at in (version - 1, version))
        except TargetError:
            continue
        taken |= before - after
    return tuple(sorted(taken - _names(_held(commits, max(commits), path)), key=parse_time))


def _names(history: MergeHistory) -> set[str]:
    return {one.name for one in history.executions}


def _held(commits: Mapping[int, Mapping[str, Any]], upto: int, path: str) -> MergeHistory:
    found: list[Execution] = []
    version = upto
    while version in commits:
        commit = commits[version]
        told = _told(commit["userMetadata"])
        if told is not None and told["step"] == "truncate":
            return MergeHistory(tuple(found), emptied=version)
        if commit["operation"] == "RESTORE":
            version = _target(commit, version, path)
            continue
        if told is not None and told["step"] == "merge":
            name = str(told["execution"])
            found.append(Execution(name, parse_time(name), version, version - 1))
        version -= 1
    return MergeHistory(tuple(found), complete=version < 0)


def truncate(spark: SparkSession, path: str, at: datetime) -> None:
    """Runs a job that empties the table; the commit is there even where it was empty before."""
    _write_nothing(overwriting(_nothing(spark, path)), path, stamp(at, "truncate"))


def restore_to(spark: SparkSession, path: str, version: int, at: datetime) -> None:
    """Runs a RESTORE."""
    with own_session(spark, {_METADATA: stamp(at, "restore")}) as own:
        own.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")


class StampedPath(DeltaPath):
    """A Delta table by its path, whose MERGE carries the time of the execution."""

    def __init__(self, path: str, spark: SparkSession, at: datetime, properties: Mapping[str, str]) -> None:
        super().__init__(path, spark, properties=properties)
        self._at = at

    def merge(self, frame: DataFrame, *, on: str, clauses: str, partition_by: Sequence[str] = ()) -> Commit | None:
        if not self.exists():
            self.create(frame.schema, partition_by=partition_by)
        mine = stamp(self._at, "merge")
        # The commit's words are a setting of the session, and the user's own is left alone: the other one sees the
        # frame by a global name.
        view = f"lw_{uuid.uuid4().hex}"
        frame.createOrReplaceGlobalTempView(view)
        try:
            with own_session(self.spark, {_METADATA: mine}) as own:
                own.sql(f"MERGE INTO delta.`{self.path}` t USING global_temp.{view} s ON {on} {clauses}")
        finally:
            self.spark.catalog.dropGlobalTempView(view)
        commit = last_commit(self.spark, self.path)
        if commit is None or commit.metadata != mine:
            # A MERGE that finds nothing to do may leave no commit; an empty one then holds the execution.
            nothing = _nothing(self.spark, self.path).write.format("delta").mode("append")
            _write_nothing(nothing, self.path, mine)
            commit = last_commit(self.spark, self.path)
        return commit


def _nothing(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path).limit(0)


def _write_nothing(writer: DataFrameWriter, path: str, metadata: str) -> None:
    # Delta leaves a commit without rows out, unless a transaction is noted in it.
    told = writer.option("userMetadata", metadata).option("txnAppId", f"{_MARK}:{uuid.uuid4().hex}")
    told.option("txnVersion", 1).save(path)


def _told(metadata: str | None) -> dict[str, Any] | None:
    if not metadata or _MARK not in metadata:
        return None
    try:
        found = json.loads(metadata)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get(_MARK) == 1 else None


def _target(commit: Mapping[str, Any], version: int, path: str) -> int:
    told = (commit["operationParameters"] or {}).get("version")
    if told is None:
        raise TargetError(
            f"Stateful Merger: somebody restored {path} by a time (version {version}), so that its log does not tell "
            "which executions it holds. Nothing was changed.",
            hint="Restore it once more, to a version: RESTORE TABLE ... TO VERSION AS OF ...",
        )
    return int(told)
