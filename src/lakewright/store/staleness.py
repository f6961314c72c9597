"""Which slices an input's commits have left behind: cells, net rows, stale and missing slices.

All are questions about event cells, answered by grouping one stretch of ``touched``. Cells and slices of
different grids meet by their first characters: 13 for hours, 10 for days, 7 for months; 8 stands for weeks, which
are told by the calendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Subquery, and_, bindparam, case, func, or_, select

from lakewright.model.slices import ANY_CELL
from lakewright.model.times import GRID_OF_WIDTH, cell_interval, cells_between
from lakewright.store.cells import cut_to
from lakewright.store.receipt_rows import NO_CELL
from lakewright.store.settling import slices_at
from lakewright.store.tables import receipt_inputs, receipts, touched

__all__ = [
    "CellHead",
    "LiveSlice",
    "StaleSlice",
    "cells",
    "live_slices",
    "missing",
    "net_rows",
    "stale",
    "withdrawn",
]


class CellHead(NamedTuple):
    """How a cell stands: the last version that made its readers stale, and its rows (None is unknown)."""

    version: int
    rows: int | None


class LiveSlice(NamedTuple):
    """What a plan needs to know of a live receipt."""

    version: int
    inputs: dict[str, int]
    code: str | None


class StaleSlice(NamedTuple):
    """A live slice whose input has moved on in the slice's own time."""

    slice_id: str
    version: int
    input_then: int
    input_now: int


class _Restored(NamedTuple):
    """The newest rollback of a dataset, and the version of an input that it took as settled."""

    version: int
    input_version: int


_NET = func.sum(touched.c.added - touched.c.removed)
_KNOWN = func.count(touched.c.added - touched.c.removed) == func.count()
_HEAD = func.max(case((touched.c.staling, touched.c.version)))

# Every step asks this: the question is put together once.
_LIVE_VERSION = (
    select(receipts.c.version)
    .where(
        receipts.c.dataset == bindparam("of"),
        receipts.c.kind == "data",
        receipts.c.state == "live",
        receipts.c.slice_id == bindparam("slice"),
    )
    .scalar_subquery()
)
_BROUGHT = select(_LIVE_VERSION, func.count(), func.count(touched.c.added), func.sum(touched.c.added)).where(
    touched.c.dataset == bindparam("of"), touched.c.version == _LIVE_VERSION, touched.c.cell != NO_CELL
)


def live_slices(conn: Connection, dataset: str) -> dict[str, LiveSlice]:
    """Slice -> what its live receipt was made of, in one query."""
    query = (
        select(
            receipts.c.slice_id,
            receipts.c.version,
            receipts.c.code,
            receipt_inputs.c.input,
            receipt_inputs.c.version,
        )
        .select_from(receipts.outerjoin(receipt_inputs, receipt_inputs.c.receipt_id == receipts.c.receipt_id))
        .where(_live(dataset))
        .order_by(receipts.c.slice_id)
    )
    found: dict[str, LiveSlice] = {}
    for slice_id, version, code, name, input_version in conn.execute(query):
        if slice_id not in found:
            found[slice_id] = LiveSlice(version, {}, code)
        if name is not None:
            found[slice_id].inputs[name] = input_version
    return found


def cells(conn: Connection, dataset: str, upto: int | None = None) -> dict[str | None, CellHead]:
    """Event cell -> how it stands, in one grouped query."""
    query = (
        select(touched.c.cell, _HEAD, case((_KNOWN, _NET)))
        .where(touched.c.dataset == dataset)
        .group_by(touched.c.cell)
        .having(_HEAD.is_not(None))
    )
    if upto is not None:
        query = query.where(touched.c.version <= upto)
    return {
        None if cell == NO_CELL else cell: CellHead(version, None if rows is None else int(rows))
        for cell, version, rows in conn.execute(query)
    }


def net_rows(conn: Connection, *where: ColumnElement[bool]) -> int | None:
    """Rows added minus rows removed by the commits that fulfil all conditions; None where one is silent."""
    known, rows = conn.execute(select(_KNOWN, _NET).select_from(touched).where(*where)).one()
    return int(rows or 0) if known else None


def rows_added(conn: Connection, dataset: str, slice_id: str) -> int | None:
    """The rows in event cells that the live receipt of a slice brought; None where there is none, or it is silent."""
    live, cells, known, rows = conn.execute(_BROUGHT, {"of": dataset, "slice": slice_id}).one()
    return int(rows or 0) if live is not None and cells == known else None


