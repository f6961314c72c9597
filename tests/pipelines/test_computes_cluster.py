"""A standalone cluster as the compute of one step: its neighbour is made by the run's own Spark."""

from __future__ import annotations

import os
from typing import Any

from lakewright.testing.cluster import Cluster
from tests.pipelines.shop import land, made, ok, rows_of
from tests.runtime.test_cluster import SMALL

# One core, so that a test of another process finds one too.
SETTINGS = (
    """
name = "spread"
[targets.dev.compute.cluster]
master = "{url}"
[targets.dev.compute.cluster.spark]
"spark.cores.max" = 1
"""
    + SMALL
)
SPREAD = """
    import os

    from lakewright import JsonFiles, Pipeline
    from pyspark.sql import functions as F

    main = Pipeline("main", schedule="@daily", start="2026-01-01")
    main.source("visits", JsonFiles("landing/visits"), schema="at timestamp, pages int", event_time="at")

    @main.dataset(event_time="at", compute="cluster")
    def far(visits):
        '''The visits, with the application, the driver and the folder of the task that wrote them.'''
        return visits.select(
            "at", "pages",
            F.lit(visits.sparkSession.conf.get("spark.app.id")).alias("application"),
            F.lit(os.getpid()).alias("driver"),
            F.expr("reflect('java.lang.System', 'getProperty', 'user.dir')").alias("folder"),
        )

    @main.dataset(event_time="day", rows="reduce")
    def near(far):
        '''Pages per day.'''
        days = far.groupBy(F.to_date("at").alias("day")).agg(F.sum("pages").alias("pages"))
        return days.withColumn("driver", F.lit(os.getpid()))
"""


def test_a_backfill_makes_its_slices_by_one_application_on_a_cluster_and_the_rest_in_its_own_session(
    project: Any, cluster: Cluster
) -> None:
    opened = project({"lakewright.toml": SETTINGS.format(url=cluster.url), "pipelines/main.py": SPREAD})
    days = [f"2026-01-0{day}" for day in (1, 2, 3)]
    visits = [{"at": f"{day}T1{hour}:00:00Z", "pages": hour} for day in days for hour in (1, 2)]
    land(opened.folder, "1.json", visits, folder="visits")
    ok(opened.run(["visits"], at="2026-01-04"))

    summary = ok(opened.backfill("2026-01-01", "2026-01-04", select=["far"], at="2026-01-04", parallel=2))

    assert made(summary) == {(name, day) for name in ("far", "near") for day in days}
    far = rows_of(opened, "far")
    assert [(str(row["at"]), row["pages"]) for row in far] == [
        (f"{day} 1{hour}:00:00", hour) for day in days for hour in (1, 2)
    ]
    (application,) = {row["application"] for row in far}
    assert application.startswith("app-"), "as a standalone master numbers them"
    assert len({row["driver"] for row in far}) == 1, "one worker process made all slices"
    assert all("/spark-worker-" in row["folder"] and application in row["folder"] for row in far)
    assert [(str(row["day"]), row["pages"], row["driver"]) for row in rows_of(opened, "near")] == [
        (day, 3, os.getpid()) for day in days
    ]
