"""Slices that their destination holds read-only: late rows of them are held, since no write would be taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from lakewright.errors import LakewrightError
from lakewright.lake.lake import Lake
from lakewright.model.connections import Connections
from lakewright.model.outside import Freezes
from lakewright.model.policies import LatePolicy
from lakewright.model.slices import Slice
from lakewright.pipelines.definitions import Dataset

__all__ = ["FrozenSlices", "check_late", "frozen_slices", "nothing_frozen"]

FrozenSlices: TypeAlias = Callable[[Dataset, Iterable[str]], Collection[str]]
"""Of some slices of a dataset, by their ids, those that are read-only."""


def frozen_slices(lake: Lake, connections: Connections) -> FrozenSlices:
    """Asks the destinations. Where one does not answer none is known: to write there would fail, and tell why."""

    def ask(dataset: Dataset, slice_ids: Iterable[str]) -> Sequence[str]:
        into = dataset.into
        # A trial writes to its own lake, whatever is declared.
        slices = [Slice.parse(one) for one in slice_ids] if dataset.name in lake.outside else []
        if not isinstance(into, Freezes) or not slices:
            return ()
        try:
            return into.frozen(dataset.name, slices, connections=connections)
        except LakewrightError:
            return ()

    return ask


def nothing_frozen(dataset: Dataset, slice_ids: Iterable[str]) -> Collection[str]:
    """For those who ask no destination."""
    return ()


def check_late(name: str, into: object, late: LatePolicy) -> None:
    """Refuse a policy that makes slices again which are read-only by then."""
    if isinstance(into, Freezes):
        into.check_late(name, late)
