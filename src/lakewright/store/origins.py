"""Origins: whose log the receipts of a dataset tell of, where that is not simply this target's own.

A dataset without a row here is the target's own. A row holds the root of the other lake that it is read from, or
``OWN`` while a run is about to make the dataset here for the first time: until its table is there, nothing else
would keep another process from reading it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Engine, delete, insert, select

from lakewright.store.dialect import reading, writing
from lakewright.store.tables import origins

__all__ = ["OWN", "Origins"]

OWN = ""


class Origins:
    """Dataset -> the root of a lake."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> dict[str, str]:
        """Every dataset that has a row."""
        with reading(self._engine) as c:
            return {row.dataset: row.place for row in c.execute(select(origins))}

    def of(self, dataset: str, conn: Connection) -> str | None:
        """The place of one dataset, as a transaction sees it."""
        return conn.execute(select(origins.c.place).where(origins.c.dataset == dataset)).scalar()

    def set(self, names: Iterable[str], place: str | None, conn: Connection | None = None) -> None:
        """Note where datasets are read from; None: they are the target's own again."""
        chosen = list(names)
        with writing(self._engine, conn) as c:
            c.execute(delete(origins).where(origins.c.dataset.in_(chosen)))
            if place is not None and chosen:
                c.execute(insert(origins), [{"dataset": name, "place": place} for name in chosen])
