"""A stream within a run: it reads what is there, micro-batch by micro-batch, and ends."""

from __future__ import annotations

from typing import Any

from lakewright.errors import InterruptedRun
from lakewright.model.receipts import Receipt
from lakewright.model.slices import WHOLE
from lakewright.model.streams import Generation
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.queries import Query
from lakewright.pipelines.streams.rewind import go_on_with_rewind
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Attempt, Made, Workshop

__all__ = ["prepare", "read_now"]


def read_now(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Runs the micro-batches of everything that is new; a kill at any moment repeats at most the last of them."""
    with shop.attempt(dataset, WHOLE, attempt=attempt, reason=f"{state.status}: {state.reason}", whole=True) as current:
        receipts, generation = prepare(current)
        query = Query(current, generation)
        while not query.wait(0.2):
            if shop.stopping():
                query.stop()
        receipts += harvest_stream(current)
        if (progress := query.progress()) is not None:
            shop.store.streams.advance(dataset.name, query.generation.number, progress, now=shop.now())
        if (failure := query.failure()) is not None:
            raise failure
        if shop.stopping():
            raise InterruptedRun(f"{dataset.name}: interrupted; `lakewright run` goes on from here.")
        return current.finish(()).with_receipts(tuple(receipts))


def prepare(current: Attempt) -> tuple[list[Receipt], Generation]:
    """Settle what was left: receipts of earlier micro-batches, and a rewind that was cut short.

    Gives the generation that reads; the first one begins here.
    """
    shop, name = current.shop, current.dataset.name
    receipts = harvest_stream(current)
    go_on_with_rewind(current)
    generation = shop.store.streams.current(name)
    if generation is None:
        # With its beginning the source notes what it is: a topic made anew under the same name is another one.
        source: Any = current.dataset.source
        start = source.beginning(source_context(shop, current.dataset)) if current.dataset.is_source else None
        generation = shop.store.streams.begin(name, start=start, run_id=shop.run.run_id, now=shop.now())
    return receipts, generation
