"""Rules that give one answer per row: judging asks them more than once, and a repeat of the slice once more."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakewright.errors import ConfigurationError

__all__ = ["refuse_unsteady"]

_TEXTS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`", re.DOTALL)
"""What is no code: text literals, and names in backticks."""
_UNSTEADY = re.compile(
    # Without parentheses only those that SQL takes so: `uuid` and `now` may be columns.
    r"(?<![\w.])(?:(rand|randn|random|uniform|randstr|uuid|shuffle|now)\s*\(|(current_timestamp|localtimestamp)\b)",
    re.IGNORECASE,
)


def refuse_unsteady(pattern: str, rules: Mapping[str, object]) -> None:
    """Refuse a condition that gives another answer each time that it is asked; seen in SQL text only.

    >>> refuse_unsteady("Dead-Letter", {"sampled": "rand() < 0.5"})
    Traceback (most recent call last):
    lakewright.errors.ConfigurationError: Dead-Letter: 'sampled' asks rand(), which gives another answer each time: ...
    """
    for name, rule in rules.items():
        found = _UNSTEADY.search(_TEXTS.sub("''", rule)) if isinstance(rule, str) else None
        if found is not None:
            raise ConfigurationError(
                f"{pattern}: '{name}' asks {found[1] or found[2]}(), which gives another answer each time: a row would "
                "be counted one way and written the other.",
                hint="Use what stands in the row: a column with the time at which it was taken, a hash of its key "
                "(xxhash64(visit_id) % 100 < 10).",
            )
