"""How many rows of an input a slice reads: as receipts tell, so that an attempt and its recovery count alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.model.cell_spans import CellSpan
from lakewright.model.slices import Slice
from lakewright.pipelines.cell_rows import rows_within

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["rows_at"]


def rows_at(shop: Workshop, name: str, slice_: Slice, version: int) -> int | None:
    """The rows of an input that a step of the same cut reads for a slice, as receipts tell; None is unknown."""
    receipts = shop.store.receipts
    if slice_.kind == "whole":
        heads = receipts.cells(name, upto=version)
        known = [head.rows for cell, head in heads.items() if cell is not None]
        return sum(rows or 0 for rows in known) if None not in known and receipts.is_whole(name) else None
    if slice_.kind == "arrival":
        return receipts.rows_added(name, slice_.id)
    grids = shop.graph.cell_grids(name)
    if slice_.kind != "event" or not grids:
        return None
    return rows_within(shop.store, name, CellSpan.of(slice_.interval, grids), upto=version)
