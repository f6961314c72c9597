"""What tests ask a Delta table about: its rows, its version and its files, straight from the log."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def table(spark: SparkSession, path: Path | str) -> list[tuple[object, ...]]:
    return rows(spark.read.format("delta").load(str(path)))


def version(path: Path | str) -> int:
    return max(int(file.stem) for file in Path(path, "_delta_log").glob("*.json"))


def live_files(path: Path | str) -> dict[str, dict[str, str]]:
    """The files of the newest version with their partition values."""
    files: dict[str, dict[str, str]] = {}
    for log in sorted(Path(path, "_delta_log").glob("*.json")):
        for line in log.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = action["add"]["partitionValues"]
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
    return files
