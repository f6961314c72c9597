"""Names and texts inside SQL."""

from __future__ import annotations

__all__ = ["quoted", "text_literal"]


def quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever signs it holds.

    >>> quoted("visit.id")
    '`visit.id`'
    """
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    r"""A text as Spark's SQL takes it.

    >>> print(text_literal("it's"))
    'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
