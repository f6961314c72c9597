"""Leases: who may write what just now, and the rising numbers that make a late writer harmless.

Guarantee:
    Per dataset each grant's number is higher than every earlier one. A slice has one lease at most, and a
    lease on the whole dataset excludes all others of it. A lease that was not given back is taken over only
    from an owner that is gone or silent beyond its time, and its next owner is told what to fence. Time is
    the database server's where there is one (``lease_time``): machines whose clocks differ agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, delete, insert, literal, or_, select, update

from lakewright.errors import StoreBusyError
from lakewright.model.times import utc_now
from lakewright.store.dialect import lease_time, reading, writing
from lakewright.store.lease_rows import (
    LEASES_WITH_OWNERS,
    WHOLE_DATASET,
    Grant,
    HeldLease,
    held_error,
    lives,
    to_held,
)
from lakewright.store.owners import Owner, is_alive, this_process
from lakewright.store.tables import leases, numbers, owners

__all__ = ["WHOLE_DATASET", "Grant", "HeldLease", "Leases", "Owner", "is_alive", "this_process"]

_NOBODY = ""
"""The owner of a lease that was broken: nobody holds it, and its next owner still has to fence it."""


class Leases:
    """Owners with their heartbeat, and what they hold."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, owner: Owner, ttl: timedelta, now: datetime, conn: Connection | None = None) -> None:
        """Make an owner known until ``now + ttl``; ``beat`` prolongs it."""
        known = {"host": owner.host, "pid": owner.pid, "process_started": owner.process_started}
        with writing(self._engine, conn) as c:
            at = lease_time(c, now)
            values = known | {"beat_at": at, "expires_at": at + ttl}
            again = update(owners).where(owners.c.owner_id == owner.owner_id)
            if not c.execute(again.values(values)).rowcount:
                c.execute(insert(owners).values(owner_id=owner.owner_id, **values))

    def beat(self, owner_id: str, ttl: timedelta, now: datetime, conn: Connection | None = None) -> bool:
        """Prolong all leases of an owner at once; False where it lost them and must stop writing."""
        own = update(owners).where(owners.c.owner_id == owner_id)
        with writing(self._engine, conn) as c:
            at = lease_time(c, now)
            return c.execute(own.values(beat_at=at, expires_at=at + ttl)).rowcount > 0

    def forget(self, owner_id: str, conn: Connection | None = None) -> None:
        """Give back everything that an owner holds, and the owner itself."""
        with writing(self._engine, conn) as c:
            c.execute(delete(leases).where(leases.c.owner_id == owner_id))
            c.execute(delete(owners).where(owners.c.owner_id == owner_id))

    def acquire(
        self,
        dataset: str,
        slice_id: str,
        *,
        owner_id: str,
        run_id: str | None,
        now: datetime,
        parts: Sequence[str] = (),
        conn: Connection | None = None,
    ) -> Grant:
        """Lease a slice (or ``*``, the whole dataset), taking over from owners that are gone.

        Raises ``LeaseHeldError`` where a living owner, or this one itself, holds something that overlaps.
        """
        with writing(self._engine, conn) as c:
            # Drawn first: the row of the number keeps two who ask for one dataset apart on any database.
            number = _draw(c, dataset)
            gone = c.execute(_OVERLAPPING, {"of": dataset, "slice": slice_id}).all()
            at = lease_time(c, now)
            for row in gone:
                if row.owner_id == owner_id or lives(row, at):
                    raise held_error(row, asked_by=owner_id)
            fence = None
            if gone:
                fence, number = number, _draw(c, dataset)
                _take_from(c, dataset, gone)
            taken = {"of": dataset, "slice": slice_id, "owner": owner_id, "number": number}
            if c.execute(_GRANT, taken | {"at": now, "run": run_id, "parts": list(parts)}).first() is None:
                raise StoreBusyError(
                    f"This worker ({owner_id}) is not registered, or was taken for dead and lost its leases.",
                    hint="Run again: what it had written stays, what it had begun is recovered.",
                )
        return Grant(
            dataset,
            slice_id,
            owner_id,
            number,
            fence=fence,
            taken_from=tuple((row.slice_id, row.number, row.run_id) for row in gone),
            parts=tuple(sorted({part for row in gone for part in row.parts})),
        )

    def acquire_place(
        self,
        name: str,
        places: Sequence[str],
        *,
        owner_id: str,
        run_id: str | None,
        now: datetime,
        queue: str | None = None,
        ticket: int | None = None,
    ) -> Grant:
        """Lease the first of several places that no living owner has, behind everybody who waits longer in ``queue``.

        ``ticket`` is the number of one's own place there; without one, everybody who waits comes first. Raises
        ``LeaseHeldError`` where no place is free, or it is not one's turn.
        """
        with writing(self._engine) as c:
            _draw(c, name)  # keeps two who ask apart on any database
            at = lease_time(c, now)
            known = c.execute(LEASES_WITH_OWNERS.where(leases.c.dataset.in_([name, queue or name]))).all()
            living = [row for row in known if row.owner_id != owner_id and lives(row, at)]
            taken = [row for row in living if row.dataset == name]
            ahead = [row for row in living if row.dataset == queue and (ticket is None or row.number < ticket)]
            busy = {row.slice_id for row in taken}
            whole = {WHOLE_DATASET} & busy
            free = [one for one in places if not (whole or one in busy or (one == WHOLE_DATASET and busy))]
            if ahead or not free:
                raise held_error((ahead or taken)[0], asked_by=owner_id)
            return self.acquire(name, free[0], owner_id=owner_id, run_id=run_id, now=now, conn=c)

    def check(self, dataset: str, slice_id: str, number: int, now: datetime, conn: Connection | None = None) -> bool:
        """Whether a grant still holds: not taken over, not broken, its owner not silent for too long."""
        mine = (leases.c.dataset == dataset) & (leases.c.slice_id == slice_id) & (leases.c.number == number)
        with reading(self._engine) if conn is None else nullcontext(conn) as c:
            row = c.execute(LEASES_WITH_OWNERS.where(mine)).one_or_none()
            at = lease_time(c, now)
        return row is not None and row.expires_at is not None and row.expires_at > at

    def release(self, dataset: str, slice_id: str, number: int, conn: Connection | None = None) -> bool:
        """Give a lease back; False where it was no longer ours."""
        with writing(self._engine, conn) as c:
            return c.execute(_RELEASE, {"of": dataset, "slice": slice_id, "number": number}).rowcount > 0

    def abandon(self, dataset: str, slice_id: str, *, owner_id: str, conn: Connection | None = None) -> bool:
        """Leave what an owner holds of a slice to whoever asks next, who fences it; False where it holds nothing.

        For an owner that lives, and whose helper died at work, or could not give it back while the store was away:
        what that one still does is nobody's any more.
        """
        mine = (leases.c.dataset == dataset) & (leases.c.owner_id == owner_id)
        mine &= leases.c.slice_id.in_([slice_id, WHOLE_DATASET])
        with writing(self._engine, conn) as c:
            return c.execute(update(leases).where(mine).values(owner_id=_NOBODY)).rowcount > 0

    def break_lease(
        self,
        dataset: str,
        slice_id: str | None = None,
        *,
        number: int | None = None,
        now: datetime | None = None,
        conn: Connection | None = None,
    ) -> list[HeldLease]:
        """Take leases away from whoever holds them; the next owner gets a fence against the old one.

        Its heartbeat tells the old owner, which then stops with all that it holds. With ``number`` only the grant of
        that number is broken, not one that somebody has got since.
        """
        now = now or utc_now()
        which = (leases.c.dataset == dataset) & (leases.c.owner_id != _NOBODY)
        if slice_id is not None:
            which &= leases.c.slice_id == slice_id
        if number is not None:
            which &= leases.c.number == number
        with writing(self._engine, conn) as c:
            rows = c.execute(LEASES_WITH_OWNERS.where(which).order_by(leases.c.slice_id))
            at = lease_time(c, now)
            broken = [to_held(row, at) for row in rows]
            c.execute(update(leases).where(which).values(owner_id=_NOBODY))
            c.execute(delete(owners).where(owners.c.owner_id.in_({one.owner_id for one in broken})))
        return broken

    def held(self, now: datetime) -> list[HeldLease]:
        """Every lease that somebody has, with its owner and whether that one still lives."""
        query = LEASES_WITH_OWNERS.where(leases.c.owner_id != _NOBODY).order_by(leases.c.dataset, leases.c.slice_id)
        with reading(self._engine) as c:
            at = lease_time(c, now)
            return [to_held(row, at) for row in c.execute(query)]

    def draw(self, dataset: str, conn: Connection | None = None) -> int:
        """The next number of a dataset, for a commit outside a lease (recovery)."""
        with writing(self._engine, conn) as c:
            return _draw(c, dataset)

    def owner_lives(self, owner_id: str, now: datetime) -> bool:
        """Whether an owner still beats (or, on this machine, its process still runs)."""
        with reading(self._engine) as c:
            row = c.execute(select(owners).where(owners.c.owner_id == owner_id)).one_or_none()
            at = lease_time(c, now)
        return row is not None and lives(row, at)

    def raise_numbers(self, dataset: str, at_least: int, conn: Connection | None = None) -> None:
        """Go on above ``at_least``: a rebuilt store must not hand out a number that the log has seen."""
        with writing(self._engine, conn) as c:
            last = c.execute(select(numbers.c.last).where(numbers.c.name == dataset)).scalar()
            if last is None:
                c.execute(insert(numbers).values(name=dataset, last=at_least))
            elif last < at_least:
                c.execute(update(numbers).where(numbers.c.name == dataset).values(last=at_least))


