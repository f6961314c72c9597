"""How the streams of a project stand, for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakewright.errors import LakewrightError
from lakewright.model.streams import Progress
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.streams.news import behind, kept_going_by
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


def states_of(shop: Workshop, datasets: Iterable[Dataset]) -> list[StreamState]:
    """Asks the store, and each source where it ends. Starts no stream."""
    found = []
    for dataset in datasets:
        generation = shop.store.streams.current(dataset.name)
        lag, problem = None, ""
        if generation is not None:
            try:
                lag = behind(shop, dataset, generation)
            except LakewrightError as error:
                problem = error.message
        found.append(
            StreamState(
                dataset.name,
                None if generation is None else generation.number,
                kept_going_by(shop, dataset.name),
                None if generation is None else generation.progress,
                lag,
                problem,
            )
        )
    return found
