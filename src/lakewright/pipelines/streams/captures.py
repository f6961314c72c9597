"""The captures behind streams: how one and its place in the database's log stand, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, LakewrightError
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.take import source_context
from lakewright.pipelines.workshop import Workshop

if TYPE_CHECKING:
    from lakewright.connectors.cdc_feed import CaptureFeed
    from lakewright.connectors.postgres_log_feed import LogFeed

__all__ = ["capture_of", "is_captured", "look_at_capture"]


def is_captured(dataset: Dataset) -> bool:
    """Whether a dataset's rows are the changes of a table of a database, by a connector that is ours."""
    from lakewright.connectors.cdc_source import CapturedTable

    return isinstance(dataset.source, CapturedTable) and dataset.source.capture.registers


def capture_of(shop: Workshop, dataset: Dataset) -> CaptureFeed | LogFeed:
    """The capture behind a source; asks nobody yet."""
    from lakewright.connectors.cdc_source import CapturedTable
    from lakewright.connectors.postgres_log import PostgresLog

    context = source_context(shop, dataset)
    if isinstance(dataset.source, CapturedTable):
        return dataset.source.feed(context)
    if isinstance(dataset.source, PostgresLog):
        return dataset.source.feed(context.connections, project=context.project_name, dataset=dataset.name)
    raise ConfigurationError(
        f"{dataset.name}: no captured table. Declare one with ChangeDataCapture(...).of(...), or PostgresLog(...), as "
        "its source."
    )


def look_at_capture(feed: CaptureFeed | LogFeed) -> tuple[int | None, str]:
    """Asks the database and the worker: the bytes of its log that the database keeps for the capture, and what is
    wrong; None and the reason where it does not answer, or has no slot for it.
    """
    try:
        slot = feed.slot()
    except LakewrightError as error:
        return None, error.message
    kept = None if slot is None else slot.lag_bytes
    try:
        state, problem, _ = feed.status()
    except LakewrightError as error:
        return kept, error.message
    if slot is not None and slot.lost:
        return kept, f"its replication slot '{slot.name}' is lost: changes since then cannot be had from it."
    return kept, "" if state == "running" else problem or f"its connector is {state}."
