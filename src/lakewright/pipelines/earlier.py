"""The rows that earlier slices of a dataset hold: what a guard knows of the time before its slice."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.model.slices import EVENT_COLUMN
from lakewright.model.times import cell_of
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["earlier_rows"]


def earlier_rows(attempt: Attempt, reach: timedelta) -> DataFrame | None:
    """The dataset's own rows of the stretch before the slice, pinned; None where there is no table yet.

    Only the partitions of the stretch are read. The slice itself is never among them, so that a repeat of it does not
    meet its own rows.
    """
    shop, dataset = attempt.shop, attempt.dataset
    version = None if attempt.slice.kind != "event" else pin(shop.lake, shop.store, dataset.name)
    if version is None:
        return None
    attempt.inputs[dataset.name] = version
    start = attempt.slice.interval.start - reach
    first = cell_of(start, dataset.grid)
    rows = shop.lake.read(dataset.name, version=version, system_columns=True)
    return rows.where(
        f"{EVENT_COLUMN} >= '{first}' AND {EVENT_COLUMN} < '{attempt.slice.value}' "
        f"AND `{dataset.event_time}` >= TIMESTAMP '{start:%Y-%m-%d %H:%M:%S}'"
    )
