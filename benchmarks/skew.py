"""Skew: one key holds 30 % of the rows, and has several matches. How large the largest task is, and how long a join
takes, against the plain join with Spark's own handling of skew off; and the same without a dominating key.

50 million rows: `--size 50000000`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import compare, jvm_of, keep
from lakewright import Salt, aggregate_by_key, find_hot_keys, join_skewed, measure_skew

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASKS = 64
MATCHES = 10
"""How many rows the dominating person has on the other side; every other one has one."""
SALT = Salt(by=["visit"], buckets=TASKS)
# Buckets are placed by a hash: only many of them for each task lie evenly.
HOT_SALT = Salt(by=["visit"], buckets=16 * TASKS)
MEASURES = {"visits": "count(*)", "seconds": "avg(seconds)", "longest": "max(seconds)"}
HANDLING = "spark.sql.adaptive.skewJoin.enabled"
SETTINGS = {"spark.sql.shuffle.partitions": str(TASKS), "spark.sql.adaptive.coalescePartitions.enabled": "false"}


def main(*, pairs: int, size: int) -> None:
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    spark = local_session(Target.at(folder, driver_memory="6g", spark=SETTINGS), "bench")
    try:
        keep("skew", measure(spark, folder, rows=size, pairs=pairs))
    finally:
        stop_session(spark)
        shutil.rmtree(folder, ignore_errors=True)


def measure(spark: Any, folder: Path, *, rows: int, pairs: int) -> dict[str, Any]:
    """All figures; the tables lie in a folder of the benchmark's own."""
    people = _people(spark, folder, max(rows // 50, 1))
    skewed, even = (_visits(spark, folder, rows, share) for share in (30, 0))
    hot = find_hot_keys(skewed, keys=["person"], sample=min(1.0, 1_000_000 / rows))
    assert hot == [(0,)], hot
    spark.conf.set(HANDLING, "false")
    joins = {
        "plain": lambda: _plain(skewed, people),
        "copied": lambda: join_skewed(skewed, people.hint("merge"), keys=["person"], hot=hot),
        "salted": lambda: join_skewed(skewed, people.hint("merge"), keys=["person"], hot=hot, salt=HOT_SALT),
    }
    shares = {name: _largest_task(join()) for name, join in joins.items()}
    shares["grouped"] = measure_skew(skewed, keys=["person"], tasks=TASKS).times_the_mean
    shares["grouped, salted"] = measure_skew(skewed, keys=["person"], tasks=TASKS, salt=SALT).times_the_mean
    for name, times in shares.items():
        print(f"  {name}: the largest task has {times:.2f} times the mean", flush=True)
    found: dict[str, Any] = {"times_the_mean": shares}

    def pair(name: str, ours: Any, baseline: Any, limit: float | None) -> None:
        jvm = jvm_of(spark)
        found[name] = compare(f"{name}, {rows:,} rows", ours, baseline, jvm=jvm, pairs=pairs, warmups=1, limit=limit)

    pair("skewed join, copied", lambda: _run(joins["copied"]()), lambda: _run(joins["plain"]()), 1 / 1.5)
    pair("skewed join, salted", lambda: _run(joins["salted"]()), lambda: _run(joins["plain"]()), 1 / 1.5)
    pair(
        "skewed join, by Spark's own handling",
        lambda: _handled(spark, joins["plain"]()),
        lambda: _run(joins["plain"]()),
        None,
    )
    pair(
        "join without skew",
        lambda: _run(join_skewed(even, people.hint("merge"), keys=["person"], hot=[])),
        lambda: _run(_plain(even, people)),
        1.05,
    )
    by_person = {"by": ["person"], "measures": MEASURES}
    pair(
        "aggregate without skew",
        lambda: _run(aggregate_by_key(even, **by_person)),
        lambda: _run(_grouped(even)),
        1.05,
    )
    return found


def _visits(spark: Any, folder: Path, rows: int, hot_percent: int) -> DataFrame:
    """Visits of many people; the person 0 has so many percent of them."""
    path = str(folder / f"visits_{hot_percent}")
    # The person follows from a hash of the visit, so that the dominating one is spread over all files.
    person = f"if(pmod(xxhash64(id), 100) < {hot_percent}, 0, 1 + pmod(hash(id), {max(rows // 50, 1)}))"
    made = spark.range(rows).selectExpr(
        "id AS visit", f"CAST({person} AS BIGINT) AS person", "CAST(id % 3600 AS INT) AS seconds", "uuid() AS page"
    )
    made.write.parquet(path)
    return spark.read.parquet(path)


def _people(spark: Any, folder: Path, count: int) -> DataFrame:
    path = str(folder / "people")
    people = spark.range(1, count + 1).union(spark.range(MATCHES).selectExpr("CAST(0 AS BIGINT)"))
    people.selectExpr("id AS person", "uuid() AS name", "uuid() AS town").write.parquet(path)
    return spark.read.parquet(path)


def _plain(visits: DataFrame, people: DataFrame) -> DataFrame:
    return visits.join(people.hint("merge"), "person")


def _grouped(visits: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return visits.groupBy("person").agg(
        F.count("*").alias("visits"), F.avg("seconds").alias("seconds"), F.max("seconds").alias("longest")
    )


def _largest_task(joined: DataFrame) -> float:
    """How much larger the task with the most joined rows is than one on average."""
    from pyspark.sql import functions as F

    counted = [row["count"] for row in joined.groupBy(F.spark_partition_id()).count().collect()]
    return float(max(counted) * len(counted) / sum(counted))


def _handled(spark: Any, frame: DataFrame) -> None:
    spark.conf.set(HANDLING, "true")
    try:
        _run(frame)
    finally:
        spark.conf.set(HANDLING, "false")


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
