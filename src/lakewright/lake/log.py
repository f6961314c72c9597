"""Reading a Delta table's log: the truth about what was committed.

On a local lake the JSON files are read directly, which costs no Spark job; elsewhere Spark reads them.
Guarantee: a commit is described by its own file alone, so recovery, rebuild and the run itself see the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from lakewright.errors import TargetError
from lakewright.model.identity import Identity
from lakewright.model.outside import Log
from lakewright.model.paths import local_folder
from lakewright.model.receipts import Change, Commit
from lakewright.model.slices import ANY_CELL, EVENT_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DeltaLog", "FileChange", "own_commits"]


def own_commits(log: Log) -> Iterator[tuple[Commit, Identity]]:
    """The commits that carry an identity, the newest first: whoever looks for the last of a kind stops early."""
    oldest, newest = log.bounds()
    if oldest is None or newest is None:
        return
    for version in range(newest, oldest - 1, -1):
        commit = log.commit(version)
        if (identity := Identity.from_json(commit.metadata)) is not None:
            yield commit, identity


class FileChange(NamedTuple):
    """One file of a commit: whether it came or went, its partition values, and its rows (None is unknown)."""

    added: bool
    partition: Mapping[str, str | None]
    rows: int | None


class DeltaLog:
    """The log of one table. ``session`` is asked for at each look: threads do not share one, and some are lent."""

    def __init__(self, path: str, session: Callable[[], SparkSession] | None = None) -> None:
        self.path = path
        self._session = session
        local = local_folder(path)
        self._folder = None if local is None else os.path.join(local, "_delta_log")
        self._declared: tuple[int, int, dict[str, Any]] | None = None

    def exists(self) -> bool:
        return self.latest() is not None

    def latest(self) -> int | None:
        """The newest version, or None where there is no table."""
        return self.bounds()[1]

    def earliest(self) -> int | None:
        """The oldest version whose commit file is still there."""
        return self.bounds()[0]

    def bounds(self) -> tuple[int | None, int | None]:
        """The oldest and the newest version in the log, by one look at its folder."""
        if self._folder is None:
            newest = self._latest_by_spark()
            return (None if newest is None else 0), newest
        try:
            versions = [int(name[:20]) for name in os.listdir(self._folder) if _is_commit(name)]
        except (FileNotFoundError, NotADirectoryError):
            return None, None
        return (min(versions), max(versions)) if versions else (None, None)

    def schema(self) -> StructType | None:
        """The columns as they are declared now; None where the files at hand do not tell, and Spark must be asked."""
        from pyspark.sql.types import StructType

        declared = self._metadata()
        return None if declared is None else StructType.fromJson(json.loads(declared["schemaString"]))

    def schema_at(self, version: int) -> StructType | None:
        """The columns as they were declared at a version; None where the files at hand do not tell."""
        from pyspark.sql.types import StructType

        oldest = self.earliest()
        if self._folder is None or oldest is None:
            return None
        for at in range(version, oldest - 1, -1):
            found = next((line for line in self._lines(at) if line.startswith('{"metaData"')), None)
            if found is not None:
                return StructType.fromJson(json.loads(json.loads(found)["metaData"]["schemaString"]))
        return None

    def properties(self) -> dict[str, str] | None:
        """The table's properties as they are declared now; None where the files at hand do not tell."""
        declared = self._metadata()
        return None if declared is None else dict(declared.get("configuration") or {})

    def partition_columns(self) -> tuple[str, ...] | None:
        """The columns by which the table is laid out now; None where the files at hand do not tell."""
        declared = self._metadata()
        return None if declared is None else tuple(declared.get("partitionColumns") or ())

    def _metadata(self) -> dict[str, Any] | None:
        """The newest declaration of the table; only commits since the last look are read."""
        oldest, newest = self.bounds()
        if self._folder is None or oldest is None or newest is None:
            return None
        folder = os.stat(self._folder).st_ino  # a table that was dropped and made anew begins again
        seen, known, declared = self._declared or (folder, oldest - 1, None)
        if seen != folder:
            known, declared = oldest - 1, None
        for version in range(newest, known, -1):
            found = next((line for line in self._lines(version) if line.startswith('{"metaData"')), None)
            if found is not None:
                declared = json.loads(found)["metaData"]
                break
        if declared is not None:
            self._declared = (folder, newest, declared)
        return declared

    def commit(self, version: int) -> Commit:
        """What one version did."""
        return self._parse(version, self._lines(version))

    def committed_at(self, version: int) -> datetime:
        """When a version was committed. What it did to files, of which there may be many, is not parsed."""
        told = next((line for line in self._lines(version) if line.startswith('{"commitInfo"')), "{}")
        return _committed_at(json.loads(told).get("commitInfo", {}))

    def commits(self, after: int | None = None, upto: int | None = None) -> Iterator[Commit]:
        """The commits with ``after < version <= upto`` that the log still holds, in order."""
        oldest, latest = self.bounds()
        newest = latest if upto is None else upto
        if newest is None or oldest is None:
            return
        first = max(-1 if after is None else after, oldest - 1) + 1
        for version in range(first, newest + 1):
            yield self.commit(version)

    def files(self, version: int) -> Iterator[FileChange]:
        """The files that a commit added and removed."""
        for line in self._lines(version):
            action: dict[str, Any] = json.loads(line)
            for word in ("add", "remove"):
                if (file := action.get(word)) is not None:
                    rows = _rows(file)
                    rows = self._rows_of_file(version, file["path"]) if rows is None else rows
                    yield FileChange(word == "add", file.get("partitionValues") or {}, rows)

    def _lines(self, version: int) -> list[str]:
        name = f"{version:020d}.json"
        if self._folder is None:
            if self._session is None:
                raise TargetError(f"The log of {self.path} lies outside this machine and no Spark session is open.")
            rows = self._session().read.text(f"{self.path}/_delta_log/{name}").collect()
            return [row[0] for row in rows]
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            raise TargetError(
                f"Version {version} of the table {self.path} is no longer in its log.",
                hint="Somebody cleaned the log by hand, or its retention passed; `lakewright store rebuild` "
                "starts again from what is left.",
            ) from None

    def _latest_by_spark(self) -> int | None:
        if self._session is None:
            return None
        try:
            row = self._session().sql(f"DESCRIBE HISTORY delta.`{self.path}` LIMIT 1").select("version").first()
        except Exception as error:
            if "DELTA_MISSING" in str(error) or "PATH_NOT_FOUND" in str(error) or "not a Delta table" in str(error):
                return None
            raise
        return None if row is None else int(row[0])

    def _parse(self, version: int, lines: Iterable[str]) -> Commit:
        info: dict[str, Any] = {}
        added: dict[str | None, int | None] = {}
        removed: dict[str | None, int | None] = {}
        size, data_change, schema_change = 0, False, False
        for line in lines:
            action: dict[str, Any] = json.loads(line)
            if "commitInfo" in action:
                info = action["commitInfo"]
            elif "add" in action:
                add = action["add"]
                data_change |= add["dataChange"]
                size += add["size"]
                _count(added, add, _rows(add))
            elif "remove" in action:
                remove = action["remove"]
                data_change |= remove["dataChange"]
                rows = _rows(remove)
                if rows is None and remove["dataChange"]:  # nobody asks for the rows that a compaction moved
                    rows = self._rows_of_file(version, remove["path"])
                _count(removed, remove, rows)
            elif "metaData" in action:
                schema_change = True
        cells = added.keys() | removed.keys()
        return Commit(
            version=version,
            committed_at=_committed_at(info),
            operation=info.get("operation", "UNKNOWN"),
            metadata=info.get("userMetadata"),
            metrics={k: int(v) for k, v in info.get("operationMetrics", {}).items() if str(v).isdigit()},
            touched={cell: Change(added.get(cell, 0), removed.get(cell, 0)) for cell in cells},
            bytes_added=size,
            data_change=data_change,
            schema_change=schema_change,
        )

    def _rows_of_file(self, below: int, path: str) -> int | None:
        """Rows of a file that a rewriting delete removed without telling: look for where it was added."""
        if self._folder is None:
            return None
        needle = json.dumps(path)[1:-1]
        for version in range(below - 1, (self.earliest() or 0) - 1, -1):
            for line in self._lines(version):
                if needle in line and line.startswith('{"add"'):
                    return _rows(json.loads(line)["add"])
        return None


def _is_commit(name: str) -> bool:
    return len(name) == 25 and name.endswith(".json") and name[:20].isdigit()


def _committed_at(info: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)


def _rows(file: dict[str, Any]) -> int | None:
    stats = file.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    if rows is None:
        return None
    vector = file.get("deletionVector") or {}
    return int(rows) - int(vector.get("cardinality", 0))


def _count(totals: dict[str | None, int | None], file: dict[str, Any], rows: int | None) -> None:
    values = file.get("partitionValues") or {}
    # Delta leaves a NULL partition value out of a remove action, so "no such key" is NULL
    # wherever the table is partitioned by event cells at all; the path tells which.
    has_cells = EVENT_COLUMN in values or f"{EVENT_COLUMN}=" in file["path"]
    cell = values.get(EVENT_COLUMN) if has_cells else ANY_CELL
    known = totals.get(cell, 0)
    totals[cell] = None if rows is None or known is None else known + rows
