"""Rewinding a stream: a new generation that reads again from an earlier place, without a record twice.

Guarantee:
    After a rewind and a run each record is there once, whenever either was killed. The generation and its beginning
    are recorded first; then what will be read again is deleted, in a commit that tells the generation; only then does
    the new checkpoint begin. What a paused process of the old generation still writes is skipped by Delta.
Consequences:
    - Whole micro-batches are read again: a rewind goes back to the beginning of the one that holds the moment.
    - Rows must tell their place at the source; a stream that merges by key, or follows another dataset, is read again
      from its beginning only. A merge deletes nothing.
    - Whoever reads the dataset slice by slice becomes stale twice: by the deletion and by what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lakewright.errors import ConfigurationError
from lakewright.failpoints import failpoint
from lakewright.lake.log import own_commits
from lakewright.model.arrivals import Window
from lakewright.model.slices import ARRIVAL_COLUMN, WHOLE, arrival_slice
from lakewright.model.streams import FIRST_GENERATION
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.streams.harvest import harvest_stream
from lakewright.pipelines.streams.skew import PART, buffer_of
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = ["RewindSummary", "go_on_with_rewind", "rewind_stream", "was_restored"]

_LAST_BATCH = 2**62
"""Higher than any batch: after this, Delta skips whatever the old generation still sends."""
_RESTORED = -1


@dataclass(frozen=True, slots=True)
class RewindSummary:
    """What a rewind did, or would do."""

    dataset: str
    generation: int
    first: int | None
    """The first arrival that is read again."""
    start: Window | None
    deleted: int | None
    consumers: tuple[str, ...]


def rewind_stream(
    shop: Workshop, dataset: Dataset, *, to: datetime | None = None, dry_run: bool = False
) -> RewindSummary:
    """Runs the job that deletes what will be read again; the next run, or continuous stream, reads it.

    Without ``to`` the stream begins anew, where its source says.
    """
    last = shop.store.streams.current(dataset.name)
    following = FIRST_GENERATION if last is None else last.number + 1
    consumers = tuple(sorted(shop.graph.downstream(dataset.name)))
    _refuse_streams_below(shop, dataset, consumers)
    first, start = _beginning(shop, dataset, to)
    if dry_run:
        return RewindSummary(dataset.name, following, first, start, None, consumers)
    when = "the beginning" if to is None else f"{to:%Y-%m-%d %H:%M:%S} UTC"
    with shop.attempt(dataset, WHOLE, attempt=1, reason=f"rewind to {when}", whole=True) as current:
        harvest_stream(current)
        # Asked again under the lease: meanwhile the stream may have read on.
        first, start = _beginning(shop, dataset, to)
        shop.store.streams.begin(dataset.name, start=start, first=first, run_id=shop.run.run_id, now=shop.now())
        failpoint("generation_recorded")
        deleted = go_on_with_rewind(current)
        current.finish(())
    return RewindSummary(dataset.name, following, first, start, deleted, consumers)


def go_on_with_rewind(current: Attempt) -> int | None:
    """Runs the job that deletes what the newest generation reads again, unless the log tells that it was done.

    A table that was restored since is read on from where it was then, by a generation of its own.
    """
    shop, dataset = current.shop, current.dataset
    generation = shop.store.streams.current(dataset.name)
    if generation is None or not shop.lake.log(dataset.name).exists():
        return None
    told = _last_told(shop, dataset)
    if told == _RESTORED:
        _fence(current, generation.number)
        source: Any = dataset.source
        rows = shop.lake.read(dataset.name, system_columns=True)
        _refuse_another_source(shop, dataset)
        start = source.position_after(source_context(shop, dataset), rows)
        shop.store.streams.begin(dataset.name, start=start, run_id=shop.run.run_id, now=shop.now())
        return None
    if generation.first is None or told >= generation.number:
        return None
    _fence(current, generation.number - 1)
    failpoint("fenced")
    # Named after the first arrival that goes: this, and every later one, counts no longer.
    identity = replace(
        current.identity(rewind=generation.number, start=None if generation.start is None else dict(generation.start)),
        kind="rewind",
        part="rewind",
        slice_id=arrival_slice(generation.first).id,
    )
    # Sessions are built anew as a whole: another order of arrival may give others, with other ids.
    again = "true" if dataset.sessions is not None else f"{ARRIVAL_COLUMN} >= {generation.first}"
    commit = shop.lake.open(dataset.name, identity).delete(again)
    failpoint("rewound")
    harvest_stream(current)
    return None if commit is None else commit.metrics.get("numDeletedRows", 0)


def was_restored(shop: Workshop, dataset: Dataset) -> bool:
    """Whether a stream's table was rolled back since its last micro-batch."""
    return shop.lake.log(dataset.name).exists() and _last_told(shop, dataset) == _RESTORED


