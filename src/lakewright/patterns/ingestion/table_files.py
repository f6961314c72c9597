"""The live files of a Delta table, as its log tells: how many, how large, in which partition. Runs no Spark job.

Where the log lies on this machine its newest checkpoint and the commits since are read directly; elsewhere Delta is
asked for the totals alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakewright.model.paths import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableFiles", "Values", "describe_files", "read_files"]

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(\.\d{10}\.\d{10})?\.parquet")

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table's newest version."""

    files: int
    bytes: int
    columns: tuple[str, ...] = ()
    """The partition columns."""
    clustered: bool = False
    partitions: Mapping[Values, tuple[int, ...]] | None = None
    """The sizes of the files by partition; None where only the totals are known."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The partition columns' types; empty where a filter cannot be built from the log's values."""
    names: frozenset[str] = frozenset()
    """Their paths within the table."""


def read_files(path: str) -> TableFiles | None:
    """The live files, read from a log on this machine; None where it is not here, or cannot be read this way."""
    folder = local_folder(path)
    log = None if folder is None else folder / "_delta_log"
    if log is None or not log.is_dir():
        return None
    actions = _actions(log)
    return None if actions is None else _replayed(actions)


def describe_files(spark: SparkSession, path: str) -> TableFiles:
    """The totals as Delta tells them; no job over the data runs."""
    row = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert row is not None
    detail = row.asDict()
    return TableFiles(
        files=int(detail["numFiles"] or 0),
        bytes=int(detail["sizeInBytes"] or 0),
        columns=tuple(detail["partitionColumns"] or ()),
        clustered=bool(detail.get("clusteringColumns")),
    )


def _actions(log: Path) -> Iterator[Mapping[str, Any]] | None:
    """The actions that make up the newest version, the oldest first; None where the log begins with neither."""
    names = os.listdir(log)
    commits = sorted(name for name in names if _COMMIT.fullmatch(name))
    checkpoint, first = _last_checkpoint(log, names)
    wanted = [name for name in commits if int(name[:20]) >= first]
    if not commits or (wanted and int(wanted[0][:20]) != first):
        return None
    return (action for source in (_of_checkpoint(log, checkpoint), _of_commits(log, wanted)) for action in source)


def _last_checkpoint(log: Path, names: list[str]) -> tuple[list[str], int]:
    """The files of the newest checkpoint that we can read, and the first version after it."""
    by_version: dict[int, list[str]] = {}
    for name in names:
        if _CHECKPOINT.fullmatch(name):
            by_version.setdefault(int(name[:20]), []).append(name)
    for version in sorted(by_version, reverse=True):
        found = sorted(by_version[version])
        parts = [name for name in found if name.count(".") > 2]
        if len(parts) < len(found):  # one file holds it all
            return [name for name in found if name not in parts][:1], version + 1
        if len(parts) == int(parts[0].split(".")[3]):
            return parts, version + 1
    return [], 0


def _of_checkpoint(log: Path, names: list[str]) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet

    # Of the files only what is asked for: their statistics are the largest part of a checkpoint.
    wanted = ["protocol", "metaData", "add.path", "add.size", "add.partitionValues"]
    for name in names:
        for row in pyarrow.parquet.ParquetFile(log / name).read(columns=wanted).to_pylist():
            yield {kind: value for kind, value in row.items() if value is not None}


def _of_commits(log: Path, names: list[str]) -> Iterator[Mapping[str, Any]]:
    for name in names:
        lines = (log / name).read_text(encoding="utf-8").splitlines()
        # A file that gets a deletion vector is removed and added under its own name, in any order.
        for kinds in (('{"remove"',), ('{"add"', '{"metaData"', '{"protocol"')):
            yield from (json.loads(line) for line in lines if line.startswith(kinds))


def _replayed(actions: Iterator[Mapping[str, Any]]) -> TableFiles:
    live: dict[str, tuple[Mapping[str, str], int]] = {}
    columns: tuple[str, ...] = ()
    types: dict[str, str] = {}
    clustered = False
    for action in actions:
        if "add" in action:
            add = action["add"]
            live[add["path"]] = dict(add["partitionValues"] or {}), int(add["size"])
        elif "remove" in action:
            live.pop(action["remove"]["path"], None)
        elif "metaData" in action:
            columns, types = _layout(action["metaData"])
        elif "protocol" in action:
            clustered = "clustering" in (action["protocol"].get("writerFeatures") or ())
    partitions: dict[Values, list[int]] = {}
    for values, size in live.values():
        partitions.setdefault(tuple(values.get(name) for name in columns), []).append(size)
    return TableFiles(
        files=len(live),
        bytes=sum(size for _, size in live.values()),
        columns=columns,
        clustered=clustered,
        partitions={values: tuple(sizes) for values, sizes in partitions.items()},
        types=types,
        names=frozenset(unquote(name) for name in live),
    )


def _layout(declared: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    columns = tuple(declared.get("partitionColumns") or ())
    schema = json.loads(declared["schemaString"])
    settings = dict(declared.get("configuration") or {})
    if settings.get("delta.columnMapping.mode", "none") != "none":
        # The log tells values by names of its own there: files are counted together.
        physical = {one["name"]: one["metadata"].get("delta.columnMapping.physicalName") for one in schema["fields"]}
        return tuple(str(physical.get(name) or name) for name in columns), {}
    return columns, {one["name"]: one["type"] for one in schema["fields"] if one["name"] in columns}
