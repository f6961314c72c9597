"""What it costs to know: rows removed by each filter, and late rows, on millions of visits of one day.

The step by hand has the same filters and the same de-duplication, leaves the late rows out as well (by the day that
bronze is partitioned by), and knows none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.harness import compare, jvm_of, keep
from benchmarks.late_capture import LATE
from benchmarks.silver import RULES, a_day_of_visits, again, by_hand

COUNTED = """

from lakewright import FilterInterceptor, LateDataDetector

FILTERS = {
    "has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'", "has_user": "user_id IS NOT NULL",
    "has_device": "device_id IS NOT NULL", "short_page": "length(page) < 200"}


@visits.dataset(inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": [
    LateDataDetector("30 minutes", late="count"), FilterInterceptor(filters=FILTERS),
    WindowedDeduplicator(keys=["visit_id"], order_by=["event_time"])]})
def counted(raw_visits, users_history):
    return transform(raw_visits, users_history)
"""
FIRST = "2025-12-31T23:59:59Z"
"""When the visit happened that comes before all others: the watermark lies half an hour before it, and the whole day
that is measured after that.
"""


def main(*, pairs: int, size: int) -> None:
    with a_day_of_visits(size, COUNTED) as (project, deliver):
        landing, target = project.folder / "landing" / "visits", project.folder / "by_hand"
        landing.mkdir(parents=True, exist_ok=True)
        (landing / "earlier.json").write_text(_visits("first", [FIRST]))
        _run(project, "raw_visits")
        deliver()
        times = (f"2025-12-31T{n % 23:02}:{n % 60:02}:00Z" for n in range(round(size * LATE)))
        (landing / "late.json").write_text(_visits("late", times))
        _run(project, "+counted")
        newest = max(project.store.receipts.live_slices("counted"), key=lambda one: int(one.split("-")[1]))
        counters = project.store.receipts.live("counted", newest).counters
        assert counters.filtered_rows, counters
        assert counters.held, counters
        removed = ", ".join(f"{name} {rows:,}" for name, rows in counters.filtered.removed.items())
        print(f"  {counters.held:,} late of {counters.read:,}; removed by the filters: {removed}", flush=True)
        found = compare(
            f"filter and late counts with a de-duplication, {size:,} visits",
            lambda: again(project, "counted", newest),
            lambda: by_hand(project, target, RULES, once=True),
            jvm=jvm_of(project.spark()),
            pairs=pairs,
            limit=1.05,
        )
        rows = project.spark().read.format("delta").load(str(target)).count()
        assert rows == counters.written, f"{counters.written:,} rows, by hand {rows:,}"
        keep("counters", found)


def _visits(name: str, times: Iterable[str]) -> str:
    told = '"user_id": "u", "page": "/", "device_id": "d"'
    return "".join(f'{{"visit_id": "{name}-{n}", "event_time": "{at}", {told}}}\n' for n, at in enumerate(times))


def _run(project: Any, name: str) -> None:
    for error in project.run([name], at="2026-01-02").errors:
        raise error
