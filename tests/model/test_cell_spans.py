"""Days and hours side by side: a stretch of time reads each row once, whichever cell it lies in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.model.cell_spans import CellSpan
from lakewright.model.times import Grid, Interval, cell_interval, cell_of

START = datetime(2026, 1, 30, tzinfo=UTC)
MOMENTS = st.integers(0, 4 * 24 * 60).map(lambda minutes: START + timedelta(minutes=minutes))


@given(
    moment=MOMENTS,
    sliced=MOMENTS,
    reach=st.sampled_from([0, 30, 60, 90, 24 * 60, 30 * 60]),
    slice_grid=st.sampled_from(["hour", "day", "week", "month"]),
    cell_grid=st.sampled_from(["hour", "day"]),
)
def test_a_row_is_read_where_its_time_lies_in_the_stretch_whatever_its_cell(
    moment: datetime, sliced: datetime, reach: int, slice_grid: Grid, cell_grid: Grid
) -> None:
    of = cell_interval(cell_of(sliced, slice_grid))
    span = Interval(of.start - timedelta(minutes=reach), of.end)
    cells, cell = CellSpan.of(span, ["hour", "day"]), cell_of(moment, cell_grid)
    in_time = span.start <= moment < span.end
    assert (cells.within(cell) or (cell in cells.across and in_time)) == in_time


@pytest.mark.parametrize(
    ("slice_id", "grids", "sql"),
    [
        ("2026-01-05", ["hour", "day"], "_lw_event >= '2026-01-05' AND _lw_event < '2026-01-06'"),
        ("2026-W02", ["hour", "day"], "_lw_event >= '2026-01-05' AND _lw_event < '2026-01-12'"),
        ("2026-02", ["day"], "_lw_event >= '2026-02-01' AND _lw_event < '2026-03-01'"),
        ("2026-W02", ["week"], "_lw_event >= '2026-W02' AND _lw_event < '2026-W03'"),
        ("2026-01-05", ["month"], "_lw_event IN ('2026-01') AND at"),
        (
            "2026-01-05T23",
            ["hour", "day"],
            "(_lw_event >= '2026-01-05T23' AND _lw_event < '2026-01-06' OR _lw_event IN ('2026-01-05')) "
            "AND (_lw_event NOT IN ('2026-01-05') OR at)",
        ),
    ],
)
def test_only_a_cell_that_is_coarser_than_the_slice_needs_a_look_at_each_row(
    slice_id: str, grids: list[Grid], sql: str
) -> None:
    assert CellSpan.of(cell_interval(slice_id), grids).predicate("at") == sql
