"""The system columns: what the lake adds to rows, hidden from steps unless they ask."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN

__all__ = [
    "ALIVE",
    "ARRIVAL_COLUMN",
    "BATCH_TIME_COLUMN",
    "CONTEXT_COLUMN",
    "CONTEXT_ID_COLUMN",
    "DAY_COLUMN",
    "DELETED_COLUMN",
    "EVENT_COLUMN",
    "FILE_COLUMN",
    "HASH_COLUMN",
    "OFFSET_COLUMN",
    "PARTITION_COLUMN",
    "POSITION_COLUMN",
    "RAW_COLUMN",
    "RECORD_COLUMNS",
    "SLICE_COLUMN",
    "SYSTEM_PREFIX",
    "TOPIC_COLUMN",
    "VERSION_COLUMN",
    "business_columns",
    "system_columns",
    "taken_names",
]

SYSTEM_PREFIX = "_lw_"

RAW_COLUMN = "_lw_raw"
"""The raw text of a record that did not parse; NULL for a good one."""
FILE_COLUMN = "_lw_file"
"""Where the record came from: a path relative to the source's folder."""
VERSION_COLUMN = "_lw_file_version"
"""Which version of that file: the same name with other bytes is another version."""
HASH_COLUMN = "_lw_hash"
"""A 64-bit hash of the record's content: with file and version it tells records apart, but for exact repeats."""
TOPIC_COLUMN = "_lw_topic"
"""The topic that a record came from; its place there is told by the next two, and nothing else is needed."""
PARTITION_COLUMN = "_lw_partition"
OFFSET_COLUMN = "_lw_offset"
DAY_COLUMN = "_lw_day"
"""The UTC day on which the micro-batch began that took a record, where a stream took it."""
BATCH_TIME_COLUMN = "_lw_batch_time"
"""When a micro-batch began, in Spark's own words, which stay the same when it is repeated; of no table."""
SLICE_COLUMN = "_lw_slice"
"""The slice that computed a row, where its event time may lie outside of it."""
POSITION_COLUMN = "_lw_position"
"""How far a row is: the place in the source's log of the last change that was applied to it."""
DELETED_COLUMN = "_lw_deleted"
"""Whether a row is only the mark of one that was deleted at its source; readers do not see it."""
CONTEXT_COLUMN = "_lw_context"
"""What is known of the run that made a row, as JSON: see Metadata Decorator."""
CONTEXT_ID_COLUMN = "_lw_context_id"
"""The same, told once in a technical table: which row of it."""

RECORD_COLUMNS = (FILE_COLUMN, VERSION_COLUMN, TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN, HASH_COLUMN)
"""What tells a record: file, version and the hash of its content; or topic, partition and offset."""


ALIVE = f"NOT coalesce({DELETED_COLUMN}, false)"
"""SQL for the rows that readers see, where a table keeps marks of deleted ones."""


def business_columns(columns: Iterable[str]) -> list[str]:
    """The columns without the system's own.

    >>> business_columns(["visit_id", "_lw_arrival"])
    ['visit_id']
    """
    return [name for name in columns if not name.startswith(SYSTEM_PREFIX)]


def taken_names(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """Which of the names the columns hold already, as they are written there.

    A name in other letters is the same column, as it is for Spark and Delta: ``withColumn`` would replace it.

    >>> taken_names(["visit_key", "why"], ["Visit_Key", "user"])
    ['Visit_Key']
    """
    asked = {name.lower() for name in names}
    return [name for name in columns if name.lower() in asked]


def system_columns(columns: Iterable[str]) -> list[str]:
    """The system's own columns.

    >>> system_columns(["visit_id", "_lw_arrival"])
    ['_lw_arrival']
    """
    return [name for name in columns if name.startswith(SYSTEM_PREFIX)]
