"""Dead-Letter (5 rules) and late capture with stop limits on millions of visits, against one filtered write by hand.

Late counts alone cost nothing of their own: they come from receipts, and are part of every step that `silver` measures.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep
from benchmarks.silver import PIPELINE, RULES, _by_hand

CAPTURED = """

from lakewright import LateDataDetector


@visits.dataset(inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": [
    DeadLetter(stop_above=0.2, rules={
        "has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'", "has_user": "user_id IS NOT NULL",
        "has_device": "device_id IS NOT NULL", "short_page": "length(page) < 200"}),
    LateDataDetector("30 minutes", stop_above=0.2)]})
def captured(raw_visits, users_history):
    return transform(raw_visits, users_history)
"""
EARLIER = '{"visit_id": "first", "event_time": "2026-01-01T01:00:00Z", "user_id": "u", "page": "/", "device_id": "d"}\n'
"""A visit that comes before all others: the watermark is 00:30 after it."""


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from platforms.blog.generate import FaultShares, deliver_all, generate

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "visits.py").write_text(PIPELINE + CAPTURED)
        (folder / "lakewright.toml").write_text('name = "bench"\n[targets.dev]\ndriver_memory = "6g"\n')
        shares = FaultShares(missing_id=0.012, bad_page=0.008, duplicates=0.0, late=0.0, late_delivery=0.0)
        generate(folder, visits=size, days=1, shares=shares, jobs=2, replace=True)
        landing = folder / "landing" / "visits"
        landing.mkdir(parents=True, exist_ok=True)
        (landing / "earlier.json").write_text(EARLIER)
        with Project(folder) as project:
            _ok(project.run(["raw_visits"], at="2026-01-02"))
            deliver_all(folder, how="link")
            _ok(project.run(["+captured"], at="2026-01-02"))
            newest = max(project.store.receipts.live_slices("captured"), key=lambda one: int(one.split("-")[1]))
            counted = project.store.receipts.live("captured", newest).counters
            print(f"  {counted.held:,} late and {counted.rejected_rows:,} rejected of {counted.read:,}", flush=True)
            rules = f"{RULES} AND event_time >= timestamp'2026-01-01 00:30:00'"
            found = compare(
                f"Dead-Letter (5 rules) and late capture with stop limits, {size:,} visits",
                lambda: _ours(project, newest),
                lambda: _by_hand(project, folder / "by_hand", rules),
                jvm=jvm_of(project.spark()),
                pairs=pairs,
                limit=1.25,
            )
            keep("late_capture", found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ours(project: Any, slice_id: str) -> None:
    summary = _ok(project.run(["captured"], at="2026-01-02", again=True, slices=[slice_id]))
    assert len(summary.made) == 1


def _ok(summary: Any) -> Any:
    for error in summary.errors:
        raise error
    return summary
