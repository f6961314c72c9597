"""The event cell of a row, as a column."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import InputError
from lakewright.lake.delta_errors import OUTSIDE_SLICE
from lakewright.model.columns import EVENT_COLUMN, RAW_COLUMN, business_columns
from lakewright.model.slices import ANY_CELL, Slice
from lakewright.model.times import Grid
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["event_cell", "time_within", "usable_event_cell", "with_event_cell"]

_FORMATS: dict[Grid, str] = {"hour": "yyyy-MM-dd'T'HH", "day": "yyyy-MM-dd", "month": "yyyy-MM"}


def event_cell(frame: DataFrame, column: str, grid: Grid) -> Column:
    """The cell of a time or date column (text is read as a time, and is NULL where it is none)."""
    from pyspark.sql import functions as F

    moment = _moment(frame, column)
    # A cast to date is much cheaper than formatting each row's time.
    return moment.cast("date").cast("string") if grid == "day" else F.date_format(moment, _FORMATS[grid])


def time_within(frame: DataFrame, column: str, slice_: Slice) -> Column:
    """The same time, failing when it is written if it lies outside the slice.

    Checked so, every row of the slice has the same cell: a constant, by which Spark need not sort before it writes.
    """
    from pyspark.sql import functions as F

    kind = frame.schema[column].dataType
    moment = _moment(frame, column).cast("timestamp")
    span = slice_.interval
    first, last = (F.lit(f"{at:%Y-%m-%d %H:%M:%S}").cast("timestamp") for at in (span.start, span.end))
    told = F.coalesce(F.col(f"`{column}`").cast("string"), F.lit("NULL"))
    outside = F.raise_error(F.concat(F.lit(f"{OUTSIDE_SLICE} {column} = "), told)).cast(kind)
    return F.when((moment >= first) & (moment < last), F.col(f"`{column}`")).otherwise(outside)


def with_event_cell(
    frame: DataFrame, dataset: Dataset, grid: Grid | None, *, end: Column | datetime | None
) -> DataFrame:
    """The frame with ``_lw_event``: the row's cell; NULL where its time cannot be used, or its record not be read."""
    from pyspark.sql import functions as F

    columns = frame.columns
    cell = F.lit(ANY_CELL)
    if dataset.event_time is not None:
        if dataset.event_time not in columns:
            raise InputError(
                f"{dataset.place}: {dataset.name} names event_time '{dataset.event_time}', but its columns are "
                f"{', '.join(business_columns(columns))}."
            )
        cell = usable_event_cell(frame, dataset.event_time, grid or "day", start=dataset.start, end=end)
    readable = F.col(RAW_COLUMN).isNull() if RAW_COLUMN in columns else F.lit(True)
    return frame.withColumn(EVENT_COLUMN, F.when(readable, cell))


def usable_event_cell(
    frame: DataFrame, column: str, grid: Grid, *, start: datetime, end: Column | datetime | None
) -> Column:
    """The cell of a row, or NULL where its time is missing, unreadable or outside ``[start, end)`` (None: no end)."""
    moment = _moment(frame, column).cast("timestamp")
    usable = moment >= _as_time(start)
    if end is not None:
        usable &= moment < (_as_time(end) if isinstance(end, datetime) else end)
    from pyspark.sql import functions as F

    return F.when(usable, event_cell(frame, column, grid))


def _as_time(at: datetime) -> Column:
    from pyspark.sql import functions as F

    return F.lit(f"{at:%Y-%m-%d %H:%M:%S}").cast("timestamp")


def _moment(frame: DataFrame, column: str) -> Column:
    from pyspark.sql import functions as F

    if frame.schema[column].dataType.simpleString() == "string":
        return F.col(f"`{column}`").try_cast("timestamp")
    return F.col(f"`{column}`")
