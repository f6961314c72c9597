"""Held slices: late rows that the policy left out. Shown, not stale, until somebody takes them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, and_, bindparam, delete, insert, select, update

from lakewright.model.receipts import Receipt
from lakewright.store.tables import held

__all__ = ["HeldSlice", "held_of", "hold", "release", "release_taken_in"]


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """Rows of an input, up to its version, that a finished slice does not hold; None rows is unknown."""

    dataset: str
    slice_id: str
    input: str
    version: int
    rows: int | None = None
    since_run: str | None = None


_SAME = and_(
    held.c.dataset == bindparam("of"),
    held.c.slice_id == bindparam("slice"),
    held.c.input == bindparam("from"),
)


def hold(conn: Connection, slices: Sequence[HeldSlice]) -> None:
    """Add to what is held; where a slice is held already, ``since_run`` stays the run that began it."""
    for one in slices:
        same = {"of": one.dataset, "slice": one.slice_id, "from": one.input}
        again = update(held).where(_SAME).values(version=one.version, rows=one.rows)
        if not conn.execute(again, same).rowcount:
            conn.execute(insert(held), asdict(one))


def held_of(conn: Connection, dataset: str, input: str | None = None) -> dict[str, HeldSlice]:
    """What is held of a dataset, by slice."""
    query = select(held).where(held.c.dataset == dataset).order_by(held.c.slice_id, held.c.input)
    if input is not None:
        query = query.where(held.c.input == input)
    return {row.slice_id: HeldSlice(**row._mapping) for row in conn.execute(query)}


def release(conn: Connection, dataset: str, slice_id: str) -> None:
    """End what is held of a slice, whatever the input."""
    conn.execute(delete(held).where(held.c.dataset == dataset, held.c.slice_id == slice_id))


def release_taken_in(conn: Connection, receipts: Iterable[Receipt]) -> None:
    """A slice made from a version at or above the held one has judged those rows: the hold is over."""
    taken = [
        {"of": receipt.dataset, "slice": receipt.slice_id, "from": name, "upto": version}
        for receipt in receipts
        for name, version in receipt.inputs.items()
    ]
    if taken:
        conn.execute(delete(held).where(_SAME, held.c.version <= bindparam("upto")), taken)
