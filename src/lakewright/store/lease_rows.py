"""Leases as rows, and what they tell people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from lakewright.errors import LeaseHeldError
from lakewright.store.owners import Owner, is_alive
from lakewright.store.tables import leases, owners

__all__ = ["LEASES_WITH_OWNERS", "WHOLE_DATASET", "Grant", "HeldLease", "held_error", "lives", "to_held"]

WHOLE_DATASET = "*"
"""The slice id of a lease that covers its whole dataset."""

LEASES_WITH_OWNERS = select(
    leases, owners.c.host, owners.c.pid, owners.c.process_started, owners.c.beat_at, owners.c.expires_at
).select_from(leases.outerjoin(owners, leases.c.owner_id == owners.c.owner_id))


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as it was given: write with ``number``; where ``fence`` is set, commit that fence first.

    ``taken_from`` lists what was not given back: slice, its old number, its old run. ``parts`` are the tables
    that those leases named.
    """

    dataset: str
    slice_id: str
    owner_id: str
    number: int
    fence: int | None = None
    taken_from: tuple[tuple[str, int, str | None], ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that somebody has: ``alive`` is False where the next one who asks would take it over."""

    dataset: str
    slice_id: str
    number: int
    owner_id: str
    owner: Owner | None
    run_id: str | None
    granted_at: datetime
    beat_at: datetime | None
    alive: bool
    parts: tuple[str, ...] = ()


def lives(row: Row[Any], now: datetime) -> bool:
    """Whether a lease has its owner: the time is not up, and the process, where we can see it, runs."""
    if row.expires_at is None or row.expires_at <= now:
        return False
    return is_alive(row.host, row.pid, row.process_started)


def to_held(row: Row[Any], now: datetime) -> HeldLease:
    """A row as what people are shown."""
    owner = None if row.host is None else Owner(row.owner_id, row.host, row.pid, row.process_started)
    return HeldLease(
        row.dataset,
        row.slice_id,
        row.number,
        row.owner_id,
        owner,
        row.run_id,
        row.granted_at,
        row.beat_at,
        alive=lives(row, now),
        parts=tuple(row.parts),
    )


def held_error(row: Row[Any], *, asked_by: str) -> LeaseHeldError:
    """Who works on it, since when, and what to do."""
    kind, _, pipeline = row.dataset.partition(":")
    what = f"The pipeline '{pipeline}'" if kind == "pipeline" else f"The dataset '{row.dataset}'"
    if kind != "pipeline" and row.slice_id != WHOLE_DATASET:
        what = f"The slice {row.slice_id} of '{row.dataset}'"
    since = f"{row.granted_at:%Y-%m-%d %H:%M:%S} UTC"
    run = f" (run {row.run_id})" if row.run_id else ""
    if row.owner_id == asked_by:
        message, hint = f"{what} is already leased by this very worker{run} since {since}.", None
    else:
        message = f"{what} is being worked on by process {row.pid} on {row.host}{run} since {since}."
        name = pipeline or row.dataset
        hint = f"Wait for it to end. If you know that it is gone: `lakewright unlock {name}`."
    return LeaseHeldError(message, name=row.dataset, owner=row.owner_id, hint=hint)
