"""Dead-Letter (5 rules) and late capture with stop limits on millions of visits, against the same step by hand.

The step filters, de-duplicates and joins; by hand it does the same and knows nothing of what it leaves out. Then the
same without the de-duplication: what is set aside costs as much there, and the step itself less.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness import compare, jvm_of, keep
from benchmarks.silver import RULES, a_day_of_visits, again, by_hand

CAPTURED = """

from lakewright import LateDataDetector

ASIDE = [
    LateDataDetector("30 minutes", stop_above=0.2),
    DeadLetter(stop_above=0.2, rules={
        "has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'", "has_user": "user_id IS NOT NULL",
        "has_device": "device_id IS NOT NULL", "short_page": "length(page) < 200"})]
ONCE = WindowedDeduplicator(keys=["visit_id"], order_by=["event_time"])


@visits.dataset(inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": [*ASIDE, ONCE]})
def captured_once(raw_visits, users_history):
    return transform(raw_visits, users_history)


@visits.dataset(inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": ASIDE})
def captured(raw_visits, users_history):
    return transform(raw_visits, users_history)
"""
FIRST = "2026-01-01T00:30:00Z"
"""When the visit happened that comes before all others: the watermark is midnight after it."""
LATE = 0.007
"""Visits of the day before that come with the day's, as a share of these."""


def main(*, pairs: int, size: int) -> None:
    with a_day_of_visits(size, CAPTURED) as (project, deliver):
        landing = project.folder / "landing" / "visits"
        landing.mkdir(parents=True, exist_ok=True)
        (landing / "earlier.json").write_text(_visit("first", FIRST))
        _run(project, "raw_visits")
        deliver()
        times = (f"2025-12-31T{n % 24:02}:{n % 60:02}:00Z" for n in range(round(size * LATE)))
        (landing / "late.json").write_text("".join(_visit(f"late-{n}", time) for n, time in enumerate(times)))
        found = {}
        for name, once in (("captured_once", True), ("captured", False)):
            _run(project, f"+{name}")
            newest = max(project.store.receipts.live_slices(name), key=lambda one: int(one.split("-")[1]))
            counted = project.store.receipts.live(name, newest).counters
            print(f"  {counted.held:,} late and {counted.rejected_rows:,} rejected of {counted.read:,}", flush=True)
            found[name] = compare(
                f"Dead-Letter (5 rules) and late capture with stop limits, {size:,} visits"
                + (", each once" if once else ", without de-duplication"),
                partial(again, project, name, newest),
                partial(by_hand, project, project.folder / f"by_hand_{name}", RULES, once=once),
                jvm=jvm_of(project.spark()),
                pairs=pairs,
                limit=1.25 if once else None,
            )
        keep("late_capture", found)


def _visit(visit: str, time: str) -> str:
    told = f'"visit_id": "{visit}", "event_time": "{time}", "user_id": "u", "page": "/", "device_id": "d"'
    return f"{{{told}}}\n"


def _run(project: Any, name: str) -> None:
    for error in project.run([name], at="2026-01-02").errors:
        raise error
