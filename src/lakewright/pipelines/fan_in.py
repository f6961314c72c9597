"""Deciding for slices that may be made of some of their parts (Unaligned Fan-In).

A slice is closed as any other. It is made when every part that can still come by itself was tried, and the rule is met;
where it is not, the fallback runs. All of it follows from receipts and step records: no row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from lakewright.model.completeness import Completeness, measure_completeness
from lakewright.model.slices import ANY_CELL, Slice, event_slice
from lakewright.model.times import WIDTH, Grid, cell_interval, cells_between, coarsened
from lakewright.patterns.data_flow.unaligned_fan_in import is_met, rule_in_words
from lakewright.pipelines.closing import Closing, skipped_slices
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.fan_in_options import partial_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import SliceState, Status, Wish
from lakewright.store import Head, LiveSlice, Store

__all__ = ["FanIns", "completeness_of"]

_AS_IT_IS = ("waiting", "held", "refused", "overdue", "skipped", "partial")
"""States that tell why a slice is not made, whatever its parts are."""


def completeness_of(
    graph: Graph, store: Store, dataset: Dataset, slice_: Slice, *, upto: Mapping[str, int] | None = None
) -> Completeness | None:
    """Of which of its parts a slice can be made, by the receipts of its inputs; None where it has none.

    Parts before the input's start, or from its end on, are not expected. With ``upto`` those that count at the versions
    that were pinned.
    """
    names, expected, there = graph.driving(dataset), list[str](), set[str]()
    for name in names:
        prefix = f"{name} " if len(names) > 1 else ""
        grid = graph.cell_grid(name) or dataset.grid
        skipped = skipped_slices(store, graph[name])
        first, last = max(slice_.interval.start, graph[name].start), slice_.interval.end
        ended = None if graph[name].is_source else graph[name].end
        wanted = cells_between(first, last if ended is None else min(last, ended), grid)
        expected += [f"{prefix}{cell}" for cell in wanted if cell not in skipped]
        version = None if upto is None else upto.get(name)
        there |= {f"{prefix}{cell}" for cell in _parts_there(graph, store, name, grid, version)}
    return measure_completeness(there, expected=expected) if expected else None


def _parts_there(graph: Graph, store: Store, name: str, grid: Grid, upto: int | None) -> Iterator[str]:
    """The parts of an input that succeeded: its slices, or the cells of a source that have rows."""
    if graph[name].is_source or graph[name].is_stream:
        for cell, head in store.receipts.cells(name, upto=upto).items():
            if cell is None or cell == ANY_CELL or head.rows == 0:
                continue
            if len(cell) == WIDTH[grid]:
                yield cell
            else:  # of a time with other consumers: an hour is one of its day, and what came as a day came whole
                span = cell_interval(coarsened(cell, grid))
                yield from cells_between(span.start, span.end, grid)
        return
    for slice_id, made in store.receipts.live_slices(name).items():
        if upto is None or made.version <= upto:
            yield slice_id


class FanIns:
    """Answers for one graph against one store."""

    def __init__(self, graph: Graph, store: Store, closing: Closing) -> None:
        self._graph = graph
        self._store = store
        self._closing = closing

    def never_made(
        self, dataset: Dataset, live: Mapping[str, LiveSlice], wish: Wish, heads: Mapping[str, Head]
    ) -> dict[str, SliceState]:
        """The slices without a live receipt of which parts are there, or should be."""
        assert dataset.fan_in is not None
        horizon = self._closing.horizon(dataset, wish.run_time)
        begun = self._begun(dataset, heads)
        awaited, behind = self._awaited(dataset, wish, heads)
        states: dict[str, SliceState] = {}
        for cell in sorted({*begun, *behind} - live.keys()):
            if cell not in begun and self._was_rolled_back(dataset, cell, heads):
                continue
            if (why := horizon.still_open(cell)) is not None:
                states[cell] = SliceState(event_slice(cell), "waiting", why, make=False)
            elif cell in awaited and (dataset.fan_in.rule != "any" or cell not in begun):
                if cell in begun:
                    reason = f"not all parts were tried yet: {awaited[cell]}"
                    states[cell] = SliceState(event_slice(cell), "waiting", reason, make=False)
            else:
                status: Status = "due" if cell in horizon.newest(dataset.grid) else "missing"
                states[cell] = SliceState(event_slice(cell), status, "it was never made")
        if dataset.expect_within is not None:
            for cell in self._closing.lacking(dataset, wish.run_time, live, heads):
                states.setdefault(cell, self._expected(dataset, cell, wish.run_time, heads))
        return states | self._kept_private(dataset, states)

    def gained(self, dataset: Dataset, live: Mapping[str, LiveSlice]) -> Iterator[SliceState]:
        """The slices that were made without parts which are there now, though no row of theirs has changed."""
        for slice_id, then in self._store.receipts.completeness(dataset.name).items():
            if then.is_complete or slice_id not in live:
                continue
            now = completeness_of(self._graph, self._store, dataset, Slice.parse(slice_id))
            if now is not None and set(now.missing) != set(then.missing):
                yield SliceState(Slice.parse(slice_id), "stale", f"it was made when {then.in_words()}")

    def judged(self, dataset: Dataset, states: Mapping[str, SliceState]) -> dict[str, SliceState]:
        """The same states; where too few parts are there the slice is not made, and else the reason tells how many."""
        assert dataset.fan_in is not None
        found, told = dict(states), self._store.steps.left_out(dataset.name)
        for slice_id, state in states.items():
            if not state.make or state.status in _AS_IT_IS:
                continue
            completeness = completeness_of(self._graph, self._store, dataset, state.slice)
            if completeness is None:
                continue
            if not is_met(dataset.fan_in.rule, completeness):
                reason = f"{completeness.in_words()}; the rule is: {rule_in_words(dataset.fan_in.rule)}"
                again = told.get(slice_id) == f"unmet: {reason}"
                found[slice_id] = SliceState(state.slice, "unmet", reason, make=not again)
            elif not completeness.is_complete:
                found[slice_id] = replace(state, reason=f"{state.reason}; {completeness.in_words()}")
        return found

    def _begun(self, dataset: Dataset, heads: Mapping[str, Head]) -> set[str]:
        """The slices for which an input has rows, and that have no live receipt."""
        names = [name for name in self._graph.driving(dataset) if name in heads]
        return {cell for name in names for cell in self._closing.missing(dataset, name)}

    def _awaited(self, dataset: Dataset, wish: Wish, heads: Mapping[str, Head]) -> tuple[dict[str, str], set[str]]:
        """Slice -> a part of it that nobody has tried yet; and all slices that lack parts which should be there."""
        awaited, behind = dict[str, str](), set[str]()
        by_input: dict[str, list[str]] = {}
        for name, part in self._closing.unmade_parts(dataset, wish.run_time, heads, alike=True):
            by_input.setdefault(name, []).append(part)
        for name, parts in by_input.items():
            tried = self._store.steps.tried(name, parts[0], parts[-1])
            horizon = self._closing.horizon(self._graph[name], wish.run_time)
            arrived = self._with_rows(name)
            for part in parts:
                cell = coarsened(part, dataset.grid)
                behind.add(cell)
                limit = self._graph[name].expect_within
                if part not in arrived and limit is not None:
                    done = cell_interval(part).end + limit <= wish.run_time
                else:
                    done = part in tried or (name in wish.ended and horizon.still_open(part) is None)
                if not done:
                    awaited.setdefault(cell, f"{name} {part} is to come")
        return awaited, behind

    def _with_rows(self, name: str) -> set[str]:
        """The slices of a dataset for which its own inputs have rows."""
        other = self._graph[name]
        return {cell for above in self._graph.driving(other) for cell in self._closing.missing(other, above)}

    def _expected(self, dataset: Dataset, cell: str, run_time: datetime, heads: Mapping[str, Head]) -> SliceState:
        """A slice of which nothing at all has come: when its limit has passed, it has no part."""
        state = self._closing.expected(dataset, cell, run_time, heads)
        return replace(state, status="missing", cure=None) if state.status == "overdue" else state

    def _was_rolled_back(self, dataset: Dataset, cell: str, heads: Mapping[str, Head]) -> bool:
        restored = dataset.name in heads and heads[dataset.name].restored
        return restored and self._store.receipts.first(dataset.name, cell) is not None

    def _kept_private(self, dataset: Dataset, states: Mapping[str, SliceState]) -> dict[str, SliceState]:
        """The slices whose parts are as they were when they were kept private: nothing is to be made of them."""
        if (private := partial_of(dataset)) is None:
            return {}
        told = self._store.receipts.completeness(private)
        kept = {slice_id: one for slice_id, one in told.items() if slice_id in states and not one.is_complete}
        for name in self._graph.driving(dataset):
            for slice_id, *_ in self._closing.stale(private, dataset.grid, name):
                kept.pop(slice_id, None)
        return {
            slice_id: SliceState(
                states[slice_id].slice,
                "partial",
                f"{then.in_words()}; kept in {private} until it is whole",
                make=False,
            )
            for slice_id, then in kept.items()
            if then == completeness_of(self._graph, self._store, dataset, states[slice_id].slice)
        }
