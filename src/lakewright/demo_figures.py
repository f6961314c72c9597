"""A line of the demo's second table, and what receipts tell for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from lakewright.model.receipts import Receipt

__all__ = ["Way", "receipts_of", "rows_in"]


class Way(NamedTuple):
    """What a pattern was used for, and two figures that agree."""

    pattern: str
    dataset: str
    ours: int
    true: int
    told: str
    equal: bool = True
    """What counts cannot tell."""


def receipts_of(project: Project, name: str) -> list[Receipt]:
    """The receipts of a dataset's slices as they are now."""
    receipts = project.store.receipts
    return [one for slice_id in receipts.live_slices(name) if (one := receipts.live(name, slice_id)) is not None]


def rows_in(receipts: list[Receipt]) -> int:
    return sum(one.rows or 0 for one in receipts)
