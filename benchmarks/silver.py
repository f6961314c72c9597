"""The blog's silver step on millions of visits of one day, against the same transformations and Delta write by hand."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep

PIPELINE = """
from lakewright import AsOf, DeadLetter, JsonFiles, Merger, Pipeline, Scd2, WindowedDeduplicator, join_as_of
from pyspark.sql import functions as F

visits = Pipeline("visits", start="2026-01-01")
visits.source("raw_visits", JsonFiles("landing/visits"), schema="visit_id string, event_time timestamp, "
    "user_id string, page string, device_id string, "
    "context struct<referral: string, user: struct<login: string, ip: string>, technical: struct<"
    "browser: string, browser_version: string, network_type: string, device_type: string, "
    "device_version: string>>", event_time="event_time", start="2025-12-31")
visits.source("users", JsonFiles("landing/users"), schema="user_id string, country string, updated_at timestamp",
              event_time="updated_at", start="2000-01-01")


@visits.dataset(writer=Merger(keys=["user_id"], history=Scd2(valid_from="updated_at")))
def users_history(users):
    return users


def transform(raw_visits, users_history):
    rows = raw_visits.select("visit_id", "event_time", "user_id", "page", "device_id",
        F.col("context.referral").alias("referral"), F.col("context.technical.browser").alias("browser"),
        F.col("context.technical.device_type").alias("device_type"))
    versions = users_history.select("user_id", "country", "updated_at", "valid_to")
    return join_as_of(rows, versions, keys=["user_id"], at="event_time", valid_from="updated_at")


@visits.dataset(event_time="event_time", inputs={"users_history": AsOf("event_time")})
def plain(raw_visits, users_history):
    return transform(raw_visits, users_history)


@visits.dataset(event_time="event_time", inputs={"users_history": AsOf("event_time")}, guards_in={"raw_visits": [
    DeadLetter(stop_above=0.2, rules={
        "has_id": "visit_id IS NOT NULL", "known_page": "page LIKE '/%'", "has_user": "user_id IS NOT NULL",
        "has_device": "device_id IS NOT NULL", "short_page": "length(page) < 200"})]})
def guarded(raw_visits, users_history):
    return transform(raw_visits, users_history)
"""
RULES = (
    "visit_id IS NOT NULL AND page LIKE '/%' AND user_id IS NOT NULL AND device_id IS NOT NULL AND length(page) < 200"
)
DAY = "2026-01-01"
CHECK_ROWS = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
"""Whether Delta looks at each row that is written for the slice; ours knows it already, so it is off by hand, too."""


def main(*, pairs: int, size: int) -> None:
    with a_day_of_visits(size) as (project, deliver):
        deliver()
        for error in project.run(at="2026-01-02").errors:
            raise error
        folder = project.folder
        found = [
            compare(
                f"silver step without side outputs, {size:,} visits",
                lambda: again(project, "plain"),
                lambda: by_hand(project, folder / "by_hand"),
                jvm=jvm_of(project.spark()),
                pairs=pairs,
                limit=1.05,
            ),
            compare(
                f"silver step with Dead-Letter (5 rules, 2 % rejected) and a stop limit, {size:,} visits",
                lambda: again(project, "guarded"),
                lambda: by_hand(project, folder / "by_hand_guarded", RULES),
                jvm=jvm_of(project.spark()),
                pairs=pairs,
                limit=1.25,
            ),
        ]
        keep("silver", found)


@contextmanager
def a_day_of_visits(size: int, more: str = "") -> Iterator[tuple[Any, Any]]:
    """The project with some datasets more, and the function that delivers its visits: 2 % break a rule."""
    from lakewright.pipelines.project import Project

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from platforms.blog.generate import FaultShares, deliver_all, generate

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    try:
        (folder / "pipelines").mkdir()
        (folder / "pipelines" / "visits.py").write_text(PIPELINE + more)
        (folder / "lakewright.toml").write_text('name = "bench"\n[targets.dev]\ndriver_memory = "6g"\n')
        shares = FaultShares(missing_id=0.012, bad_page=0.008, duplicates=0.0, late=0.0, late_delivery=0.0)
        generate(folder, visits=size, days=1, shares=shares, jobs=2, replace=True)
        with Project(folder) as project:
            yield project, lambda: deliver_all(folder, how="link")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def again(project: Any, name: str, slice_id: str = DAY) -> None:
    summary = project.run([name], at="2026-01-02", again=True, slices=[slice_id])
    for error in summary.errors:
        raise error
    assert len(summary.made) == 1


def by_hand(project: Any, target: Path, rules: str | None = None, *, once: bool = False) -> None:
    """The best that we can write by hand: one scan, one join, one partitioned overwrite of the day; with ``once`` the
    first of each visit, by `row_number` in an order without ties, so that it is the same one in every run.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    spark = project.spark()
    spark.conf.set(CHECK_ROWS, "false")
    raw = spark.read.format("delta").load(project.lake.resolve("raw_visits")).where(f"_lw_event = '{DAY}'")
    users = spark.read.format("delta").load(project.lake.resolve("users_history"))
    users = users.select(F.col("user_id").alias("u"), "country", "updated_at", "valid_to")
    if rules:
        raw = raw.where(rules)
    if once:
        content = ["event_time", *[name for name in raw.columns if name != "visit_id" and not name.startswith("_lw_")]]
        nth = F.row_number().over(Window.partitionBy("visit_id").orderBy(*dict.fromkeys(content)))
        raw = raw.withColumn("nth", nth).where("nth = 1").drop("nth")
    rows = raw.select(
        "visit_id", "event_time", "user_id", "page", "device_id",
        F.col("context.referral").alias("referral"), F.col("context.technical.browser").alias("browser"),
        F.col("context.technical.device_type").alias("device_type"),
    )  # fmt: skip
    valid = (
        (F.col("user_id") == F.col("u"))
        & (F.col("updated_at") <= F.col("event_time"))
        & (F.col("valid_to").isNull() | (F.col("event_time") < F.col("valid_to")))
    )
    located = rows.join(users, valid, "left").drop("u", "updated_at", "valid_to")
    day = located.withColumn("event_date", F.to_date("event_time"))
    writer = day.write.format("delta").mode("overwrite").partitionBy("event_date")
    writer.option("replaceWhere", f"event_date = '{DAY}'").save(str(target))
