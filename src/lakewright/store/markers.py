"""Markers: the slices that were declared ready, for those who wait for them (Readiness Marker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, Engine, delete, insert, select

from lakewright.store.dialect import reading, writing
from lakewright.store.tables import markers

__all__ = ["Marker", "Markers"]


@dataclass(frozen=True, slots=True)
class Marker:
    """One slice that is complete and may be used."""

    dataset: str
    slice_id: str
    set_at: datetime
    run_id: str | None = None
    state: Literal["ready"] = "ready"


class Markers:
    """Set after the receipt, withdrawn before the slice is written again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def set(
        self,
        dataset: str,
        slice_id: str,
        *,
        run_id: str | None,
        now: datetime,
        conn: Connection | None = None,
    ) -> None:
        """Declare a slice ready, again where it was so already."""
        with writing(self._engine, conn) as c:
            self.withdraw(dataset, slice_id, conn=c)
            c.execute(insert(markers), asdict(Marker(dataset, slice_id, now, run_id)))

    def withdraw(self, dataset: str, slice_id: str, conn: Connection | None = None) -> bool:
        """Take a declaration back; False where there was none."""
        which = (markers.c.dataset == dataset) & (markers.c.slice_id == slice_id)
        with writing(self._engine, conn) as c:
            return c.execute(delete(markers).where(which)).rowcount > 0

    def get(self, dataset: str, slice_id: str) -> Marker | None:
        """The marker of a slice, or None where it is not ready."""
        return next((marker for marker in self.list(dataset) if marker.slice_id == slice_id), None)

    def list(self, dataset: str | None = None) -> Sequence[Marker]:
        """What is ready, by dataset and slice."""
        query = select(markers).order_by(markers.c.dataset, markers.c.slice_id)
        if dataset is not None:
            query = query.where(markers.c.dataset == dataset)
        with reading(self._engine) as c:
            return [Marker(**row._mapping) for row in c.execute(query)]
