"""Arrivals: what came in at each source, recorded before it is read.

Guarantee:
    Numbers rise by one per source. A window that was recorded is never extended, and the same key is the same arrival,
    however often it is recorded. Where a source loses a part of one before it was read, what is left stands in its
    place: what was committed is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from lakewright.model.arrivals import Arrival, FileVersion, Window
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import arrivals, source_files

__all__ = ["Arrivals"]


class Arrivals:
    """The recorded windows of all sources, and the file versions that they hold."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self,
        source: str,
        *,
        window: Window,
        files: Sequence[FileVersion] = (),
        supersedes: Sequence[tuple[int, FileVersion]] = (),
        key: str | None = None,
        run_id: str | None,
        now: datetime,
        number: int | None = None,
        conn: Connection | None = None,
    ) -> tuple[Arrival, bool]:
        """Close a window under the next number; with a key (or number) that is known, the arrival of then.

        The second value tells whether the arrival is new.
        """
        with writing(self._engine, conn) as c:
            known = _find(c, source, key=key, number=number)
            if known is not None:
                return known, False
            if number is None:
                last = select(func.max(arrivals.c.number)).where(arrivals.c.source == source)
                number = int(c.execute(last).scalar() or 0) + 1
            values = {
                "source": source,
                "number": number,
                "key": key,
                "window": dict(window),
                "recorded_at": now,
                "run_id": run_id,
                "committed": False,
            }
            c.execute(insert(arrivals), values)
            _register_files(c, source, number, files, supersedes)
            return _load(c, (arrivals.c.source == source) & (arrivals.c.number == number))[0], True

    def bring_back(self, arrival: Arrival, *, committed: bool = True, conn: Connection | None = None) -> None:
        """Note an arrival that a log tells of: recorded then, under its number, and as a rule committed."""
        with writing(self._engine, conn) as c:
            self.record(
                arrival.source,
                window=arrival.window,
                files=arrival.files,
                supersedes=arrival.supersedes,
                key=arrival.key,
                run_id=arrival.run_id,
                now=arrival.recorded_at,
                number=arrival.number,
                conn=c,
            )
            if committed:
                self.commit(arrival.source, arrival.number, conn=c)

    def pending(self, source: str) -> list[Arrival]:
        """Recorded but not committed, in order: what every attempt repeats first."""
        return self._where((arrivals.c.source == source) & arrivals.c.committed.is_(False))

    def get(self, source: str, number: int) -> Arrival | None:
        """One arrival, or None."""
        found = self._where((arrivals.c.source == source) & (arrivals.c.number == number))
        return found[0] if found else None

    def all(self, source: str) -> list[Arrival]:
        """Every arrival, in order."""
        return self._where(arrivals.c.source == source)

    def last(self, source: str) -> Arrival | None:
        """The newest arrival, committed or not."""
        newest = select(func.max(arrivals.c.number)).where(arrivals.c.source == source).scalar_subquery()
        found = self._where((arrivals.c.source == source) & (arrivals.c.number == newest))
        return found[0] if found else None

    def known_files(self, source: str) -> dict[str, tuple[str, int]]:
        """Path -> (version, arrival) of each file as it was last taken."""
        query = (
            select(source_files.c.path, source_files.c.version, source_files.c.arrival)
            .where(source_files.c.source == source, source_files.c.superseded_by.is_(None))
            .order_by(source_files.c.arrival)
        )
        with reading(self._engine) as c:
            return {path: (version, arrival) for path, version, arrival in c.execute(query)}

    def commit(self, source: str, number: int, conn: Connection | None = None) -> None:
        """Note that the arrival's rows are in its dataset."""
        which = (arrivals.c.source == source) & (arrivals.c.number == number)
        with writing(self._engine, conn) as c:
            c.execute(update(arrivals).where(which).values(committed=True))

    def narrow(
        self,
        source: str,
        number: int,
        window: Window,
        files: Sequence[FileVersion] = (),
        conn: Connection | None = None,
    ) -> None:
        """Put what is left of a window, and its files, in its place, under its number, unless it is committed.

        It is as if the other files had never been in it: one that comes back is new, and one that it would have
        superseded is superseded by whatever superseded the file itself, or by nothing.
        """
        which = (arrivals.c.source == source) & (arrivals.c.number == number) & arrivals.c.committed.is_(False)
        with writing(self._engine, conn) as c:
            if not c.execute(update(arrivals).where(which).values(window=dict(window))).rowcount:
                return
            mine = (source_files.c.source == source) & (source_files.c.arrival == number)
            kept = {file.path for file in files}
            held = c.execute(select(source_files.c.path, source_files.c.superseded_by).where(mine)).all()
            for path, by in held:
                if path not in kept:
                    same = (source_files.c.source == source) & (source_files.c.path == path)
                    before = same & (source_files.c.superseded_by == number)
                    c.execute(update(source_files).where(before).values(superseded_by=by))
                    c.execute(delete(source_files).where(same & mine))

    def count(self, source: str) -> int:
        """How many arrivals a source has had."""
        with reading(self._engine) as c:
            return int(c.execute(select(func.count()).where(arrivals.c.source == source)).scalar_one())

    def forget(self, source: str, conn: Connection | None = None) -> None:
        """Drop everything known of a source, for a rebuild."""
        with writing(self._engine, conn) as c:
            c.execute(delete(source_files).where(source_files.c.source == source))
            c.execute(delete(arrivals).where(arrivals.c.source == source))

    def _where(self, which: ColumnElement[bool]) -> list[Arrival]:
        with reading(self._engine) as c:
            return _load(c, which)


