"""What it costs to know: rows removed by each filter, and late rows, on millions of visits of one day.

The step by hand has the same filters and the same de-duplication, and knows none of it.
"""

from __future__ import annotations

from benchmarks.harness import compare, jvm_of, keep
from benchmarks.silver import DAY, RULES, a_day_of_visits, again, by_hand

COUNTED = """

from lakewright import FilterInterceptor

FILTERS = {
    "has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'", "has_user": "user_id IS NOT NULL",
    "has_device": "device_id IS NOT NULL", "short_page": "length(page) < 200"}


@visits.dataset(event_time="event_time", inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": [
    FilterInterceptor(filters=FILTERS), WindowedDeduplicator(keys=["visit_id"], order_by=["event_time"])]})
def counted(raw_visits, users_history):
    return transform(raw_visits, users_history)
"""


def main(*, pairs: int, size: int) -> None:
    with a_day_of_visits(size, COUNTED) as (project, deliver):
        deliver()
        for error in project.run(["+counted"], at="2026-01-02").errors:
            raise error
        counters = project.store.receipts.live("counted", DAY).counters
        print(f"  removed: {counters.filtered}, repeated: {counters.duplicates}", flush=True)
        found = compare(
            f"filter and late counts with a de-duplication, {size:,} visits",
            lambda: again(project, "counted"),
            lambda: by_hand(project, project.folder / "by_hand", RULES, once=True),
            jvm=jvm_of(project.spark()),
            pairs=pairs,
            limit=1.05,
        )
        keep("counters", found)
