"""How far a repeated execution has to go back: decided from the executions that the table holds, and nothing else.

The same for the function (executions by their time) and for pipelines (slices): whoever asks brings the executions
that count, as the log of the table tells them. Versions are read there, never computed from other versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["LOG", "Execution", "GoingBack", "decide_going_back"]

LOG = logging.getLogger("lakewright.stateful_merger")
LOG.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Execution:
    """One merge that the table holds: its name for people, its place in the order, the version that it found and
    the one that it made.
    """

    name: str
    at: Any
    version: int
    found: int
    """The version that the merge was applied to: a compacted one, where the table was compacted before it."""


@dataclass(frozen=True, slots=True)
class GoingBack:
    """What has to happen before an execution is merged, and why."""

    action: Literal["go on", "restore", "truncate"]
    reason: str
    version: int | None = None
    """Where to go back to; None where there is nowhere to go, or everything goes."""
    undone: tuple[Execution, ...] = ()
    """The executions that the table does not hold afterwards, in order: each has to be made again."""


def decide_going_back(
    name: str, at: Any, executions: Sequence[Execution], *, held: Callable[[int], bool] = lambda version: False
) -> GoingBack:
    """Whether an execution repeats the past. ``executions`` are those that the table holds, in any order.

    It truncates only where no earlier execution is known, and nothing else was there: ``held`` is asked whether others
    had written rows by a version. A gap before it is none of its business.

    >>> known = [Execution("d1", 1, version=1, found=0), Execution("d3", 3, version=4, found=3)]
    >>> decide_going_back("d4", 4, known).action
    'go on'
    >>> decide_going_back("d3", 3, known).version
    3
    >>> decide_going_back("d2", 2, known).version
    3
    >>> decide_going_back("d1", 1, known).action
    'truncate'
    >>> decide_going_back("d1", 1, known, held=lambda version: True).version
    0
    """
    earlier = sorted((one for one in executions if one.at < at), key=lambda one: one.at)
    repeated = sorted((one for one in executions if one.at >= at), key=lambda one: (one.at, one.version))
    if not repeated:
        before = f"the newest execution before it is {earlier[-1].name}" if earlier else "it is the first one"
        return GoingBack("go on", f"{name}: nothing to restore: {before}.")
    first = min(repeated, key=lambda one: one.version)
    # Where another writer merged one out of order, going back takes it away as well: it has to come again.
    undone = (*(one for one in earlier if one.version > first.version), *repeated)
    listed = ", ".join(dict.fromkeys(one.name for one in undone))
    if not earlier and not held(first.found):
        reason = f"{name}: the first execution is repeated: the table is emptied and no longer holds {listed}."
        return GoingBack("truncate", reason, undone=undone)
    reason = f"{name}: repeats the past: the table goes back to version {first.found} and no longer holds {listed}."
    return GoingBack("restore", reason, first.found, undone)
