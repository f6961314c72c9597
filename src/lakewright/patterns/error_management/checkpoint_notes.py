"""What this library notes in a checkpoint beside Spark's own files, so that a copy of the folder takes it along."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.model.paths import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["checkpoint_id", "forget_id", "name_checkpoint", "read_note", "write_note"]

_ID = "lakewright_id"


def name_checkpoint(spark: SparkSession, path: str) -> None:
    """Give a checkpoint an id, where it has none: to be called by its first micro-batch, and by each repeat of that."""
    if not checkpoint_id(spark, path):
        write_note(spark, _place(path), uuid.uuid4().hex[:12])


def forget_id(spark: SparkSession, path: str, known: str) -> None:
    """Take away the id of a checkpoint in which no micro-batch has begun: Spark's own files were lost beside it.

    ``known`` is what it was before the look at what has begun: another one was given since, and stays.
    """
    if known and checkpoint_id(spark, path) == known:
        write_note(spark, _place(path), "")


def checkpoint_id(spark: SparkSession, path: str) -> str:
    """Which checkpoint this is, so that what begins anew is not taken for a repeat of what was lost.

    Empty before its first micro-batch has begun, and for a checkpoint of a release that noted none.
    """
    return read_note(spark, _place(path)).strip()


def _place(path: str) -> str:
    return f"{path.rstrip('/')}/{_ID}"


def read_note(spark: SparkSession, place: str) -> str:
    """A note's text; empty where there is none."""
    local = local_folder(place)
    if local is not None:
        return local.read_text() if local.is_file() else ""
    try:
        return "".join(row[0] for row in spark.read.text(place).collect())
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        return ""


def write_note(spark: SparkSession, place: str, text: str) -> None:
    """Whole or not at all: a kill in between leaves a checkpoint without a note."""
    local = local_folder(place)
    if local is None:
        spark.createDataFrame([(text,)], "value string").coalesce(1).write.mode("overwrite").text(place)
        return
    local.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(f"{local}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(local)