def _find(conn: Connection, source: str, *, key: str | None, number: int | None) -> Arrival | None:
    for column, value in ((arrivals.c.key, key), (arrivals.c.number, number)):
        if value is not None and (found := _load(conn, (arrivals.c.source == source) & (column == value))):
            return found[0]
    return None


def _register_files(
    conn: Connection,
    source: str,
    number: int,
    files: Iterable[FileVersion],
    supersedes: Iterable[tuple[int, FileVersion]],
) -> None:
    replaced = [{"of": source, "old": old, "file": file.path, "by": number} for old, file in supersedes]
    if replaced:
        current = and_(
            source_files.c.source == bindparam("of"),
            source_files.c.arrival == bindparam("old"),
            source_files.c.path == bindparam("file"),
            source_files.c.superseded_by.is_(None),
        )
        conn.execute(update(source_files).where(current).values(superseded_by=bindparam("by")), replaced)
    taken = [
        {"source": source, "arrival": number, "path": file.path, "version": file.version, "size": file.size}
        for file in files
    ]
    if taken:
        conn.execute(insert(source_files), taken)


def _load(conn: Connection, which: ColumnElement[bool]) -> list[Arrival]:
    """The arrivals with their files, in three queries however many they are."""
    rows = conn.execute(select(arrivals).where(which).order_by(arrivals.c.number)).all()
    files = _files(conn, source_files.c.arrival, which)
    replaced = _files(conn, source_files.c.superseded_by, which)
    return [
        Arrival(
            source=row.source,
            number=row.number,
            window=row.window,
            recorded_at=row.recorded_at,
            run_id=row.run_id,
            key=row.key,
            files=tuple(file for _, file in files.get(row.number, ())),
            supersedes=tuple(replaced.get(row.number, ())),
        )
        for row in rows
    ]


def _files(
    conn: Connection, of: ColumnElement[int | None], which: ColumnElement[bool]
) -> dict[int, list[tuple[int, FileVersion]]]:
    query = (
        select(of, source_files.c.arrival, source_files.c.path, source_files.c.version, source_files.c.size)
        .join(arrivals, and_(arrivals.c.source == source_files.c.source, arrivals.c.number == of))
        .where(which)
        .order_by(source_files.c.arrival, source_files.c.path)
    )
    found: dict[int, list[tuple[int, FileVersion]]] = {}
    for number, arrival, path, version, size in conn.execute(query):
        found.setdefault(number, []).append((arrival, FileVersion(path, version, size)))
    return found
