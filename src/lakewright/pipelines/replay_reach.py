"""How far a replay reaches: the slices that read what it corrects, all the way down, and where an order would break."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.model.references import Lookback, Previous, Reference, SameSlice
from lakewright.model.slices import ANY_CELL, WHOLE, Slice, arrival_slice
from lakewright.model.times import Interval, cell_interval, cells_between, parse_duration
from lakewright.pipelines.chains import merges_older
from lakewright.pipelines.definitions import Dataset, Input

if TYPE_CHECKING:
    from lakewright.pipelines.workshop import Workshop

__all__ = ["Reach", "follow"]


@dataclass
class Reach:
    """What is touched, by name."""

    cells: dict[str, set[str]] = field(default_factory=dict)
    """Source -> event cells in which records change."""
    arrivals: dict[str, set[int]] = field(default_factory=dict)
    slices: dict[str, set[str]] = field(default_factory=dict)
    """Dataset -> slices to make again."""
    ordered: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def follow(shop: Workshop, reach: Reach) -> None:
    """Add every slice below what is touched. Asks the store, runs no job."""
    graph = shop.graph
    for name in graph.order:
        dataset = graph[name]
        if dataset.is_source:
            continue
        for given in dataset.inputs:
            above = graph.owners.get(given.dataset, given.dataset)
            if given.dataset not in reach.cells and not reach.slices.get(above):
                continue
            if dataset.is_stream:
                reach.notes.append(
                    f"{name} is a stream: it reads the records of {given.dataset} as they arrived, also when it is "
                    "rewound. What is corrected does not reach it; a batch dataset beside it takes corrections in."
                )
                continue
            reach.slices.setdefault(name, set()).update(_slices(shop, dataset, given, reach, above))
        if reach.slices.get(name):
            _in_turn(shop, dataset, reach)


def _slices(shop: Workshop, dataset: Dataset, given: Input, reach: Reach, above: str) -> Iterator[str]:
    reference = shop.graph.reference(dataset, given)
    slicing = shop.graph.slicing[dataset.name]
    if not isinstance(reference, SameSlice | Lookback):
        return
    if slicing.kind == "whole":
        yield WHOLE.id
    elif slicing.kind == "event":
        for span in _spans(given.dataset, reach, above):
            end = span.end + _reach(reference)
            yield from (f"{cell}" for cell in cells_between(span.start, end, slicing.grid))
    elif slicing.follows == given.dataset:
        known = (Slice.parse(one) for one in reach.slices.get(above, ()))
        numbers = reach.arrivals.get(given.dataset, {one.number for one in known if one.kind == "arrival"})
        yield from (arrival_slice(number).id for number in numbers)


def _spans(name: str, reach: Reach, above: str) -> Iterable[Interval]:
    if name in reach.cells:
        return [cell_interval(cell) for cell in sorted(reach.cells[name]) if cell != ANY_CELL]
    made = (Slice.parse(one) for one in sorted(reach.slices.get(above, ())))
    return [one.interval for one in made if one.kind == "event"]


def _reach(reference: Reference) -> timedelta:
    return parse_duration(reference.reach) if isinstance(reference, Lookback) else timedelta(0)


def _in_turn(shop: Workshop, dataset: Dataset, reach: Reach) -> None:
    """Where the order of rows matters: make what follows again as well, or say what would be wrong."""
    name, slices = dataset.name, reach.slices[dataset.name]
    live = shop.store.receipts.live_slices(name)
    first = min(map(Slice.parse, slices))
    later = {one for one in live if (found := Slice.parse(one)).kind == first.kind and found > first}
    if any(isinstance(given.reference, Previous) for given in dataset.inputs):
        slices |= later
        reach.notes.append(f"{name} reads its earlier slices: it is made again from {first.id} on to the newest.")
    elif first.kind == "event" and later and (merges_older(dataset) or getattr(dataset.writer, "restores", False)):
        slices |= later
        reach.notes.append(
            f"{name} is merged by key, the last slice counts: it is made again from {first.id} on to the newest."
        )
    if getattr(dataset.into, "resends", False):
        assert dataset.into is not None
        reach.ordered[name] = f"goes to {dataset.into.shown}, where corrected rows would come after newer ones"
    elif first.kind == "arrival" and dataset.writer is not None and not dataset.writer.replaces_slice:
        slices |= later
        reach.ordered[name] = f"takes the arrivals of its input in turn, and has taken others since {first.id}"
        if not later:
            del reach.ordered[name]
