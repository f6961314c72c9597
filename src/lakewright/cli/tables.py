"""Small tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lakewright.masking import mask

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain_table"]

_STYLES = {
    "ok": "green",
    "finished": "green",
    "warn": "yellow",
    "started": "yellow",
    "interrupted": "yellow",
    "running": "cyan",
    "fail": "bold red",
    "failed": "bold red",
    "lost": "bold red",
    "refused": "bold red",
}


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), exact: bool = False
) -> Table:
    """A table with one line, below its header.

    The columns in ``right`` hold numbers. A column called ``state`` is coloured; its words alone say the same.
    Secrets are masked before a long cell is broken into lines, unless the cells are rows of data (``exact``).
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        # Text, not str: a value may hold square brackets.
        cells = zip(columns, row if exact else map(mask, row), strict=True)
        table.add_row(*[Text(cell, style=_STYLES.get(cell, "") if name == "state" else "") for name, cell in cells])
    return table
