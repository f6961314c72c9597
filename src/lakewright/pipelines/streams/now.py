"""A stream within a run: it reads what is there, micro-batch by micro-batch, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from lakewright.errors import InterruptedRun
from lakewright.model.findings import Finding
from lakewright.model.receipts import Counters, Filtered, Receipt
from lakewright.model.slices import WHOLE
from lakewright.model.streams import Generation
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.streams.drain import drain, go_on_with_drain
from lakewright.pipelines.streams.gaps import go_on_past_gap
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.joins import silent_side
from lakewright.pipelines.streams.queries import Query
from lakewright.pipelines.streams.rewind import go_on_after_restore, go_on_with_rewind
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Attempt, Made, Workshop

__all__ = ["prepare", "read_now", "total_of"]


def read_now(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Runs the micro-batches of everything that is new; a kill at any moment repeats at most the last of them."""
    with shop.attempt(dataset, WHOLE, attempt=attempt, reason=f"{state.status}: {state.reason}", whole=True) as current:
        receipts, generation = prepare(current)
        query = Query(current, generation)
        while not query.wait(0.2):
            query.note_dropped()
            if shop.stopping():
                query.stop()
        receipts += harvest_stream(current, query.dropped())
        if (progress := query.progress()) is not None:
            shop.store.streams.advance(dataset.name, query.generation.number, progress, now=shop.now())
            if silent := silent_side(shop, dataset, progress):
                told = Finding(dataset.name, "silent input", silent)
                shop.store.findings.add([told], run_id=shop.run.run_id, now=shop.now())
        if (failure := query.failure()) is not None:
            raise failure
        while not shop.stopping() and drain(current, generation.number):
            receipts += harvest_stream(current)
        if shop.stopping():
            raise InterruptedRun(f"{dataset.name}: interrupted; `lakewright run` goes on from here.")
        current.finish(())
        return Made(() if not receipts else (*receipts, total_of(receipts)))


def total_of(receipts: Sequence[Receipt]) -> Receipt:
    """What all micro-batches of a run did, for its report; None where one of them does not tell. It is not kept."""
    data = [receipt for receipt in receipts if receipt.kind == "data"] or list(receipts)
    rejected: dict[str, int] = {}
    for receipt in data:
        for rule, rows in receipt.counters.rejected.items():
            rejected[rule] = rejected.get(rule, 0) + rows

    filtered = [one.counters.filtered for one in data if one.counters.filtered is not None]

    def total(values: Iterable[int | None]) -> int | None:
        known = list(values)
        return None if None in known else sum(value or 0 for value in known)

    counters = Counters(
        read=total(one.counters.read for one in data),
        rejected=rejected,
        duplicates=total(one.counters.duplicates for one in data),
        held=total(one.counters.held for one in data),
        written=total(one.counters.written for one in data),
        corrupt=total(one.counters.corrupt for one in data),
        filtered=reduce(Filtered.plus, filtered) if filtered else None,
    )
    return replace(data[-1], slice_id=WHOLE.id, rows=total(one.rows for one in data), counters=counters)


def prepare(current: Attempt) -> tuple[list[Receipt], Generation]:
    """Settle what was left: receipts of earlier micro-batches, a rewind or a batch of buffered rows cut short.

    Gives the generation that reads; the first one begins here, and one that goes on after records that are lost.
    """
    shop, name = current.shop, current.dataset.name
    receipts = harvest_stream(current)
    go_on_after_restore(current)
    go_on_with_rewind(current)
    generation = shop.store.streams.current(name)
    source: Any = current.dataset.source
    if generation is None:
        # With its beginning the source notes what it is: a topic made anew under the same name is another one.
        start = source.beginning(source_context(shop, current.dataset)) if current.dataset.is_source else None
        with current.recording() as conn:
            generation = shop.store.streams.begin(name, start=start, run_id=shop.run.run_id, now=shop.now(), conn=conn)
    generation = go_on_past_gap(current, generation)
    if current.dataset.is_source and generation.start is not None:
        current.origin = source.origin(generation.start)
    go_on_with_drain(current, generation.number)
    return receipts, generation
