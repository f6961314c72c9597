"""What a run is asked for beyond what is due: slices again, or all of a stretch of event time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from lakewright.model.protocols import Source
from lakewright.model.slices import ANY_CELL, Slice
from lakewright.model.times import Interval, cell_interval
from lakewright.pipelines.definitions import Dataset, Slicing
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import Wish
from lakewright.store import Store

__all__ = ["again", "backfill", "newest_load"]


def again(graph: Graph, store: Store, names: Sequence[str], slices: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """What ``--again`` repeats: the slices named, or those that the last run that made something made."""
    chosen = [name for name in names if not (graph[name].is_source or graph[name].is_stream)]
    if slices:
        asked = [Slice.parse(text) for text in slices]
        return {name: frozenset(one.id for one in asked if _fits(one, graph.slicing[name])) for name in chosen}
    for run in store.runs.latest(limit=100):
        made: dict[str, set[str]] = {}
        for step in store.steps.of_run(run.run_id):
            if step.state in ("ok", "recovered") and step.dataset in chosen:
                made.setdefault(step.dataset, set()).add(step.slice_id)
        if made:
            return {name: frozenset(found) for name, found in made.items()}
    return {}


def backfill(
    graph: Graph,
    store: Store,
    *,
    run_time: datetime,
    span: Interval | None,
    select: Sequence[str],
    sources: bool,
    outdated: bool,
) -> tuple[list[str], Wish]:
    """The datasets and slices of a backfill: those selected and everything below them."""
    chosen = _without_declined(graph, graph.select(select)) if select else set(graph.order)
    names = [name for name in graph.order if name in chosen and (sources or not graph[name].is_source)]
    repeated: dict[str, frozenset[str]] = {}
    from_bronze: tuple[str, ...] = ()
    if sources and span is not None:
        repeated = {name: _arrivals_within(store, graph[name], span) for name in names if graph[name].is_source}
        for name in names:
            follows = graph.slicing[name].follows
            if follows in repeated:
                repeated[name] = repeated[follows]
        # A window that would not give the same rows again is never read twice: what follows begins at bronze.
        from_bronze = tuple(n for n in names if (s := graph[n].source) is not None and not _can_repeat(graph[n], s))
        repeated = {name: slices for name, slices in repeated.items() if name not in from_bronze}
    return names, Wish(run_time, backfill=span, again=repeated, outdated=outdated, from_bronze=from_bronze)


def _without_declined(graph: Graph, selected: Sequence[str]) -> set[str]:
    """What was selected and everything below it, but for pipelines that follow one of these and have not accepted."""
    asked = {graph[name].pipeline for name in selected}
    chosen, todo = set(selected), list(selected)
    while todo:
        for name in graph.downstream(todo.pop()) - chosen:
            settings = graph[name].settings
            if settings.pipeline in asked or settings.after is None or settings.after.backfills == "accept":
                chosen.add(name)
                todo.append(name)
    return chosen


def _can_repeat(dataset: Dataset, source: Source) -> bool:
    """Whether single arrivals can be read again: a stream goes on from a place, and is rewound to another."""
    return source.repeatable and not dataset.is_stream


def _arrivals_within(store: Store, dataset: Dataset, span: Interval) -> frozenset[str]:
    """The arrivals of a source that brought rows of a stretch of event time, or of no time that is known."""
    found = set()
    live = store.receipts.live_slices(dataset.name)
    for slice_id in newest_load(live) if dataset.is_replaced else live:
        receipt = store.receipts.live(dataset.name, slice_id)
        cells = [] if receipt is None else [c for c in receipt.touched if c is not None and c != ANY_CELL]
        if not cells or any(cell_interval(cell).overlaps(span) for cell in cells):
            found.add(slice_id)
    return frozenset(found)


def newest_load(live: Iterable[str]) -> list[str]:
    """The one arrival that counts where each replaces all before it."""
    return [max(live, key=lambda slice_id: Slice.parse(slice_id).number)] if live else []


def _fits(one: Slice, cut: Slicing) -> bool:
    return one.kind == cut.kind and (one.kind != "event" or one.grid == cut.grid)
