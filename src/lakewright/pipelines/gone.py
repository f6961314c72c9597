"""Arrivals that their source no longer holds as they were recorded: refused, cut to what is left, or given up.

Guarantee:
    What can still be read is read. Where a source has lost a part of an arrival before it was read, what is left of it
    stands under its number, and what is lost is noted in its window, by word of a user or of ``if_lost="go on"``. One
    that was read before stays as it is: a repeat is refused rather than made of less.
"""

from __future__ import annotations

from dataclasses import replace

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.arrivals import Arrival
from lakewright.model.protocols import Found, LeavesRest, SourceContext
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = ["give_up", "what_is_there"]


def what_is_there(current: Attempt, arrival: Arrival, context: SourceContext) -> Arrival:
    """The arrival as it can be read; refused where it is not for us to do without what is gone."""
    dataset, store = current.dataset, current.shop.store
    source = dataset.source
    assert source is not None
    gone = source.gone(arrival, context)
    if not gone:
        return arrival
    command = f"`lakewright retry --forget {dataset.name}:{arrival.number}`"
    back = "Bring the files back as they were, or"
    if not any(one.number == arrival.number for one in store.arrivals.pending(dataset.name)):
        hint = "It was taken before: without --sources a backfill begins at what was read then."
    elif not isinstance(source, LeavesRest) or (left := _left(source, dataset, arrival, context)) is None:
        hint = f"{back} forget this arrival: {command}."
    elif source.if_lost == "go on":
        store.arrivals.narrow(dataset.name, arrival.number, left.window, left.files)
        return replace(arrival, window=left.window)
    elif source.if_lost == "fail":
        hint = f'To read what is left ({left.summary}): {command}. With if_lost="go on" the source does so by itself.'
    else:
        hint = f"{back} read what is left ({left.summary}): {command}."
    raise InputError(
        f"{dataset.name}: {current.slice.id} was recorded, but cannot be read as it was: {', '.join(gone[:3])}"
        f"{' and more' if len(gone) > 3 else ''}. Nothing was written.",
        hint=hint,
    )


def give_up(shop: Workshop, dataset: Dataset, arrival: Arrival, context: SourceContext) -> str:
    """Do without what is gone of an arrival that waits to be read; tells what becomes of it.

    Where nothing is left, or nothing that may be read alone, it counts as settled, without rows.
    """
    source, arrivals = dataset.source, shop.store.arrivals
    assert source is not None
    if not isinstance(source, LeavesRest):
        arrivals.commit(dataset.name, arrival.number)
        return "given up"
    if not source.gone(arrival, context):
        raise ConfigurationError(
            f"{dataset.name}: all of arrival {arrival.number} can still be read. Nothing was given up.",
            hint="Run it again: `lakewright retry`.",
        )
    left = _left(source, dataset, arrival, context)
    if left is not None:
        arrivals.narrow(dataset.name, arrival.number, left.window, left.files)
        return f"what is left is read: {left.summary}"
    with shop.store.transaction() as conn:
        if not dataset.is_replaced:
            arrivals.narrow(dataset.name, arrival.number, arrival.window, conn=conn)
        arrivals.commit(dataset.name, arrival.number, conn=conn)
    return "given up"


def _left(source: LeavesRest, dataset: Dataset, arrival: Arrival, context: SourceContext) -> Found | None:
    """What can still be read of an arrival; None where that is nothing, or nothing that may be read alone."""
    if dataset.is_replaced:  # a part of what is to replace all rows would take the others away
        return None
    left = source.left(arrival, context)
    return None if arrival.files and not left.files else left
