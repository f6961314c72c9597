"""How dead letters, and whatever else is set aside, tell which record of a source they are of.

A record of a file is told by file, version and hash. One of a topic by its place there, which also stands where a file
would, so that ``(file, file_version, record_hash)`` tells any record, wherever it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lakewright.model.columns import (
    FILE_COLUMN,
    HASH_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TOPIC_COLUMN,
    VERSION_COLUMN,
)

__all__ = ["PLACE_OF_LETTER", "RECORD_ID", "SAME_RECORD", "letter_columns", "place_columns"]

# Not `lower`: with the first call of it Spark goes through all letters of all scripts, which costs a second.
RECORD_ID = (
    "translate(lpad(hex(xxhash64(input, coalesce(file, ''), coalesce(file_version, ''), "
    "CASE WHEN offset IS NULL THEN record_hash ELSE 0 END)), 16, '0'), 'ABCDEF', 'abcdef')"
)
"""SQL on dead letters for the short name of a record; records that are the same to the byte share it."""
PLACE_OF_LETTER = ("file", "file_version", "offset", "record_hash")
"""The columns of dead letters that tell their record, beside the input."""
SAME_RECORD = (
    "t.file <=> s.file AND t.file_version <=> s.file_version "
    "AND (s.offset IS NOT NULL OR t.record_hash <=> s.record_hash)"
)
"""SQL for two dead letters of one input that are of one record, as its short name tells it."""
_TOLD = {
    FILE_COLUMN: "file",
    VERSION_COLUMN: "file_version",
    TOPIC_COLUMN: "topic",
    PARTITION_COLUMN: "partition",
    OFFSET_COLUMN: "offset",
    HASH_COLUMN: "record_hash",
}
_KINDS = {"file": "string", "file_version": "string", "topic": "string", "partition": "int", "offset": "bigint"}


def letter_columns(keys: Iterable[str]) -> dict[str, str]:
    """Under which names dead letters tell the columns by which a bronze table tells its records.

    >>> letter_columns(["_lw_topic", "_lw_partition", "_lw_offset"])
    {'_lw_topic': 'topic', '_lw_partition': 'partition', '_lw_offset': 'offset'}
    """
    return {key: _TOLD[key] for key in keys}


def place_columns(columns: Collection[str]) -> list[str]:
    """Where a record came from, in the words of dead letters: SQL on rows that have these record columns.

    >>> place_columns(["_lw_topic", "_lw_partition", "_lw_offset"])[:2]
    ["concat_ws('/', _lw_topic, _lw_partition) AS file", 'CAST(_lw_offset AS STRING) AS file_version']
    >>> place_columns(["_lw_file", "_lw_file_version"])[2:]
    ['CAST(NULL AS string) AS topic', 'CAST(NULL AS int) AS partition', 'CAST(NULL AS bigint) AS offset']
    """
    told = {name: column for column, name in _TOLD.items() if column in columns and name in _KINDS}
    if OFFSET_COLUMN in columns:
        told["file"] = f"concat_ws('/', {TOPIC_COLUMN}, {PARTITION_COLUMN})"
        told["file_version"] = f"CAST({OFFSET_COLUMN} AS STRING)"
    return [f"{told.get(name, f'CAST(NULL AS {kind})')} AS {name}" for name, kind in _KINDS.items()]
