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
    force: Annotated[bool, flag("--force", help="Also from a process that is still at work on this machine.")] = False,
) -> None:
    """Take a lease from a run that is gone for good.

    A run whose process has ended on this machine, or that was silent for a minute, needs no unlock: the next
    run takes over by itself. What the old one still writes is skipped.
    """
    with open_existing_store(screen) as store:
        held = [] if store is None else store.leases.held(utc_now())
        leases = _of(held, name)
        here = [lease for lease in leases if _at_work_here(lease)]
        if here and not force:
            raise LeaseHeldError(
                f"{name} is held by {_holder(here[0])}, which is at work on this machine. Nothing was unlocked.",
                name=name,
                owner=here[0].owner_id,
                hint="`lakewright cancel` stops it cleanly; --force takes the lease from it all the same.",
            )
        assert store is not None
        broken = store.leases.break_lease(leases[0].dataset)
    if screen.as_json:
        screen.show_json({"unlocked": [_as_json(lease) for lease in broken], "error": None})
        return
    for lease in broken:
        what = lease.dataset if lease.slice_id == "*" else f"{lease.dataset} {lease.slice_id}"
        screen.say(f"Unlocked {what}; it was held by {_holder(lease)}.")


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
