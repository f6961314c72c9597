"""The event cell of a row, as a column. In SQL: one call to the JVM, where each part of a column would be another."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import InputError
from lakewright.lake.delta_errors import OUTSIDE_SLICE
from lakewright.model.columns import EVENT_COLUMN, RAW_COLUMN, business_columns
from lakewright.model.slices import ANY_CELL, Slice
from lakewright.model.sql import quoted, text_literal
from lakewright.model.times import Grid
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["time_within", "with_event_cell"]

_FORMATS: dict[Grid, str] = {"hour": "yyyy-MM-dd'T'HH", "day": "yyyy-MM-dd", "month": "yyyy-MM"}


def time_within(frame: DataFrame, column: str, slice_: Slice) -> Column:
    """The same time, failing when it is written if it lies outside the slice.

    Checked so, every row of the slice has the same cell: a constant, by which Spark need not sort before it writes.
    """
    from pyspark.sql import functions as F

    kind, name = frame.schema[column].dataType.simpleString(), quoted(column)
    told = f"concat({text_literal(f'{OUTSIDE_SLICE} {column} = ')}, coalesce(CAST({name} AS STRING), 'NULL'))"
    within = _within(_moment(frame, column), slice_.interval.start, slice_.interval.end)
    return F.expr(f"CASE WHEN {within} THEN {name} ELSE CAST(raise_error({told}) AS {kind}) END")


def with_event_cell(frame: DataFrame, dataset: Dataset, grid: Grid | None, *, end: datetime | None) -> DataFrame:
    """The frame with ``_lw_event``: the row's cell; NULL where its record cannot be read, or its time not be used.

    It is used from the dataset's start and up to ``end``, if there is one; text is read as a time.
    """
    from pyspark.sql import functions as F

    columns = frame.columns
    cell = text_literal(ANY_CELL)
    if dataset.event_time is not None:
        if dataset.event_time not in columns:
            raise InputError(
                f"{dataset.place}: {dataset.name} names event_time '{dataset.event_time}', but its columns are "
                f"{', '.join(business_columns(columns))}."
            )
        moment = _moment(frame, dataset.event_time)
        cell = f"CASE WHEN {_within(moment, dataset.start, end)} THEN {_cell(moment, grid or 'day')} END"
    readable = f"{RAW_COLUMN} IS NULL" if RAW_COLUMN in columns else "true"
    return frame.withColumn(EVENT_COLUMN, F.expr(f"CASE WHEN {readable} THEN {cell} END"))


def _moment(frame: DataFrame, column: str) -> str:
    is_text = frame.schema[column].dataType.simpleString() == "string"
    return f"try_cast({quoted(column)} AS TIMESTAMP)" if is_text else quoted(column)


def _within(moment: str, start: datetime, end: datetime | None) -> str:
    moment = f"CAST({moment} AS TIMESTAMP)"
    after = f"{moment} >= {_time_literal(start)}"
    return after if end is None else f"{after} AND {moment} < {_time_literal(end)}"


def _time_literal(at: datetime) -> str:
    return f"CAST('{at:%Y-%m-%d %H:%M:%S}' AS TIMESTAMP)"


def _cell(moment: str, grid: Grid) -> str:
    # A cast to date is much cheaper than formatting each row's time.
    if grid == "day":
        return f"CAST(CAST({moment} AS DATE) AS STRING)"
    return f"date_format({moment}, {text_literal(_FORMATS[grid])})"