_OVERLAPPING = LEASES_WITH_OWNERS.where(
    leases.c.dataset == bindparam("of"),
    or_(
        bindparam("slice", type_=leases.c.slice_id.type) == WHOLE_DATASET,
        leases.c.slice_id == bindparam("slice", type_=leases.c.slice_id.type),
        leases.c.slice_id == WHOLE_DATASET,
    ),
).order_by(leases.c.slice_id)
_COLUMNS = ["dataset", "slice_id", "owner_id", "number", "granted_at", "run_id", "parts"]
# From the owner's row: an owner without one gets nothing. What is returned tells, for not every driver counts here.
_GRANT = (
    insert(leases)
    .from_select(
        _COLUMNS,
        select(
            bindparam("of", type_=leases.c.dataset.type),
            bindparam("slice", type_=leases.c.slice_id.type),
            owners.c.owner_id,
            bindparam("number", type_=leases.c.number.type),
            bindparam("at", type_=leases.c.granted_at.type),
            bindparam("run", type_=leases.c.run_id.type),
            bindparam("parts", type_=leases.c.parts.type),
        ).where(owners.c.owner_id == bindparam("owner")),
    )
    .returning(leases.c.number)
)
_RELEASE = delete(leases).where(
    leases.c.dataset == bindparam("of"),
    leases.c.slice_id == bindparam("slice"),
    leases.c.number == bindparam("number"),
)
_NEXT = update(numbers).where(numbers.c.name == bindparam("of")).values(last=numbers.c.last + 1)
_LAST = select(numbers.c.last).where(numbers.c.name == bindparam("of"))


def _draw(conn: Connection, dataset: str) -> int:
    if conn.execute(_NEXT, {"of": dataset}).rowcount:
        return int(conn.execute(_LAST, {"of": dataset}).scalar_one())
    conn.execute(insert(numbers).values(name=dataset, last=literal(1)))
    return 1


def _take_from(conn: Connection, dataset: str, gone: Sequence[Row[Any]]) -> None:
    slices = [row.slice_id for row in gone]
    conn.execute(delete(leases).where(leases.c.dataset == dataset, leases.c.slice_id.in_(slices)))
    # Its row goes too, so that its next heartbeat tells it that it has lost.
    conn.execute(delete(owners).where(owners.c.owner_id.in_({row.owner_id for row in gone})))
