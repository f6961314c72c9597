"""How many rows lie in a stretch of event time, by the receipts of those who wrote them."""

from __future__ import annotations

from lakewright.model.cell_spans import CellSpan
from lakewright.store import Store

__all__ = ["rows_within"]


def rows_within(store: Store, name: str, cells: CellSpan, *, upto: int, after: int | None = None) -> int | None:
    """Net rows of a stretch of time by commits in ``(after, upto]``.

    None is unknown: also where a cell that lies in it only in part has rows, as nobody has counted its parts.
    """
    if cells.across and store.receipts.rows_in(name, cells.across, upto, after) != 0:
        return None
    return store.receipts.rows_between(name, cells.first, cells.end, upto, after)
