"""`lakewright cancel` and `lakewright unlock`: stop a run, or take a lease from one that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import flag
from lakewright.cli.opening import open_existing_store
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, LeaseHeldError, UnknownNameError
from lakewright.model.times import utc_now

if TYPE_CHECKING:
    from lakewright.store import HeldLease, RunRecord

__all__ = ["cancel", "unlock"]


def cancel(
    screen: Screen,
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN_ID]", help="The run; may be left out where only one is running.")
    ] = None,
) -> None:
    """Ask a run to stop: what it has committed stays, and the next `run` goes on from there."""
    with open_existing_store(screen) as store:
        running = [] if store is None else store.runs.unfinished()
        chosen = _choose(running, run_id)
        assert store is not None
        store.runs.request_cancel(chosen.run_id)
        alive = chosen.owner_id is not None and store.leases.owner_lives(chosen.owner_id, utc_now())
    if screen.as_json:
        screen.show_json({"run_id": chosen.run_id, "cancelled": True, "alive": alive, "error": None})
    elif alive:
        screen.say(f"Asked run {chosen.run_id} to stop; it ends after the commits that are under way.")
    else:
        screen.say(f"The process of run {chosen.run_id} is gone; the next `lakewright run` settles what it left.")


def _choose(running: Sequence[RunRecord], run_id: str | None) -> RunRecord:
    known = {run.run_id: run for run in running}
    if not known:
        raise ConfigurationError("No run is running.", hint="`lakewright status` shows the last ones.")
    if run_id is None and len(known) > 1:
        raise ConfigurationError(
            f"{len(known)} runs are running: {', '.join(known)}.", hint="Name one: lakewright cancel RUN_ID"
        )
    wanted = next(iter(known)) if run_id is None else run_id
    if wanted not in known:
        raise UnknownNameError("running run", wanted, known)
    return known[wanted]


def unlock(
    screen: Screen,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset, or a pipeline as pipeline:NAME.")],
    force: Annotated[bool, flag("--force", help="Also from processes that are still at work.")] = False,
) -> None:
    """Take a lease from a run that is gone for good.

    A run whose process has ended on this machine, or that was silent for a minute, needs no unlock: the next
    run takes over by itself. What the old one still writes is skipped. Where several runs hold something of the same
    name, those that are gone lose it, and those at work keep theirs.
    """
    with open_existing_store(screen) as store:
        held = [] if store is None else store.leases.held(utc_now())
        leases = _of(held, name)
        chosen = leases if force else _to_break(leases, name)
        assert store is not None
        # By its number: one that somebody has taken over since is theirs.
        broken = [
            lease for one in chosen for lease in store.leases.break_lease(one.dataset, one.slice_id, number=one.number)
        ]
    kept = [lease for lease in leases if lease not in chosen]
    if screen.as_json:
        screen.show_json(
            {"unlocked": [_as_json(lease) for lease in broken], "kept": [_as_json(one) for one in kept], "error": None}
        )
        return
    for lease in broken:
        screen.say(f"Unlocked {_what(lease)}; it was held by {_holder(lease)}.")
    for lease in kept:
        screen.say(f"Left {_what(lease)} to {_holder(lease)}, which is at work.")


def _to_break(leases: Sequence[HeldLease], name: str) -> list[HeldLease]:
    """Those whose owner is gone; those of the only owner also where nobody here can tell: its machine may be gone."""
    gone = [lease for lease in leases if not lease.alive]
    if gone:
        return gone
    here = [lease for lease in leases if _at_work_here(lease)]
    owners = len({lease.owner_id for lease in leases})
    if not here and owners == 1:
        return list(leases)
    first = (here or leases)[0]
    others = f"and by {owners - 1} more, which tell that they are at work"
    where = "which is at work on this machine" if here else others
    raise LeaseHeldError(
        f"{name} is held by {_holder(first)}, {where}. Nothing was unlocked.",
        name=name,
        owner=first.owner_id,
        hint="`lakewright cancel` stops it cleanly, and one that is gone loses its lease by itself after a minute; "
        f"--force takes {'the lease from it' if owners == 1 else 'the leases from all of them'} all the same.",
    )


def _what(lease: HeldLease) -> str:
    return lease.dataset if lease.slice_id == "*" else f"{lease.dataset} {lease.slice_id}"


def _of(held: Sequence[HeldLease], name: str) -> list[HeldLease]:
    """The leases of a name: as it stands, else a pipeline's, else a source's."""
    for full in (name, f"pipeline:{name}", f"source:{name}"):
        if found := [lease for lease in held if lease.dataset == full]:
            return found
    if not held:
        raise ConfigurationError(f"Nothing is locked, so neither is '{name}'.")
    raise UnknownNameError("lease on", name, {lease.dataset for lease in held})


def _at_work_here(lease: HeldLease) -> bool:
    import socket

    return lease.alive and lease.owner is not None and lease.owner.host == socket.gethostname()


def _holder(lease: HeldLease) -> str:
    who = "an unknown process" if lease.owner is None else str(lease.owner)
    run = "" if lease.run_id is None else f" (run {lease.run_id})"
    return f"{who}{run} since {lease.granted_at:%Y-%m-%d %H:%M:%S} UTC"


def _as_json(lease: HeldLease) -> dict[str, object]:
    return {
        "name": lease.dataset,
        "slice": lease.slice_id,
        "owner": None if lease.owner is None else str(lease.owner),
        "run_id": lease.run_id,
        "granted_at": lease.granted_at.isoformat(),
        "alive": lease.alive,
    }
