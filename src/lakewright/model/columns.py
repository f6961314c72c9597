"""The system columns: what the lake adds to rows, hidden from steps unless they ask."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN

__all__ = [
    "ARRIVAL_COLUMN",
    "EVENT_COLUMN",
    "FILE_COLUMN",
    "HASH_COLUMN",
    "RAW_COLUMN",
    "RECORD_COLUMNS",
    "SLICE_COLUMN",
    "SYSTEM_PREFIX",
    "VERSION_COLUMN",
    "business_columns",
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
SLICE_COLUMN = "_lw_slice"
"""The slice that computed a row, where its event time may lie outside of it."""

RECORD_COLUMNS = (FILE_COLUMN, VERSION_COLUMN, HASH_COLUMN)


def business_columns(columns: Iterable[str]) -> list[str]:
    """The columns without the system's own.

    >>> business_columns(["visit_id", "_lw_arrival"])
    ['visit_id']
    """
    return [name for name in columns if not name.startswith(SYSTEM_PREFIX)]
