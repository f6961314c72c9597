"""Rows as JSON, from which every value can be read back: NULLs stay, and times keep their microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["JSON_OPTIONS"]

_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
JSON_OPTIONS: Mapping[str, str] = MappingProxyType(
    {"ignoreNullFields": "false", "timestampFormat": f"{_MICROS}XXX", "timestampNTZFormat": _MICROS}
)
"""For ``to_json``, whose own defaults leave NULLs out and cut times at milliseconds."""
