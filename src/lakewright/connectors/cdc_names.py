"""Names of a capture: its connector, slot, publication and topics, from the project and the dataset."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.errors import ConfigurationError

__all__ = ["CaptureNames", "derived_name", "qualified"]

_LONGEST = 63
"""PostgreSQL cuts longer names, silently."""
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,180}")


@dataclass(frozen=True, slots=True)
class CaptureNames:
    """What a capture is called outside of the project."""

    connector: str
    slot: str
    publication: str
    topic_prefix: str

    def topic(self, table: str) -> str:
        """The topic that carries the changes of a table.

        >>> CaptureNames("lw_blog", "lw_blog", "lw_blog", "blog").topic("public.visits")
        'blog.public.visits'
        """
        return f"{self.topic_prefix}.{table}"


def derived_name(project: str, dataset: str) -> str:
    """A name that PostgreSQL takes for a slot: small letters, digits and underscores, at most 63 of them.

    >>> derived_name("Blog platform", "legacy_visits")
    'lw_blog_platform_legacy_visits'
    """
    name = re.sub(r"[^a-z0-9]+", "_", f"lw_{project}_{dataset}".lower()).strip("_")
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def qualified(tables: Sequence[str], *, who: str = "ChangeDataCapture") -> tuple[str, ...]:
    """The tables with their schema, ``public`` where none is given; refuses a name that would have to be quoted.

    >>> qualified(["visits", "shop.orders"])
    ('public.visits', 'shop.orders')
    """
    if isinstance(tables, str) or not tables:
        raise ConfigurationError("ChangeDataCapture: name at least one table: tables=['public.visits'].")
    found = tuple(table if "." in table else f"public.{table}" for table in tables)
    for table in found:
        if not _TABLE.fullmatch(table):
            raise ConfigurationError(
                f"{who}: the table '{table}' cannot be captured: only letters, digits and underscores may be in its "
                "name.",
                hint="Write it as 'schema.table', without quotes.",
            )
    if len(set(found)) < len(found):
        raise ConfigurationError(f"ChangeDataCapture: a table is named twice: {', '.join(found)}.")
    return found


def check_slot_name(option: str, name: str | None, *, who: str = "ChangeDataCapture") -> None:
    """Refuse what PostgreSQL would not take for a slot (nor, unquoted, for a publication)."""
    if name is not None and not _SLOT.fullmatch(name):
        raise ConfigurationError(
            f"{who}: {option}='{name}' is no name for PostgreSQL.",
            hint="Small letters, digits and underscores, at most 63.",
        )


def check_prefix(prefix: str | None) -> None:
    """Refuse what Kafka would not take as the beginning of a topic's name."""
    if prefix is not None and not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"ChangeDataCapture: topic_prefix='{prefix}' cannot begin the name of a topic.",
            hint="Letters, digits, dots, dashes and underscores.",
        )
