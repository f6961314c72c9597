"""Streams: the generations of each stream's checkpoint, and how far the newest one is."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select, update

from lakewright.model.arrivals import Window
from lakewright.model.streams import FIRST_GENERATION, Generation, Progress
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import streams

__all__ = ["Streams"]


class Streams:
    """A row per dataset and generation; the highest generation is the one that reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def current(self, dataset: str, conn: Connection | None = None) -> Generation | None:
        """The generation that reads, or None where the stream never began."""
        newest = select(streams).where(streams.c.dataset == dataset).order_by(streams.c.generation.desc()).limit(1)
        if conn is not None:
            row = conn.execute(newest).one_or_none()
        else:
            with reading(self._engine) as c:
                row = c.execute(newest).one_or_none()
        return None if row is None else _generation(row)

    def begin(
        self,
        dataset: str,
        *,
        run_id: str | None,
        now: datetime,
        start: Window | None = None,
        first: int | None = None,
        number: int | None = None,
        conn: Connection | None = None,
    ) -> Generation:
        """Record a new generation, before anything is read by it; a known number is the generation of then."""
        with writing(self._engine, conn) as c:
            last = self.current(dataset, c)
            if number is None:
                number = FIRST_GENERATION if last is None else last.number + 1
            known = c.execute(
                select(streams).where(streams.c.dataset == dataset, streams.c.generation == number)
            ).one_or_none()
            if known is not None:
                return _generation(known)
            values = {
                "dataset": dataset,
                "generation": number,
                "start": None if start is None else dict(start),
                "first": first,
                "recorded_at": now,
                "run_id": run_id,
            }
            c.execute(insert(streams), values)
            return Generation(dataset, number, now, start, first, run_id)

    def advance(self, dataset: str, generation: int, progress: Progress, *, now: datetime) -> None:
        """Note how far a generation is."""
        which = (streams.c.dataset == dataset) & (streams.c.generation == generation)
        with writing(self._engine) as c:
            c.execute(update(streams).where(which).values(progress=progress.to_json(), updated_at=now))

    def forget(self, dataset: str, conn: Connection | None = None) -> None:
        """Drop everything known of a stream, for a rebuild."""
        with writing(self._engine, conn) as c:
            c.execute(delete(streams).where(streams.c.dataset == dataset))


def _generation(row: Row[Any]) -> Generation:
    progress = None if row.progress is None else Progress.from_json(row.progress, row.updated_at)
    return Generation(row.dataset, row.generation, row.recorded_at, row.start, row.first, row.run_id, progress)
