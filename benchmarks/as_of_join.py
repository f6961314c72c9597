"""As-of join of events with versions, against the best of three forms that people write by hand.

A version for each 20 events, 5 of each user. 20 million events with 1 million versions: `--size 20000000`. The forms by
hand are timed once each; the fastest is the baseline, and ours is told as much as it knows (that the versions fit into
memory, or that they are to be sorted).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep

PER_VERSION, VERSIONS = 20, 5
YEAR = 365 * 86_400

BY_HAND = {
    "join": """
        SELECT e.*, v.country FROM events e LEFT JOIN versions v
        ON e.user_id = v.user_id AND e.at >= v.valid_from AND (v.valid_to IS NULL OR e.at < v.valid_to)""",
    "broadcast": """
        SELECT /*+ BROADCAST(v) */ e.*, v.country FROM events e LEFT JOIN versions v
        ON e.user_id = v.user_id AND e.at >= v.valid_from AND (v.valid_to IS NULL OR e.at < v.valid_to)""",
    "sort": """
        SELECT event_id, user_id, at, CASE WHEN v.valid_to IS NULL OR at < v.valid_to THEN v.country END AS country
        FROM (
            SELECT *, last(version, true) OVER (PARTITION BY user_id ORDER BY at, kind
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS v FROM (
                SELECT event_id, user_id, at, 1 AS kind, NULL AS version FROM events
                UNION ALL SELECT NULL, user_id, valid_from, 0, struct(country, valid_to) FROM versions)
        ) WHERE kind = 1""",
}


def main(*, pairs: int, size: int) -> None:
    from pyspark.sql import functions as F

    from lakewright import join_as_of
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    spark = local_session(Target.at(folder, driver_memory="8g"), "bench")
    try:
        _fill(spark, folder, size)
        events, versions = (spark.read.parquet(str(folder / name)) for name in ("events", "versions"))
        events.createOrReplaceTempView("events")
        versions.createOrReplaceTempView("versions")
        ours = {
            "join": lambda: join_as_of(events, versions, keys=["user_id"], at="at"),
            "broadcast": lambda: join_as_of(events, F.broadcast(versions), keys=["user_id"], at="at"),
            "sort": lambda: join_as_of(events, versions, keys=["user_id"], at="at", method="sort"),
        }
        expected = _digest(spark.sql(BY_HAND["join"]))
        for name, made in ours.items():
            assert _digest(made()) == expected, f"{name}: not the same rows"
        assert expected[0] == size, "rows were multiplied, or lost"
        seconds = {name: _timed(lambda text=text: spark.sql(text)) for name, text in BY_HAND.items()}
        best = min(seconds, key=lambda name: seconds[name])
        print("  by hand: " + ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items()), flush=True)
        found = compare(
            f"as-of join of {size:,} events with {size // PER_VERSION:,} versions, by {best}",
            lambda: _run(ours[best]()),
            lambda: _run(spark.sql(BY_HAND[best])),
            jvm=jvm_of(spark),
            pairs=pairs,
            limit=1.1,
        )
        keep("as_of_join", {"by_hand_seconds": seconds, "best": best, "compared": found})
    finally:
        stop_session(spark)
        shutil.rmtree(folder, ignore_errors=True)


def _fill(spark: Any, folder: Path, size: int) -> None:
    versions = size // PER_VERSION
    users = max(versions // VERSIONS, 1)
    begin = f"timestamp_seconds(1735689600 + (id % {VERSIONS}) * {YEAR // VERSIONS} + (id * 7919) % 86400)"
    told = spark.range(versions).selectExpr(
        f"CAST(id DIV {VERSIONS} AS BIGINT) AS user_id",
        "concat('country ', id % 200) AS country",
        f"{begin} AS valid_from",
    )
    chained = told.selectExpr("*", "lead(valid_from) OVER (PARTITION BY user_id ORDER BY valid_from) AS valid_to")
    chained.write.parquet(str(folder / "versions"))
    # One user in a hundred is not known, and some events are older than the first version.
    spark.range(size).selectExpr(
        "id AS event_id",
        f"CAST((id * 48271) % {max(users + users // 100, 1)} AS BIGINT) AS user_id",
        f"timestamp_seconds(1735689600 + (id * 15485863) % {YEAR}) AS at",
    ).write.parquet(str(folder / "events"))


def _digest(frame: Any) -> tuple[int, int]:
    from pyspark.sql import functions as F

    row = frame.agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.expr("CAST(xxhash64(event_id, user_id, at, country) AS DECIMAL(38, 0))")).alias("content"),
    ).first()
    return int(row["rows"]), int(row["content"] or 0)


def _run(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(made: Callable[[], Any]) -> float:
    _run(made())  # compiled, and its files read once
    began = time.perf_counter()
    _run(made())
    return time.perf_counter() - began
