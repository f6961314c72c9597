"""Markers: the slices that were declared ready, for those who wait for them (Readiness Marker).

Guarantee:
    A slice that is being written again is not ready from before the first write until its receipt is there: both
    changes are part of the transactions that open and close the step. A slice without a row here, but with a live
    receipt, is ready: it was made by a stream, before this table was kept, or is told by a log alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update

from lakewright.store.dialect import reading, writing
from lakewright.store.tables import markers

__all__ = ["EVERY_SLICE", "Marker", "MarkerState", "Markers"]

MarkerState = Literal["ready", "withdrawn", "waiting"]
EVERY_SLICE = "*"
"""Withdrawn under this id, no slice of the dataset is ready (while it is being rolled back)."""

_PUT = (
    update(markers)
    .where(markers.c.dataset == bindparam("of"), markers.c.slice_id == bindparam("slice"))
    .values(state=bindparam("now_is"), set_at=bindparam("at"), run_id=bindparam("run"))
)
_ADD = insert(markers).values(
    dataset=bindparam("of"),
    slice_id=bindparam("slice"),
    state=bindparam("now_is"),
    set_at=bindparam("at"),
    run_id=bindparam("run"),
)


@dataclass(frozen=True, slots=True)
class Marker:
    """One slice that is complete and may be used, or was and is being written again."""

    dataset: str
    slice_id: str
    set_at: datetime
    run_id: str | None = None
    state: MarkerState = "ready"


class Markers:
    """Set after the receipt, withdrawn before the slice is written again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def set(
        self, dataset: str, slice_id: str, *, run_id: str | None, now: datetime, conn: Connection | None = None
    ) -> None:
        """Declare a slice ready, again where it was so already."""
        with writing(self._engine, conn) as c:
            _put(c, dataset, slice_id, "ready", run_id, now)

    def withdraw(
        self, dataset: str, slice_id: str, *, run_id: str | None, now: datetime, conn: Connection | None = None
    ) -> None:
        """A slice is not ready from now on, whether it was or not."""
        with writing(self._engine, conn) as c:
            _put(c, dataset, slice_id, "withdrawn", run_id, now)

    def forget(self, dataset: str, conn: Connection | None = None) -> None:
        """Drop what was declared of a dataset: its live receipts alone tell what is ready."""
        with writing(self._engine, conn) as c:
            c.execute(delete(markers).where(markers.c.dataset == dataset))

    def get(self, dataset: str, slice_id: str) -> Marker | None:
        """The marker of a slice, or None where none is set."""
        found = self.of(dataset, slice_id)
        return found if found is not None and found.state == "ready" else None

    def of(self, dataset: str, slice_id: str) -> Marker | None:
        """What was last said of a slice, set or withdrawn; what was said of every slice wins."""
        found = {one.slice_id: one for one in self._of(dataset, markers.c.slice_id.in_((slice_id, EVERY_SLICE)))}
        return found.get(EVERY_SLICE) or found.get(slice_id)

    def list(self, dataset: str | None = None) -> Sequence[Marker]:
        """The markers that are set, by dataset and slice."""
        return self._of(dataset, markers.c.state == "ready")

    def withdrawn(self, dataset: str) -> Sequence[Marker]:
        """The markers of a dataset that are not set any more, or not yet."""
        return self._of(dataset, markers.c.state == "withdrawn")

    def first_seen(self, name: str, things: Iterable[str], now: datetime) -> dict[str, datetime]:
        """Since when each of some things is waited for; one that is not named any more is forgotten."""
        wanted = set(things)
        known = {one.slice_id: one.set_at for one in self._of(name, markers.c.state == "waiting")}
        new, over = wanted - known.keys(), known.keys() - wanted
        if new or over:
            with writing(self._engine, None) as c:
                for one in sorted(new):
                    _put(c, name, one, "waiting", None, now)
                c.execute(delete(markers).where(markers.c.dataset == name, markers.c.slice_id.in_(over)))
        return {one: known.get(one, now) for one in wanted}

    def _of(self, dataset: str | None, *where: Any) -> Sequence[Marker]:
        query = select(markers).where(*where).order_by(markers.c.dataset, markers.c.slice_id)
        if dataset is not None:
            query = query.where(markers.c.dataset == dataset)
        with reading(self._engine) as c:
            return [Marker(**row._mapping) for row in c.execute(query)]


def _put(conn: Connection, dataset: str, slice_id: str, state: MarkerState, run_id: str | None, now: datetime) -> None:
    values = {"of": dataset, "slice": slice_id, "now_is": state, "at": now, "run": run_id}
    if not conn.execute(_PUT, values).rowcount:
        conn.execute(_ADD, values)
