"""Where a branch of a Parallel Split writes to: a Delta table, or a folder of plain files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from lakewright.errors import StepFailed
from lakewright.patterns.idempotency.file_swap import overwrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaBranch", "FilesBranch", "Written"]


class Written(NamedTuple):
    """Whether a branch wrote its batch, and else the last batch that it had committed (None: unknown)."""

    done: bool
    last: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class DeltaBranch:
    """Adds a batch to a Delta table, once: Delta skips a number that is not higher than the last one."""

    path: str
    transform: Callable[[DataFrame], DataFrame] | None = None

    def write(self, shared: DataFrame, name: str, batch: int) -> Written:
        """Runs a job that adds the rows, unless this batch, or a later one, is there already."""
        frame = _transformed(self.transform, shared, name)
        # Each branch and table has its own name: one pair for two writes would lose the second.
        app = f"{name}:{self.path}"
        mark = json.dumps({"split": app, "batch": batch, "attempt": uuid.uuid4().hex})
        writer = frame.write.format("delta").mode("append").option("userMetadata", mark)
        writer.option("txnAppId", app).option("txnVersion", batch).save(self.path)
        history = frame.sparkSession.sql(f"DESCRIBE HISTORY delta.`{self.path}`").select("version", "userMetadata")
        last = None
        for version, metadata in history.collect():
            if metadata == mark:
                return Written(True, batch, f"version {version}")
            found = json.loads(metadata) if metadata and '"split"' in metadata else {}
            if found.get("split") == app:
                last = max(found["batch"], -1 if last is None else last)
        return Written(False, last, "")


@dataclass(frozen=True, slots=True)
class FilesBranch:
    """Replaces the folder ``batch=<number>`` below a path: plain files keep no memory of what was written."""

    path: str
    file_format: Literal["parquet", "json", "csv"] = "parquet"
    transform: Callable[[DataFrame], DataFrame] | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def write(self, shared: DataFrame, name: str, batch: int) -> Written:
        """Runs a job that writes the rows aside and then swaps the batch's folder."""
        frame = _transformed(self.transform, shared, name)
        folder = f"{self.path}/batch={batch}"
        overwrite_files(frame, folder, file_format=self.file_format, options=self.options, empty="allow")
        return Written(True, batch, folder)


def _transformed(transform: Callable[[DataFrame], DataFrame] | None, shared: DataFrame, name: str) -> DataFrame:
    frame = shared if transform is None else transform(shared)
    if not hasattr(frame, "write"):
        raise StepFailed(f"Parallel Split: the branch {name} returned {type(frame).__name__}, not a DataFrame.")
    return frame
