"""Admission: how a run gets in, where only so many may be at work at once.

Guarantee:
    A run is at work only while it holds one of its pipeline's places and, where the pipeline has a pool, one of the
    pool's slots: leases in the shared store, so that neither machine nor process matters, and what a killed one held is
    taken over. Whoever has waited longest gets the next one. Pipelines come before pools, each in the order of their
    names, so that no two runs wait for each other; and who waits for one pool keeps nobody from another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, LeaseHeldError, TooManyRunsError
from lakewright.store import WHOLE_DATASET, Grant

if TYPE_CHECKING:
    from lakewright.pipelines.keeper import Keeper

__all__ = ["Admission", "admit"]

_MOST_WAITING = 1000
"""Runs that may wait for one pool."""
_LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Admission:
    """How many runs of a pipeline may be at work at once, how many may wait, and where its slots come from."""

    queue: int = 0
    limit: int = 1
    pool: str | None = None
    slots: int = 1


@dataclass(frozen=True, slots=True)
class _Room:
    """Something with so many places, and a queue in front of it."""

    name: str
    places: tuple[str, ...]
    queue: str
    waiting: int
    busy: Callable[[str], LeaseHeldError]
    full: Callable[[], LakewrightError]


def admit(keeper: Keeper, pipelines: Mapping[str, Admission], wait_seconds: float) -> None:
    """Get a place in each pipeline, and a slot in each of their pools, or raise ``LeaseHeldError``."""
    deadline = time.monotonic() + wait_seconds
    for name in sorted(pipelines):
        _enter(keeper, _pipeline(name, pipelines[name]), deadline)
    for pool, slots in sorted({(one.pool, one.slots) for one in pipelines.values() if one.pool is not None}):
        _enter(keeper, _pool(pool, slots), deadline)


def _enter(keeper: Keeper, room: _Room, deadline: float) -> None:
    ticket: Grant | None = None
    while True:
        try:
            number = None if ticket is None else ticket.number
            keeper.lease_place(room.name, room.places, queue=room.queue, ticket=number)
        except LeaseHeldError as error:
            if time.monotonic() >= deadline:
                raise room.busy(error.owner) from None
            if ticket is None:
                ticket = _line_up(keeper, room)
            if keeper.stop.wait(min(_LOOK, max(deadline - time.monotonic(), 0.01))):
                raise room.busy(error.owner) from None
        else:
            if ticket is not None:
                keeper.release(ticket)
            return


def _line_up(keeper: Keeper, room: _Room) -> Grant:
    """One of the waiting places; a place whose process died is free again."""
    try:
        return keeper.lease_place(room.queue, [f"place {number + 1}" for number in range(room.waiting)])
    except LeaseHeldError:
        raise room.full() from None


def _pipeline(name: str, how: Admission) -> _Room:
    places = (WHOLE_DATASET,) if how.limit == 1 else tuple(f"run {number + 1}" for number in range(how.limit))

    def busy(owner: str) -> LeaseHeldError:
        what = f"is running already ({owner})" if how.limit == 1 else f"has {how.limit} runs at work, its limit"
        return LeaseHeldError(
            f"The pipeline '{name}' {what}. Nothing was started.",
            name=name,
            owner=owner,
            hint="Wait for it (`lakewright run --wait 60`), stop it (`lakewright cancel`), or, if that process is "
            "gone for good on another machine, `lakewright unlock`.",
        )

    def full() -> TooManyRunsError:
        runs = f"{how.queue} run{'s' if how.queue != 1 else ''}"
        return TooManyRunsError(
            f"Too many requests: the pipeline '{name}' is running and {runs} may wait for it, all of which do. This "
            "one was not started.",
            name=name,
            owner="waiting runs",
            hint="Try again later, or let more wait: runs=SingleRunner(queue=...).",
        )

    return _Room(f"pipeline:{name}", places, f"queue:{name}", how.queue, busy, full)


def _pool(pool: str, slots: int) -> _Room:
    def busy(owner: str) -> LeaseHeldError:
        return LeaseHeldError(
            f"The pool '{pool}' has {slots} slot{'s' if slots != 1 else ''}, and none is free ({owner}). Nothing was "
            "started.",
            name=pool,
            owner=owner,
            hint="Wait for one (`lakewright run --wait 600`), or give the pool more under [pools] in lakewright.toml.",
        )

    def full() -> TooManyRunsError:
        return TooManyRunsError(
            f"Too many requests: {_MOST_WAITING} runs wait for the pool '{pool}'. This one was not started.",
            name=pool,
            owner="waiting runs",
            hint="Try again later.",
        )

    places = tuple(f"slot {number + 1}" for number in range(slots))
    return _Room(f"pool:{pool}", places, f"queue:pool:{pool}", _MOST_WAITING, busy, full)
