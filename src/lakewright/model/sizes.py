"""Amounts of bytes as people write them. A megabyte has 1,048,576 bytes here, as it has for Spark and Delta."""

from __future__ import annotations

import re

from lakewright.errors import ConfigurationError

__all__ = ["parse_size", "shown_size"]

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from text such as ``"128 MB"``.

    >>> parse_size("1.5 KB")
    1536
    """
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(f"{text!r} is not an amount of bytes. Write it as '128 MB' or '1 GB'.")
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


def shown_size(count: float) -> str:
    """Bytes for people.

    >>> shown_size(1536), shown_size(12), shown_size(134_217_728)
    ('1.5 KB', '12 B', '128 MB')
    """
    unit = next((name for name, size in reversed(_UNITS.items()) if count >= size), "B")
    value = f"{count / _UNITS[unit]:.1f}"
    return f"{value.removesuffix('.0')} {unit}"
