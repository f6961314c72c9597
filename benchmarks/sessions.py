"""Sessions: all visits at once against the usual window query, a day against all days, and one entity without end.

The figures of the docs are those of 20 million visits: `--size 20000000`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep, resident_mb

DAYS, VISITS_A_DAY, IN_A_ROW = 30, 20, 8
FIRST = date(2026, 1, 1)
GAP_SECONDS = 1800
BATCH = 10_000


def main(*, pairs: int, size: int) -> None:
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    found: dict[str, Any] = {"memory of one entity, in MB": one_entity(size)}
    spark = local_session(Target.at(folder, driver_memory="6g"), "bench")
    try:
        fill(spark, folder / "visits", size)
        visits = spark.read.format("delta").load(str(folder / "visits"))
        check_same(visits)
        for pages in (False, True):
            shown = "with their pages" if pages else "without lists"
            found[shown] = compare(
                f"sessions of {size:,} visits, {shown}",
                into_nothing(lambda lists=pages: ours(visits, pages=lists)),  # type: ignore[misc]
                into_nothing(lambda lists=pages: by_window(visits, pages=lists)),  # type: ignore[misc]
                jvm=jvm_of(spark),
                pairs=pairs,
                limit=0.667,
            )
        last = FIRST + timedelta(days=DAYS - 1)
        before = built(visits.where(f"day < '{last}'"), last, pages=True).pending
        before.write.format("delta").save(str(folder / "pending"))
        pending = spark.read.format("delta").load(str(folder / "pending"))
        found["a day"] = compare(
            f"the last of {DAYS} days against all of them",
            into_nothing(lambda: built(visits.where(f"day = '{last}'"), end(), pages=True, pending=pending).every),
            into_nothing(lambda: ours(visits, pages=True)),
            jvm=jvm_of(spark),
            pairs=pairs,
            limit=0.1,
        )
        keep("sessions", found)
    finally:
        stop_session(spark)
        shutil.rmtree(folder, ignore_errors=True)


def end() -> date:
    return FIRST + timedelta(days=DAYS)


def fill(spark: Any, path: Path, size: int) -> None:
    """Visits of many users over thirty days, a partition a day, in no order: some in a row, then a long pause."""
    users = max(size // (DAYS * VISITS_A_DAY), 1)
    spark.range(size).selectExpr("id", f"id DIV {IN_A_ROW} AS row", f"id % {IN_A_ROW} AS place").selectExpr(
        f"CAST(pmod(xxhash64(row, 1), {users}) AS STRING) AS user_id",
        f"timestamp_seconds(unix_seconds(TIMESTAMP '{FIRST}') + pmod(xxhash64(row, 2), {DAYS * 86_400 - 3_600}) "
        "+ 60 * place + pmod(xxhash64(id, 4), 60)) AS at",
        "concat('/page/', pmod(xxhash64(id, 3), 500)) AS page",
    ).selectExpr("*", "CAST(CAST(at AS DATE) AS STRING) AS day").repartition("day").write.format("delta").partitionBy(
        "day"
    ).save(str(path))


def built(visits: Any, until: date, *, pages: bool, pending: Any = None) -> Any:
    from lakewright.patterns.data_value.incremental_sessionizer import build_sessions
    from lakewright.patterns.data_value.sessions import Sessions

    lists = {"pages": "page"} if pages else {}
    sessions = Sessions(keys=["user_id"], gap=f"{GAP_SECONDS} seconds", time="at", collect=lists)
    return build_sessions(visits, sessions=sessions, until=until.isoformat(), pending=pending)


def ours(visits: Any, *, pages: bool) -> Any:
    return built(visits, end(), pages=pages).every


def by_window(visits: Any, *, pages: bool) -> Any:
    """The usual query: where the gap to the visit before is too long a session begins, and a running sum numbers it."""
    from pyspark.sql import functions as F

    begun = visits.selectExpr(
        "user_id",
        "at",
        *(["page"] if pages else []),
        "CASE WHEN unix_micros(at) - unix_micros(lag(at) OVER (PARTITION BY user_id ORDER BY at)) <= "
        f"{GAP_SECONDS * 1_000_000} THEN 0 ELSE 1 END AS begins",
    )
    numbered = begun.selectExpr(
        "*", "sum(begins) OVER (PARTITION BY user_id ORDER BY at ROWS UNBOUNDED PRECEDING) AS number"
    )
    aggregates = [F.min("at").alias("start_time"), F.max("at").alias("end_time"), F.count("*").alias("events")]
    if pages:
        aggregates.append(F.expr("transform(array_sort(collect_list(struct(at, page))), visit -> visit.page) AS pages"))
    return numbered.groupBy("user_id", "number").agg(*aggregates)


def into_nothing(made: Callable[[], Any]) -> Callable[[], None]:
    return lambda: made().write.format("noop").mode("overwrite").save()


def check_same(visits: Any) -> None:
    """Both find the same sessions, or the comparison is worth nothing."""
    columns = ("user_id", "start_time", "end_time", "events")
    mine, theirs = ours(visits, pages=False).select(*columns), by_window(visits, pages=False).select(*columns)
    assert mine.exceptAll(theirs).limit(1).count() == 0
    assert theirs.exceptAll(mine).limit(1).count() == 0


def one_entity(size: int) -> dict[str, float]:
    """The memory of the engine over one entity's visits, of a session that does not end, a record batch at a time."""
    import pyarrow as pa

    from lakewright.patterns.data_value.session_arrow import Rules, sessions_of

    rules = Rules(keys=1, gap=GAP_SECONDS * 1_000_000, carried=1, aggregates=(("collect", 0), ("last", 0)))

    def batches() -> Iterator[Any]:
        for at in range(0, size, BATCH):
            times = pa.array(range(at * 1_000_000, (at + BATCH) * 1_000_000, 1_000_000), pa.int64())
            columns = [pa.array(["robot"] * BATCH), times, pa.array([f"/page/{n}" for n in range(BATCH)])]
            yield pa.RecordBatch.from_arrays(columns, names=["user_id", "at", "page"])

    next(iter(sessions_of(iter([next(batches())]), rules)))  # what numpy and pyarrow need for themselves
    before = resident_mb("self")
    (made,) = sessions_of(batches(), rules)
    assert made.column(4).to_pylist() == [-(-size // BATCH) * BATCH]
    found = {"before": before, "at most": resident_mb("self", "VmHWM"), "visits": float(size)}
    print(f"one entity of {size:,} visits: {found}", flush=True)
    return found
