"""How the streams of a project stand, for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakewright.errors import LakewrightError
from lakewright.model.streams import Generation, Progress
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.streams.captures import capture_of, is_captured, look_at_capture
from lakewright.pipelines.streams.joins import joined_lately, silent_side
from lakewright.pipelines.streams.news import behind, kept_going_by
from lakewright.pipelines.streams.skew import last_kept
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Workshop

__all__ = ["StreamState", "states_of"]


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream: who runs it, how far it is, and how far that is behind."""

    dataset: str
    generation: int | None
    running: str | None
    """The process that keeps it going, or None."""
    progress: Progress | None
    behind: int | None
    """Records of a source, or versions of a table, that it has not read; None is unknown."""
    problem: str = ""
    buffered: int | None = None
    """Rows that wait in its skew buffer; None: it has none."""
    pairs: int | None = None
    """Pairs that its join has made in its last hundred micro-batches; None: it joins nothing."""
    unmatched: int | None = None
    """Rows that its join has released without a match in these."""
    held_back: int | None = None
    """Bytes of the log that the database of its capture keeps for it, and cannot delete; None: unknown, or none."""


def _lost(shop: Workshop, dataset: Dataset, generation: Generation) -> str:
    """Which records the source has deleted before they were read, as far as the store knows; empty: none."""
    if not dataset.is_source or generation.start is None or generation.progress is None:
        return ""
    source: Any = dataset.source
    try:
        lost = source.lost(source_context(shop, dataset), generation.start, generation.progress.offsets)
    except LakewrightError as error:
        return error.message
    if not lost:
        return ""
    places = "; ".join(f"partition {p}, offsets {first} to {end - 1}" for p, (first, end) in sorted(lost.items()))
    return f"its source has deleted records that it has not read, as far as is recorded ({places})."


def states_of(shop: Workshop, datasets: Iterable[Dataset]) -> list[StreamState]:
    """Asks the store, and each source where it ends. Starts no stream."""
    found = []
    for dataset in datasets:
        generation = shop.store.streams.current(dataset.name)
        lag, problem = None, ""
        held_back: int | None = None
        buffered = None if dataset.skew_buffer is None else 0
        if generation is not None:
            if (kept := last_kept(shop.lake, dataset.name, generation.number)) is not None:
                buffered = kept.rows
            try:
                lag = behind(shop, dataset, generation)
            except LakewrightError as error:
                problem = error.message
            problem = problem or _lost(shop, dataset, generation)
            if generation.progress is not None:
                problem = problem or silent_side(shop, dataset, generation.progress)
            if is_captured(dataset):
                held_back, wrong = look_at_capture(capture_of(shop, dataset))
                problem = problem or wrong
        joined = joined_lately(shop, dataset, None if generation is None else generation.number)
        found.append(
            StreamState(
                dataset.name,
                None if generation is None else generation.number,
                kept_going_by(shop, dataset.name),
                None if generation is None else generation.progress,
                lag,
                problem,
                buffered,
                joined.get("pairs"),
                joined.get("unmatched"),
                held_back,
            )
        )
    return found
