"""Weeks meet days, hours and each other by the calendar, in both databases."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from lakewright.model.receipts import Change, Receipt
from lakewright.store import Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def commit(dataset: str, slice_id: str, version: int, cells: dict[str | None, int], **inputs: int) -> Receipt:
    touched = {cell: Change(rows, 0) for cell, rows in cells.items()}
    return Receipt(dataset, slice_id, "data", version, version - 1, version, NOW, touched=touched, inputs=inputs)


def test_the_database_tells_the_same_week_as_the_calendar(store: Store) -> None:
    days = [date(2019, 12, 20) + timedelta(days=n) for n in range(2_700)]
    store.receipts.add([commit("raw", "arrival-1", 1, {day.isoformat(): 1 for day in days})])
    assert store.receipts.missing("weekly", "raw", 8) == sorted({f"{day:%G-W%V}" for day in days})


def test_a_late_day_makes_exactly_its_week_stale(store: Store) -> None:
    store.receipts.add([commit("raw", "arrival-1", 1, {"2026-01-05": 3, "2026-01-11T23": 3, "2026-01-12": 3, None: 1})])
    assert store.receipts.missing("weekly", "raw", 8) == ["2026-W02", "2026-W03"]
    store.receipts.add([commit("weekly", week, n, {week: 1}, raw=1) for n, week in enumerate(["2026-W02", "2026-W03"])])
    assert store.receipts.missing("weekly", "raw", 8) == store.receipts.stale("weekly", "raw", 8) == []
    store.receipts.add([commit("raw", "arrival-2", 2, {"2026-01-11": 1})])
    assert [one.slice_id for one in store.receipts.stale("weekly", "raw", 8)] == ["2026-W02"]
    # The other way round: days below a week.
    store.receipts.add(
        [commit("below", day, n, {day: 1}, weekly=0) for n, day in enumerate(["2026-01-05", "2026-01-12"])]
    )
    assert [one.slice_id for one in store.receipts.stale("below", "weekly", 8)] == ["2026-01-12"]
