"""A throw-away lake and store beside the real ones, for trying a project out on little or no data.

Guarantee:
    Nothing of the real lake or store changes: what a trial makes lies in ``.lakewright/sample`` or
    ``.lakewright/empty``, which the next such trial begins by deleting.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lakewright.errors import ConfigurationError, LeaseHeldError, TargetError
from lakewright.model.times import utc_now
from lakewright.pipelines.progress import Note
from lakewright.runtime.connect import is_on_this_machine, shown_master
from lakewright.runtime.settings import Settings, Target
from lakewright.store import open_store

__all__ = ["clear_trial", "trial_note", "trial_settings"]


def trial_settings(settings: Settings, share: float) -> Settings:
    """The project on a target that makes everything anew, from a share of the rows of the chosen one (0: none)."""
    return settings.scratch(_kind(share))


def clear_trial(target: Target, share: float) -> None:
    """Remove what an earlier trial left, unless it is still going on."""
    folder = target.state / _kind(share)
    if not is_on_this_machine(target.master):
        raise ConfigurationError(
            f"The target '{target.name}' runs Spark elsewhere ({shown_master(target.master)}), which cannot write to "
            f"{folder} on this machine. Nothing was started.",
            hint=f'Try it out on a local target that reads from it: upstream = "{target.name}".',
        )
    _refuse_if_busy(folder)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TargetError(f"{folder} cannot be removed: {error.strerror}. Nothing was started.") from error


def trial_note(target: Target, share: float) -> Note:
    """What to tell at the end."""
    what = "no rows" if share == 0 else f"{share * 100:g}% of the rows"
    return Note(f"This was a trial on {what}: it is in {target.state / _kind(share)}, and nothing else was changed.")


def _kind(share: float) -> str:
    return "empty" if share == 0 else "sample"


def _refuse_if_busy(folder: Path) -> None:
    store = folder / "store.db"
    if not store.exists():
        return
    with open_store(f"sqlite:///{store}") as opened:
        held = [lease for lease in opened.leases.held(utc_now()) if lease.alive]
    if held:
        raise LeaseHeldError(
            f"Another trial ({held[0].owner}) is at work in {folder}. Nothing was started.",
            name=held[0].dataset,
            owner=held[0].owner_id,
            hint="Wait for it to end.",
        )
