"""De-duplication across runs: what a run costs follows the keys of its window, not all keys that are known.

Ours reads a table with all keys, the baseline one with those of the window alone. 50 million keys: `--size 50000000`.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep

DAYS, WINDOW = 50, 2
FIRST = date(2026, 1, 1)


def main(*, pairs: int, size: int) -> None:
    from lakewright.patterns.error_management.windowed_deduplicator import drop_repeats
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    spark = local_session(Target.at(folder, driver_memory="6g"), "bench")
    try:
        per_day = max(size // DAYS, 1)
        first = FIRST + timedelta(days=DAYS - WINDOW)
        for name, since in (("all", FIRST), ("window", first)):
            _fill(spark, folder / name, per_day, since)
        # A tenth of today's rows are repeats of yesterday's.
        today = spark.range((DAYS - 1) * per_day + per_day * 9 // 10, DAYS * per_day + per_day * 9 // 10)
        today = today.selectExpr("CAST(id AS STRING) AS visit_id", "id AS position")

        def run(name: str) -> None:
            known = spark.read.format("delta").load(str(folder / name)).where(f"_lw_event >= '{first}'")
            read = {file.split("_lw_event=")[1].split("/")[0] for file in known.inputFiles()}
            assert len(read) == WINDOW, sorted(read)
            kept = drop_repeats(today, keys=["visit_id"], order_by=["position"], known=known)
            kept.write.format("delta").mode("overwrite").save(str(folder / "out"))

        found = compare(
            f"de-duplication of {per_day:,} rows against {WINDOW * per_day:,} of {DAYS * per_day:,} known keys",
            lambda: run("all"),
            lambda: run("window"),
            jvm=jvm_of(spark),
            pairs=pairs,
            limit=1.1,
        )
        left = spark.read.format("delta").load(str(folder / "out")).count()
        assert left == today.count() - per_day // 10 or size < DAYS * 10, left
        keep("dedup_across_runs", found)
    finally:
        stop_session(spark)
        shutil.rmtree(folder, ignore_errors=True)


def _fill(spark: Any, path: Path, per_day: int, since: date) -> None:
    """A day after another, each in its own partition, as the slices of a dataset lie."""
    for number in range((since - FIRST).days, DAYS):
        rows = spark.range(number * per_day, (number + 1) * per_day)
        day = FIRST + timedelta(days=number)
        kept = rows.selectExpr("CAST(id AS STRING) AS visit_id", "id AS position", f"'{day}' AS _lw_event")
        kept.write.format("delta").mode("append").partitionBy("_lw_event").save(str(path))
