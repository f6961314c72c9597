"""Boundaries: whether pipelines are cut well, by what their steps took lately (Local Sequencer). It only tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from lakewright.pipelines.definitions import Dataset
from lakewright.store import Store

__all__ = ["boundary_warnings"]

_MANY, _TINY_SECONDS = 20, 2.0
_LONG_SECONDS = 30 * 60
_LAST, _TOLD = 10, 3
"""So many past slices are looked at; of fewer nothing is concluded."""


def boundary_warnings(datasets: Iterable[Dataset], store: Store) -> Iterator[str]:
    """Pipelines of very many tiny steps, and steps so long that a failure at their end is dear."""
    steps = [one for one in datasets if not one.is_source and not one.is_stream]
    past = store.steps.durations([one.name for one in steps], most=_LAST)
    took = {name: median(seconds for _, seconds in known) for name, known in past.items() if len(known) >= _TOLD}
    pipelines: dict[str, list[str]] = {}
    for one in steps:
        pipelines.setdefault(one.pipeline, []).append(one.name)
    for pipeline, names in pipelines.items():
        tiny = [name for name in names if took.get(name, _TINY_SECONDS) < _TINY_SECONDS]
        if len(names) >= _MANY and len(tiny) > len(names) / 2:
            yield (
                f"The pipeline {pipeline} has {len(names)} steps, and {len(tiny)} of them take less than "
                f"{_TINY_SECONDS:.0f} s a slice: each is a table, a commit and a record. Join those that are never "
                "repeated alone."
            )
    for name, seconds in took.items():
        if seconds > _LONG_SECONDS:
            yield (
                f"{name} takes {seconds / 60:,.0f} minutes a slice, and whatever fails at its end pays for all of it "
                "again. Keep what is costly in a dataset of its own, and let the rest read it."
            )
