"""Earlier versions of an overwritten table: reading one, and letting go of those that are old enough."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from lakewright.errors import ConfigurationError, TargetError, first_words
from lakewright.model.deletion_vectors import lost_vectors
from lakewright.model.paths import local_folder
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.own_session import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_version", "remove_unused_files"]

_GONE = ("DELTA_VERSION_NOT_FOUND", "DELTA_TIMESTAMP_EARLIER", "beyond", "DELTA_UNSUPPORTED_TIME_TRAVEL")


def read_version(spark: SparkSession, path: str, version: int) -> DataFrame:
    """The rows of a Delta table as one version left them; no job runs.

    On a local file system a version whose files were vacuumed is told here; elsewhere when it is read.
    """
    try:
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        files = frame.inputFiles()
    except Exception as error:
        if not any(word in str(error) for word in _GONE):
            raise
        raise _no_longer(path, version, _first_line(error)) from error
    missing = [file for file in files if file.startswith("file:") and not os.path.exists(_local(file))]
    if missing:
        raise _no_longer(path, version, f"{len(missing)} of its {len(files)} files were removed by VACUUM")
    folder = local_folder(path)
    if folder is not None and (folder / "_delta_log").is_dir() and (lost := lost_vectors(folder, version)):
        raise _no_longer(path, version, f"{len(lost)} of its files of marked rows were removed by VACUUM")
    return frame


def remove_unused_files(spark: SparkSession, path: str, *, keep: str = "7 days") -> None:
    """Runs a VACUUM: files that no version younger than ``keep`` needs are deleted. *Overwritten* is not *erased*
    until then, and afterwards the older versions can no longer be read.
    """
    hours = parse_duration(keep).total_seconds() / 3600
    settings = {
        "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
        # Whoever switched it off in the session that was given, for a table without readers, did not mean this one.
        "spark.databricks.delta.retentionDurationCheck.enabled": "true",
    }
    try:
        with own_session(spark, settings) as own:
            own.sql(f"VACUUM delta.`{path}` RETAIN {hours:g} HOURS")
    except Exception as error:
        if "retention" not in str(error).lower():
            raise
        raise ConfigurationError(
            f"Data Overwrite: {path} keeps replaced files for longer than {keep}. Nothing was removed.",
            hint="Set the table's property delta.deletedFileRetentionDuration first, if no reader needs them.",
        ) from error


def _no_longer(path: str, version: int, why: str) -> TargetError:
    return TargetError(
        f"Data Overwrite: version {version} of {path} is no longer available: {why}.",
        hint="DESCRIBE HISTORY lists the versions; keep them longer with delta.deletedFileRetentionDuration.",
    )


def _local(uri: str) -> str:
    return unquote(urlparse(uri).path)


def _first_line(error: BaseException) -> str:
    return re.sub(r"^\[\w+(\.\w+)*\] ", "", first_words(error)).rstrip(".")
