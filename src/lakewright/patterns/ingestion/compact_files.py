"""Joining plain files (JSON lines, text, CSV, Parquet), which have no log: written aside, then exchanged.

Guarantee:
    The source's files are never touched. Readers of ``target`` see the whole old or the whole new set of files. Lines
    of JSON and text stay as they are, character by character; the values of CSV are read and written as text.
Consequences:
    - ``target`` is a link that is exchanged (see ``file_swap``), so it needs a file system that has links.
    - Files that land in the source meanwhile may or may not be in the result: join folders that are complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.errors import ConfigurationError
from lakewright.model.paths import local_folder
from lakewright.model.sizes import parse_size
from lakewright.patterns.idempotency.file_swap import current_files, overwrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CompactedFiles", "compact_files"]

_WHAT = "Compactor"
PlainFormat = Literal["json", "text", "csv", "parquet"]


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """The files of a folder before, and of the folder that took its place."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


def compact_files(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    file_format: PlainFormat,
    target_size: str = "128 MB",
    options: Mapping[str, str] | None = None,
    compression: str | None = None,
) -> CompactedFiles:
    """Runs a job that writes the files of a folder as few large ones aside, and then lets ``target`` name them.

    ``source`` may be the ``target`` of an earlier call. ``options`` are those of Spark's CSV reader and writer
    (``{"header": "true"}``).

    >>> spark.range(4).repartition(4).write.json(folder)
    >>> compact_files(spark, folder, f"{folder}.joined", file_format="json").files_after
    1
    """
    if file_format not in get_args(PlainFormat):
        raise ConfigurationError(
            f"{_WHAT}: file_format is one of {', '.join(get_args(PlainFormat))}, not {file_format!r}."
        )
    given = dict(options or {})
    if any(name.lower() == "multiline" and value.lower() == "true" for name, value in given.items()):
        raise ConfigurationError(
            f"{_WHAT}: records over several lines cannot be joined line by line. Nothing was written."
        )
    folder = _folder(source)
    before = _sizes(folder)
    if not before:
        raise ConfigurationError(f"{_WHAT}: there is no file in {source}. Nothing was written.")
    count = max(1, math.ceil(sum(before) / parse_size(target_size)))
    rows = _read(spark, str(folder), file_format, given).coalesce(count)
    written = {"compression": compression} if compression is not None else {}
    if file_format == "csv":
        written |= given
    # Lines are lines: parsed, a number or a name could come out differently.
    plain: Literal["text", "csv", "parquet"] = "text" if file_format in ("json", "text") else file_format  # type: ignore[assignment]
    overwrite_files(rows, target, file_format=plain, options=written, empty="allow")
    after = _sizes(Path(current_files(target)))
    return CompactedFiles(len(before), len(after), sum(before), sum(after))


def _read(spark: SparkSession, folder: str, file_format: PlainFormat, options: Mapping[str, str]) -> DataFrame:
    if file_format == "csv":
        return spark.read.options(**{**options, "inferSchema": "false"}).csv(folder)
    if file_format == "parquet":
        return spark.read.option("mergeSchema", "true").parquet(folder)  # a column of some files is not lost
    return spark.read.text(folder)


def _folder(source: str) -> Path:
    folder = local_folder(source)
    if folder is None or not folder.is_dir():
        raise ConfigurationError(
            f"{_WHAT}: {source} is no folder on this machine. Nothing was written.",
            hint="On an object store write a Delta table, and use compact_table(spark, path).",
        )
    folder = folder.resolve()
    if (folder / "_delta_log").is_dir():
        raise ConfigurationError(
            f"{_WHAT}: {source} is a Delta table. Nothing was written.", hint=f'Use compact_table(spark, "{source}").'
        )
    if below := [one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith((".", "_"))]:
        raise ConfigurationError(
            f"{_WHAT}: {source} has folders in it ({below[0]}). Nothing was written.",
            hint="Join the files of each of them by itself.",
        )
    return folder


def _sizes(folder: Path) -> list[int]:
    """What Spark would read there: it passes over names with a dot or an underscore in front."""
    return [one.stat().st_size for one in folder.iterdir() if one.is_file() and not one.name.startswith((".", "_"))]