def stale(conn: Connection, dataset: str, input: str, grid_width: int, coarser: Sequence[int] = ()) -> list[StaleSlice]:
    """The live slices whose input has a newer commit in the same cell; only those come back."""
    then = _settled_version(_last_restore(conn, dataset, input))
    found: dict[str, StaleSlice] = {}
    for width in (grid_width, *coarser):
        # Of coarser cells those alone that were written as such: cut to them, the finer ones would count for too much.
        heads = _heads(input, width, uncut=width != grid_width)
        query = (
            select(receipts.c.slice_id, receipts.c.version, then, heads.c.version)
            .join(receipt_inputs, receipt_inputs.c.receipt_id == receipts.c.receipt_id)
            .join(heads, heads.c.cell == cut_to(receipts.c.slice_id, width))
            .where(_live(dataset), receipt_inputs.c.input == input, heads.c.version > then)
        )
        for row in conn.execute(query):
            one = StaleSlice(*row)
            if one.slice_id not in found or found[one.slice_id].input_now < one.input_now:
                found[one.slice_id] = one
    return [found[slice_id] for slice_id in sorted(found)]


def missing(conn: Connection, dataset: str, input: str, grid_width: int) -> list[str]:
    """The cells with rows of the input, or an unknown number of them, that no live receipt covers."""
    heads = _heads(input, grid_width)
    own_cells = select(cut_to(receipts.c.slice_id, grid_width)).where(_live(dataset))
    query = (
        select(heads.c.cell, heads.c.version)
        .where(or_(heads.c.rows.is_(None), heads.c.rows > 0))
        .where(heads.c.cell.not_in(own_cells))
    )
    found: list[tuple[str, int]] = [(cell, version) for cell, version in conn.execute(query)]
    if any(len(cell) < grid_width for cell, _ in found):
        live = set(conn.scalars(own_cells))
        found = [(part, version) for cell, version in found for part in _parts(cell, grid_width) if part not in live]
    if (restored := _last_restore(conn, dataset, input)) is not None:
        # What was rolled back on purpose does not come back by itself, only with something new.
        gone = {*_withdrawn(conn, dataset, restored.version, grid_width).values()}
        found = [(cell, version) for cell, version in found if version > restored.input_version or cell not in gone]
    return sorted({cell for cell, _ in found})


def _parts(cell: str, grid_width: int) -> Iterable[str]:
    """A coarser cell as all cells of the wanted grid within it: any of them may have its rows."""
    if len(cell) >= grid_width:
        return (cell,)
    span = cell_interval(cell)
    return cells_between(span.start, span.end, GRID_OF_WIDTH[grid_width])


def withdrawn(conn: Connection, dataset: str, restored_at: int) -> set[str]:
    """The slices that a rollback took away. Those that it had left, and something later took, are not among them."""
    return {*_withdrawn(conn, dataset, restored_at)}


def _withdrawn(conn: Connection, dataset: str, restored_at: int, grid_width: int = 0) -> dict[str, str]:
    """The same slices, each with its cell of a grid."""
    cell = cut_to(receipts.c.slice_id, grid_width) if grid_width else receipts.c.slice_id
    query = select(receipts.c.slice_id, cell)
    gone = query.where(_of_state(dataset, "rolled back"), receipts.c.version < restored_at).distinct()
    found = {row[0]: row[1] for row in conn.execute(gone)}
    left = slices_at(conn, dataset, restored_at) if found else set()
    return {slice_id: cut for slice_id, cut in found.items() if slice_id not in left}


def _heads(input: str, grid_width: int, *, uncut: bool = False) -> Subquery:
    """Per cell of the wider grid: the last version that made readers stale, the rows (NULL is unknown).

    With ``uncut`` only the cells that are as wide by themselves. Rows that had no event time by declaration are in
    none: the plan tells of them.
    """
    cell = cut_to(touched.c.cell, grid_width)
    which = [func.length(touched.c.cell) == grid_width] if uncut else []
    return (
        select(cell.label("cell"), _HEAD.label("version"), case((_KNOWN, _NET)).label("rows"))
        .where(touched.c.dataset == input, touched.c.cell.not_in([NO_CELL, ANY_CELL]), *which)
        .group_by(cell)
        .having(_HEAD.is_not(None))
        .subquery()
    )


def _last_restore(conn: Connection, dataset: str, input: str) -> _Restored | None:
    newest = (
        select(receipts.c.version, receipt_inputs.c.version)
        .join(receipt_inputs, receipt_inputs.c.receipt_id == receipts.c.receipt_id)
        .where(receipts.c.dataset == dataset, receipts.c.kind == "restore", receipt_inputs.c.input == input)
        .order_by(receipts.c.version.desc())
        .limit(1)
    )
    row = conn.execute(newest).one_or_none()
    return None if row is None else _Restored(*row)


def _settled_version(restored: _Restored | None) -> ColumnElement[int]:
    """The version of the input up to which a slice is settled: its receipt's, or a later rollback's."""
    own = receipt_inputs.c.version
    if restored is None:
        return own
    behind = and_(receipts.c.version < restored.version, own < restored.input_version)
    return case((behind, restored.input_version), else_=own)


def _live(dataset: str) -> ColumnElement[bool]:
    return _of_state(dataset, "live")


def _of_state(dataset: str, state: str) -> ColumnElement[bool]:
    return and_(receipts.c.dataset == dataset, receipts.c.kind == "data", receipts.c.state == state)
