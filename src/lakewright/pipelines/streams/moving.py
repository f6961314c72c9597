"""Moving a stream's checkpoint to a place that outlives the machine; the stream goes on there.

Guarantee:
    Killed at any moment, the stream goes on from one checkpoint: the old one until the copy is whole and a file in the
    lake points at it, the new one from then on. A process that lost its lease and still works on the old one cannot
    note its progress any more: a file lies where its folder was, so that it ends.
Consequences:
    - The pointer lies in the lake beside the old place, so that `store rebuild` finds it too. Leave it there.
    - A rewind begins a new generation, whose checkpoint is in the lake again: move that one, too.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lakewright.errors import ConfigurationError, InputError
from lakewright.failpoints import failpoint
from lakewright.lake.lake import Lake
from lakewright.model.paths import local_folder
from lakewright.model.slices import WHOLE
from lakewright.patterns.error_management.checkpoint_files import open_storage, read_checkpoint
from lakewright.patterns.error_management.checkpointer import copy_checkpoint
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.workshop import Workshop

__all__ = ["MoveSummary", "checkpoint_has_begun", "checkpoint_in_force", "move_checkpoint"]

_POINTER, _ASIDE = ".moved", ".moving"


@dataclass(frozen=True, slots=True)
class MoveSummary:
    """Where a stream's checkpoint was, where it is, and the last micro-batch that it has begun."""

    dataset: str
    generation: int
    before: str
    after: str
    batch: int


def checkpoint_in_force(lake: Lake, name: str, generation: int) -> str:
    """Where a stream notes its progress. Under its lease: what a move that died had set aside is put back."""
    place = lake.checkpoint(name, generation)
    pointer = _pointer(lake, name, generation)
    if pointer is not None and pointer.is_file():
        place = _pointed(pointer, name)
    _put_back(place)
    return place


def checkpoint_has_begun(shop: Workshop, name: str) -> bool:
    """Whether a stream has read anything since its newest generation began. Asks for no lease, and changes nothing."""
    generation = shop.store.streams.current(name)
    if generation is None:
        return False
    place = shop.lake.checkpoint(name, generation.number)
    pointer = _pointer(shop.lake, name, generation.number)
    if pointer is not None and (pointer.is_file() or Path(f"{local_folder(place)}{_ASIDE}").is_dir()):
        return True  # only what has begun is moved
    try:
        return read_checkpoint(shop.lake.session(), place) is not None
    except InputError:
        return True  # only what has begun can be damaged


def move_checkpoint(shop: Workshop, dataset: Dataset, to: str) -> MoveSummary:
    """Copy a stream's checkpoint below ``to`` and let it go on there; refused while the stream is kept going."""
    generation = shop.store.streams.current(dataset.name)
    if generation is None:
        raise ConfigurationError(
            f"{dataset.name} has not read anything yet: there is no checkpoint to move. Nothing was changed.",
            hint="`lakewright run` begins it.",
        )
    pointer = _pointer(shop.lake, dataset.name, generation.number)
    if pointer is None:
        raise ConfigurationError(
            f"{dataset.name}: the lake {shop.lake.root} is no folder of this machine, so its checkpoints outlive the "
            "machine already. Nothing was changed."
        )
    reason = f"move of its checkpoint to {to}"
    with shop.attempt(dataset, WHOLE, attempt=1, reason=reason, whole=True, rewrites=False) as current:
        harvest_stream(current)
        before = checkpoint_in_force(shop.lake, dataset.name, generation.number)
        # A place of its own for each attempt: what one that died has left is never taken for a copy.
        after = f"{to.rstrip('/')}/{dataset.name}/{generation.number}-{current.grant.number}"
        open_storage(after)  # a place that cannot be written to is refused before anything is set aside
        source = _set_aside(before)
        failpoint("checkpoint_aside")
        try:
            state = copy_checkpoint(shop.lake.session(), source, after)
        except Exception:
            _put_back(before)
            raise
        failpoint("checkpoint_copied")
        _point(pointer, after)
        failpoint("checkpoint_moved")
        if source != before:
            shutil.rmtree(source, ignore_errors=True)
        current.finish(())
    return MoveSummary(dataset.name, generation.number, before, after, state.batch)


def _pointer(lake: Lake, name: str, generation: int) -> Path | None:
    """The file that says where a checkpoint has gone; None where the lake is no folder."""
    local = local_folder(lake.checkpoint(name, generation))
    return None if local is None else Path(f"{local}{_POINTER}")


def _pointed(pointer: Path, name: str) -> str:
    try:
        return str(json.loads(pointer.read_text(encoding="utf-8"))["to"])
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{name}: {pointer} cannot be read, and so nobody knows where the stream's checkpoint has gone. "
            "Nothing was started.",
            hint='Write into it where the folder lies: {"to": "<folder>"}. '
            f"Or begin a new checkpoint: `lakewright stream rewind {name} --all`.",
        ) from None


def _set_aside(place: str) -> str:
    """Move a folder away and leave a file in its place, on which whoever still writes there fails."""
    if (local := local_folder(place)) is None or not local.is_dir():
        return place
    aside = f"{local}{_ASIDE}"
    os.rename(local, aside)
    local.write_text("The checkpoint that was here is being moved, or has moved.\n", encoding="utf-8")
    return aside


def _put_back(place: str) -> None:
    """Undo `_set_aside`, where that is how a move ended."""
    if (local := local_folder(place)) is None or not Path(f"{local}{_ASIDE}").is_dir():
        return
    if local.is_dir():  # somebody wrote between the two steps of setting it aside: it belongs to the rest
        shutil.copytree(local, f"{local}{_ASIDE}", dirs_exist_ok=True)
        shutil.rmtree(local)
    Path(local).unlink(missing_ok=True)
    os.rename(f"{local}{_ASIDE}", local)


def _point(pointer: Path, to: str) -> None:
    """Let the pointer appear whole."""
    draft = pointer.with_name(f".{pointer.name}")
    draft.write_text(json.dumps({"to": to}), encoding="utf-8")
    os.replace(draft, pointer)
