"""Datasets that go outside the lake: what can be said of them when a project is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lakewright.errors import ConfigurationError, TargetError
from lakewright.lake.lake import Lake
from lakewright.model.outside import ChecksWriter, Destination, TakesSource
from lakewright.model.protocols import Writer
from lakewright.store import Store

__all__ = ["check_destination", "placed_destination", "refuse_other_ledger"]


def check_destination(name: str, into: Destination | None, writer: Writer | None, options: Mapping[str, Any]) -> None:
    """Refuse a destination that is none, and options that only a table of the lake can have."""
    if into is None:
        return
    if not isinstance(into, Destination):
        raise ConfigurationError(
            f'{name}: {into!r} is no destination. Use one of lakewright.connectors, such as PostgresTable("blog_db", '
            '"daily_pages").'
        )
    if (source := options.get("source")) is not None:
        if not isinstance(into, TakesSource):
            raise ConfigurationError(
                f"{name}: a source cannot go into {into.shown} directly.",
                hint=f"Let it come into the lake; a dataset that reads it may have into={type(into).__name__}(...).",
            )
        if options.get("load") is None and not getattr(into, "adds_arrivals", False):
            raise ConfigurationError(f"{name} goes into {into.shown} whole, each time: say load=FullLoader().")
        into.check_source(name, source)
    if options.get("layout") is not None:
        raise ConfigurationError(
            f"{name} goes to {into.shown}, and a layout is for tables of the lake.",
            hint="Leave layout out; PostgresTable(..., partition_by_range=RangePartitions(...)) partitions a table "
            "there.",
        )
    if options.get("history") is not None:
        raise ConfigurationError(
            f"{name} goes to {into.shown}, which keeps no earlier versions.", hint="Leave history out."
        )
    if options.get("rows") == "preserve":
        raise ConfigurationError(
            f'{name} goes to {into.shown}, where a write cannot be put back, so rows="preserve" cannot be kept.',
            hint="Leave rows out; or check it in a dataset of the lake, and let this one read that.",
        )
    if writer is not None and isinstance(into, ChecksWriter):
        into.check_writer(name, writer)


def placed_destination(into: Destination, project: Path) -> Destination:
    """The same; a folder's path begins at the project."""
    within = getattr(into, "within", None)
    return into if within is None else cast(Destination, within(project))


def refuse_other_ledger(lake: Lake, store: Store, name: str) -> None:
    """Refuse to write where the ledger is not the one that receipts tell of: positions of two cannot be compared."""
    known, latest = store.receipts.last_version(name), lake.log(name).latest()
    if known is not None and (latest is None or latest < known):
        raise TargetError(
            f"{name}: the ledger at {lake.log(name).path} ends at {latest or 'nothing'}, and position {known} was "
            "written before: the dataset was moved, or its table made anew. Nothing was written.",
            hint="`lakewright store rebuild` begins again with what the new place holds; the next run makes the rest.",
        )
