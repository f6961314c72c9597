"""Arrival: one recorded window of one source.

Numbered per source, recorded before reading, closed once recorded, repeated by every attempt. A *window* is
what the connector needs to read exactly that again (files with their versions, offsets, a cursor range), as
plain JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

__all__ = ["WINDOW_LIMIT_BYTES", "Arrival", "FileVersion", "JsonValue", "Window"]

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
Window: TypeAlias = Mapping[str, JsonValue]

WINDOW_LIMIT_BYTES = 32_768
"""A window larger than this lies in ``_lakewright/windows/`` and is named in the commit."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One file as it was when it was seen: a changed file under the same name is another version."""

    path: str
    version: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came in at once, and what a repeat reads again.

    ``supersedes`` names the file versions of earlier arrivals whose rows leave in the same commit.
    """

    source: str
    number: int
    window: Window
    recorded_at: datetime
    run_id: str | None = None
    key: str | None = None
    files: tuple[FileVersion, ...] = ()
    supersedes: tuple[tuple[int, FileVersion], ...] = field(default=())
