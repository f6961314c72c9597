"""The commit as a marker: a table with a log needs no flag file, for its commits say what they carry."""

from __future__ import annotations

from collections.abc import Iterator

from lakewright.model.outside import Log
from lakewright.model.receipts import Commit
from lakewright.model.slices import Slice

__all__ = ["find_data_commit"]


def find_data_commit(log: Log, slice_id: str = "whole", *, after: int | None = None) -> Commit | None:
    """The newest commit above version ``after`` that carries rows for a slice such as ``2026-01-05``; None: wait on.

    Runs no job. An OPTIMIZE, whose files hold rows that were there before, is no marker, nor is a change of the
    schema, a fence, or a commit that only takes rows away. Rows are told by the event cell that their files lie in:
    a table without such cells has commits for the whole alone.
    """
    wanted = Slice.parse(slice_id)
    for version in _newest_first(log, after):
        commit = log.commit(version)
        if commit.data_change and any(
            change.added != 0 for cell, change in commit.touched.items() if _lies_in(cell, wanted)
        ):
            return commit
    return None


def _newest_first(log: Log, after: int | None) -> Iterator[int]:
    oldest, newest = log.bounds()
    if oldest is None or newest is None:
        return iter(())
    first = oldest if after is None else max(oldest, after + 1)
    return iter(range(newest, first - 1, -1))


def _lies_in(cell: str | None, wanted: Slice) -> bool:
    if wanted.kind != "event":
        return True
    # 2026-01-05T07 lies in 2026-01-05. Of a coarser cell nobody knows whether its rows are of this hour.
    return cell is not None and cell.startswith(wanted.value)
