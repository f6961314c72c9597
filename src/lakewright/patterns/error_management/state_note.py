"""By which columns a checkpoint's state was kept, noted beside it: Spark compares their types, and not their names.

Guarantee:
    A stream that remembered customers never takes them for orders, because both are whole numbers: good rows would be
    dropped as repeats of rows with another meaning. A checkpoint that began without a note gets none, and is trusted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.patterns.error_management.checkpoint_files import read_checkpoint
from lakewright.patterns.error_management.checkpoint_notes import read_note, write_note
from lakewright.patterns.error_management.stateful_plans import state_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RENAMED", "refuse_other_state"]

_NOTE = "lakewright_state"
RENAMED = f"Where a column only has a new name, delete `{_NOTE}` in that folder and start again."


def refuse_other_state(df: DataFrame, path: str) -> None:
    """Refuse a checkpoint whose state was kept by other columns than this stream would; else note by which it is."""
    keys = list(state_keys(df))
    if not keys:
        return
    spark, place = df.sparkSession, f"{path.rstrip('/')}/{_NOTE}"
    noted = _read(spark, place)
    if noted == keys:
        return
    begun = read_checkpoint(spark, path) is not None
    if begun and noted is not None:
        raise ConfigurationError(
            f"Checkpointer: the state in {path} was kept by other columns: {_listed(noted)}; this stream would use it "
            f"as {_listed(keys)}. Nothing was started.",
            hint="State survives a change of filters, of computed columns and of the sink. For other keys begin with "
            f"the next version of the checkpoint; `starting_offsets` tells where the old one stopped. {RENAMED}",
        )
    if not begun:
        write_note(spark, place, json.dumps(keys))


def _listed(keys: list[str]) -> str:
    return "; ".join(keys)


def _read(spark: SparkSession, place: str) -> list[str] | None:
    text = read_note(spark, place)
    return [str(key) for key in json.loads(text)] if text else None
