"""A slice of sessions: the step's visits and what the slice before left pending become two tables, made once.

Guarantee:
    The pending sessions are committed before the completed ones, and a slice reads those of an earlier slice only: so
    whatever the moment of a kill, making the slice again leaves both tables as one undisturbed attempt would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakewright.model.columns import system_columns
from lakewright.model.slices import Slice
from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
from lakewright.pipelines.session_options import pending_of, sessions_of_dataset
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["sessionized"]


@contextmanager
def sessionized(current: Attempt, frames: dict[str, DataFrame]) -> Iterator[dict[str, DataFrame]]:
    """The frames to write: those of the step, or the sessions of its visits."""
    dataset = current.dataset
    if dataset.sessions is None:
        yield frames
        return
    built = build_sessions(
        frames[dataset.name],
        sessions=sessions_of_dataset(current.shop.graph, dataset),
        until=current.slice.interval.end,
        pending=_pending_before(current),
    )
    built.every.persist()  # both tables are made of it
    try:
        yield {dataset.name: built.completed, pending_of(dataset): built.pending}
    finally:
        built.every.unpersist()


def _pending_before(current: Attempt) -> DataFrame | None:
    """The sessions that the nearest earlier slice left open, pinned; None where there is no earlier slice."""
    shop, name, private = current.shop, current.dataset.name, pending_of(current.dataset)
    if shop.sample == 0:
        return None
    live = shop.store.receipts.live_slices(name)
    earlier = [found for one in live if (found := Slice.parse(one)) < current.slice]
    # As it stands: slices are made in order, and what a failed attempt left of an earlier one was replaced before.
    version = shop.lake.log(private).latest()
    if not earlier or version is None:
        return None
    # By this it is told whether an earlier slice was made again since.
    current.inputs[name] = max(live[one.id].version for one in earlier)
    current.inputs[private] = version
    rows = shop.lake.read(private, version=version, system_columns=True).where(max(earlier).predicate())
    return rows.drop(*system_columns(rows.columns))
