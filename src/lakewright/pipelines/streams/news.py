"""Whether there is something for a stream to read, asked without starting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakewright.model.outside import Log
from lakewright.model.streams import Generation
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.streams.rewind import was_restored
from lakewright.pipelines.streams.skew import is_delivered, last_kept
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Workshop
from lakewright.store import WHOLE_DATASET

__all__ = ["behind", "kept_going_by", "news_of"]


def kept_going_by(shop: Workshop, name: str) -> str | None:
    """The process that keeps a stream going just now, or None."""
    for lease in shop.store.leases.held(shop.now()):
        if lease.dataset == name and lease.slice_id == WHOLE_DATASET and lease.alive:
            return str(lease.owner or lease.owner_id)
    return None


def news_of(shop: Workshop, dataset: Dataset) -> str:
    """What a stream would read now, in words; empty where there is nothing new."""
    generation = shop.store.streams.current(dataset.name)
    if generation is None or generation.progress is None:
        given = shop.graph.streamed_input(dataset)
        if given is not None and not all(shop.lake.log(name).exists() for name in given.datasets):
            return ""
        return "it has not read anything yet" if generation is None or generation.number == 1 else "it was rewound"
    if was_restored(shop, dataset):
        return "it was rolled back, and reads on from there"
    count = behind(shop, dataset, generation)
    if count is None:
        return "whatever is new"
    noun = "record" if dataset.is_source else "version"
    if count:
        return f"{count:,} new {noun}{'s' if count != 1 else ''}"
    kept = last_kept(shop.lake, dataset.name, generation.number)
    if kept is None:
        return ""
    if kept.drain and not is_delivered(shop.lake, dataset.name, generation.number, kept.place):
        return "rows that left its skew buffer are not delivered"  # nothing in Spark's own notes tells of them
    return f"{kept.rows:,} rows wait in its skew buffer" if kept.rows else ""


def behind(shop: Workshop, dataset: Dataset, generation: Generation) -> int | None:
    """How far a stream is behind its input: records of a source, versions of a table; None is unknown."""
    if generation.progress is None:
        return None
    if dataset.is_source:
        source: Any = dataset.source
        return int(source.behind(source_context(shop, dataset), generation.progress.offsets, generation.start))
    given = shop.graph.streamed_input(dataset)
    assert given is not None
    try:
        told = json.loads(generation.progress.offsets)
        places = [(name, told if given.join is None else told[name]) for name in given.datasets]
        by_commit = shop.graph.reads_changes(dataset)
        read = [(shop.lake.log(name), _first_unread(place, by_commit=by_commit)) for name, place in places]
    except (ValueError, KeyError, TypeError):
        return None
    return sum(_unread(log, version) for log, version in read)


def _first_unread(place: Mapping[str, Any], *, by_commit: bool) -> int:
    """The version that a stream reads next: by Delta's own words one that was read is told as the next, index -1.

    A change feed is read commit by commit, and its place stays at the last file of the last one.
    """
    version, index = int(place["reservoirVersion"]), int(place.get("index", -1))
    whole = by_commit and index >= 0 and not place.get("isStartingVersion", False)
    return version + 1 if whole else version


def _unread(log: Log, first: int) -> int:
    """The versions from ``first`` on.

    A fence or a compaction is nothing to read, and a stream that finds only such never moves on: they do not count.
    """
    news = any(commit.data_change for commit in log.commits(after=first - 1))
    return max(0, (log.latest() or 0) - first + 1) if news else 0
