"""Is a slice ready? Asked of the store where it knows the dataset, else of the project and of the tables' own logs.

A poll by another scheduler comes often: where the store knows the dataset, the answer needs neither Spark nor the
project's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.receipts import Receipt
from lakewright.model.slices import Slice
from lakewright.patterns.ingestion.commit_marker import find_data_commit

if TYPE_CHECKING:  # the quick way needs nothing of them
    from lakewright.pipelines.upstream import Upper
    from lakewright.pipelines.workshop import Workshop
    from lakewright.store import Marker, Store

__all__ = ["Readiness", "ask_readiness", "known_readiness"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a slice may be read; the facts are those of the commit that made it."""

    dataset: str
    slice: str
    ready: bool
    reason: str
    """Why it is ready or not, in words."""
    since: datetime | None = None
    run: str | None = None
    rows: int | None = None
    version: int | None = None


def known_readiness(store: Store, name: str, slice_id: str) -> Readiness | None:
    """The answer of the store alone; None where it knows nothing of the dataset, or only what others made."""
    wanted = Slice.parse(slice_id)
    if store.origins.all().get(name):
        return None  # another target makes it: its own log tells
    answer = _by_store(store, name, wanted)
    known = answer.ready or store.receipts.last_version(name) is not None or store.steps.last(name) is not None
    return answer if known else None


def ask_readiness(shop: Workshop, uppers: Sequence[Upper], name: str, slice_id: str) -> Readiness:
    """The same for every dataset of a project: also for those of another target, and for adopted tables."""
    from lakewright.pipelines.upstream import borrow, index

    graph, lake, store = shop.graph, shop.lake, shop.store
    wanted = Slice.parse(slice_id)
    if name not in graph.owners and name not in graph.adopted:
        raise UnknownNameError("dataset", name, {*graph.owners, *graph.adopted})
    owner = graph.owners.get(name)
    if owner is not None:
        _refuse_other_cut(name, wanted, graph.slicing[owner].kind, graph.slicing[owner].grid)
    found = borrow(graph, lake, uppers, store)
    if owner is None:
        return _by_log(shop, name, wanted)
    if name in found:
        index(shop, {name: found[name]}, [owner])
    return _by_store(store, name, wanted)


def _by_store(store: Store, name: str, wanted: Slice) -> Readiness:
    marker, receipt = store.markers.of(name, wanted.id), store.receipts.live(name, wanted.id)
    if receipt is not None and receipt.counters.is_partial and receipt.counters.completeness is not None:
        reason = f"it is partial: {receipt.counters.completeness.in_words()}"
        return Readiness(name, wanted.id, False, reason, run=receipt.run_id, rows=receipt.rows, version=receipt.version)
    if receipt is not None and (marker is None or marker.state == "ready"):
        return _ready(receipt, receipt.committed_at if marker is None else marker.set_at)
    if marker is None:
        _refuse_unlike(store, name, wanted)
        return Readiness(name, wanted.id, False, "it was not made yet")
    return Readiness(name, wanted.id, False, _why_withdrawn(store, name, wanted, marker), run=marker.run_id)


def _ready(receipt: Receipt, since: datetime) -> Readiness:
    return Readiness(
        receipt.dataset,
        receipt.slice_id,
        True,
        "its newest commit is complete",
        since=since,
        run=receipt.run_id,
        rows=receipt.rows,
        version=receipt.version,
    )


def _why_withdrawn(store: Store, name: str, wanted: Slice, marker: Marker) -> str:
    at = f"{marker.set_at:%Y-%m-%d %H:%M:%S} UTC"
    makers = {step.run_id for step in store.steps.open_steps(name) if step.slice_id in (wanted.id, "whole")}
    # What failed after its commit stays open until the log was asked, though its run has ended.
    if any(run.run_id in makers for run in store.runs.unfinished()):
        return f"run {marker.run_id} is making it since {at}"
    return f"run {marker.run_id} began to make it at {at} and did not succeed; the next run settles it"


def _by_log(shop: Workshop, name: str, wanted: Slice) -> Readiness:
    """Of a table that others write: the newest commit that carries rows of the slice."""
    commit = find_data_commit(shop.lake.log(name), wanted.id)
    if commit is None:
        return Readiness(name, wanted.id, False, "no commit carries rows for it yet")
    return Readiness(
        name, wanted.id, True, "a commit carries rows for it", commit.committed_at, None, commit.rows, commit.version
    )


def _refuse_unlike(store: Store, name: str, wanted: Slice) -> None:
    """A slice that can never be: the dataset's receipts tell how it is cut."""
    made = next((r for r in store.receipts.history(name, limit=20) if r.kind == "data"), None)
    if made is not None:
        like = Slice.parse(made.slice_id)
        _refuse_other_cut(name, wanted, like.kind, like.grid if like.kind == "event" else None)


def _refuse_other_cut(name: str, wanted: Slice, kind: str, grid: str | None) -> None:
    if wanted.kind == kind and (kind != "event" or wanted.grid == grid):
        return
    cut = {"event": f"by event {grid}", "whole": "as a whole", "arrival": "by arrival", "key": "by key"}[kind]
    cells = {"hour": "2026-01-05T07", "day": "2026-01-05", "week": "2026-W02", "month": "2026-01"}
    example = cells.get(grid or "") or {
        "whole": "whole", "arrival": "arrival-7", "key": "key-eu",
    }.get(kind, kind)  # fmt: skip
    raise ConfigurationError(f"{name} is made {cut}, so it has no slice '{wanted.id}'.", hint=f"Write it as {example}.")
