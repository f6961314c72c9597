"""Sources that wait: folders that are there and not complete yet.

A source is looked at once per run and then left alone, so that a hundred waiting ones hold no worker. How long one
has been waited for is kept in the store, by its clock; beyond the source's ``wait_at_most`` it is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.model.slices import key_slice
from lakewright.model.times import parse_duration
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Workshop

__all__ = ["overdue_folders", "waiting_folders"]

_CURE = "Ask its producer. When it is complete the next run takes it; what is complete now was taken."


def waiting_folders(shop: Workshop, dataset: Dataset) -> Mapping[str, str]:
    """Folder -> why it is not taken yet; empty for a source that takes whatever is there."""
    if getattr(dataset.source, "ready", None) is None:
        return {}
    found: Mapping[str, str] = dataset.source.waiting(source_context(shop, dataset))  # type: ignore[union-attr]
    return found


def overdue_folders(shop: Workshop, dataset: Dataset, waiting: Mapping[str, str]) -> list[SliceState]:
    """Note since when each folder is waited for, and give those that have been so for too long."""
    limit = getattr(dataset.source, "wait_at_most", None)
    if limit is None:
        return []
    now, length = shop.now(), parse_duration(limit)
    seen = shop.store.markers.first_seen(f"source:{dataset.name}", waiting, now)
    return [
        SliceState(
            key_slice(folder),
            "overdue",
            f"{folder} {why}; it was first seen at {seen[folder]:%Y-%m-%d %H:%M} UTC and may take {limit}",
            cure=_CURE,
        )
        for folder, why in waiting.items()
        if now - seen[folder] > length
    ]