def _last_told(shop: Workshop, dataset: Dataset) -> int:
    """The generation that the log tells of last, by a deletion or a micro-batch; or that it was restored since."""
    for _, identity in own_commits(shop.lake.log(dataset.name)):
        if identity.kind == "fence":
            continue
        if identity.kind == "restore":
            return _RESTORED
        told = identity.details.get("rewind", identity.details.get("generation"))
        if isinstance(told, int):
            return told
    return 0


def _fence(current: Attempt, generation: int) -> None:
    identity = replace(
        current.identity(generation=generation, batch=_LAST_BATCH), kind="fence", slice_id=f"generation-{generation}"
    )
    commit = current.shop.lake.open(current.dataset.name, identity).touch()
    if commit is not None:
        current.shop.store.receipts.add([receipt_of(current.dataset.name, commit)])
    buffer = current.shop.lake.open(buffer_of(current.dataset.name), identity.as_part(PART))
    if buffer.exists():
        buffer.touch()


def _beginning(shop: Workshop, dataset: Dataset, to: datetime | None) -> tuple[int | None, Window | None]:
    """The first arrival that is read again, and where it began; a stream that merges deletes nothing."""
    source: Any = dataset.source
    if to is None:
        # Read as a whole it may be another topic than before, which is noted here, as at a first beginning.
        start = source.beginning(source_context(shop, dataset)) if dataset.is_source else None
        return (0 if dataset.appends or dataset.sessions is not None else None), start
    if not dataset.is_source:
        raise ConfigurationError(
            f"{dataset.name} follows another dataset, whose rows do not tell when they came. Nothing was changed.",
            hint=f"Rewind it as a whole: `lakewright stream rewind {dataset.name} --all`.",
        )
    _refuse_another_source(shop, dataset)
    context = source_context(shop, dataset)
    found = None
    if shop.lake.log(dataset.name).exists():
        rows = shop.lake.read(dataset.name, system_columns=True)
        found = source.first_batch_since(context, rows, to)
    if found is None:
        raise ConfigurationError(
            f"{dataset.name} has read nothing since {to:%Y-%m-%d %H:%M:%S} UTC, so there is nothing to read again. "
            "Nothing was changed."
        )
    first, start = found
    return int(first), start


def _refuse_another_source(shop: Workshop, dataset: Dataset) -> None:
    """The places that rows tell are those of the topic that they came from, not of one made anew since."""
    known = shop.store.streams.current(dataset.name)
    if known is not None and known.start is not None:
        source: Any = dataset.source
        source.refuse_anew(source_context(shop, dataset), known.start)


def _refuse_streams_below(shop: Workshop, dataset: Dataset, consumers: tuple[str, ...]) -> None:
    followers = [
        name
        for name in consumers
        if shop.graph[name].appends and shop.graph.streamed_input(shop.graph[name]) is not None
    ]
    if followers:
        raise ConfigurationError(
            f"{followers[0]} adds the rows of {dataset.name} as a stream and could not take any of them back. "
            "Nothing was changed.",
            hint=f"Give {followers[0]} writer=Merger(keys=[...]), or rewind it as a whole first: "
            f"`lakewright stream rewind {followers[0]} --all`.",
        )
