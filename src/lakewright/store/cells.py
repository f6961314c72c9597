"""Event cells of different grids in one query: each as the cell of a coarser grid that it lies in.

The text of a day begins with that of its month, and the text of an hour with that of its day. Weeks are the exception:
the database itself tells the ISO week of a day, each in its own words.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, String, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["cut_to"]

_WEEK = 8
"""How many characters the text of a week has: ``2026-W02``."""


def cut_to(cell: ColumnElement[str], width: int) -> ColumnElement[str]:
    """A cell as that of the grid whose texts have so many characters; a coarser cell stays as it is."""
    return _IsoWeek(cell) if width == _WEEK else func.substr(cell, 1, width)


class _IsoWeek(FunctionElement[str]):
    """The ISO week of an hour's or day's cell; any other text as it is."""

    type = String()
    inherit_cache = True
    name = "lw_iso_week"


@compiles(_IsoWeek, "sqlite")
def _on_sqlite(element: _IsoWeek, compiler: Any, **options: Any) -> str:
    cell = compiler.process(element.clauses, **options)
    # The week is that of its Thursday, also over New Year; SQLite learnt %G and %V only with 3.46.
    thursday = f"date(substr({cell}, 1, 10), '-3 days', 'weekday 4')"
    number = f"substr('0' || ((strftime('%j', {thursday}) - 1) / 7 + 1), -2)"
    return _if_day(cell, f"strftime('%Y', {thursday}) || '-W' || {number}")


@compiles(_IsoWeek, "postgresql")
def _on_postgres(element: _IsoWeek, compiler: Any, **options: Any) -> str:
    cell = compiler.process(element.clauses, **options)
    return _if_day(cell, f"to_char(to_date(substr({cell}, 1, 10), 'YYYY-MM-DD'), 'IYYY\"-W\"IW')")


def _if_day(cell: str, week: str) -> str:
    return f"(CASE WHEN substr({cell}, 1, 10) LIKE '____-__-__' THEN {week} ELSE {cell} END)"
