"""The runner: order, branches, retries, time limits, interruption and going on."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys

import pytest

from lakewright import JsonFiles
from lakewright.errors import StepFailed
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of
from tests.processes import environment

FLAKY = """
    from pathlib import Path
    from lakewright import JsonFiles, Pipeline
    HERE = Path(__file__).parent.parent

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", {options})
    def clean(orders, run):
        tries = HERE / "tries"
        tries.write_text(str(int(tries.read_text() or 0) + 1))
        if run.attempt < 3:
            raise {error}
        return orders
"""


def flaky(project, error: str, options: str = "retries=2"):
    shop = project({"pipelines/shop.py": FLAKY.replace("{error}", error).replace("{options}", options), "tries": "0"})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    return shop


def test_a_transient_error_is_retried_and_nothing_is_lost_or_doubled(project, monkeypatch):
    monkeypatch.setattr("lakewright.pipelines.runner.random.Random.random", lambda self: -0.5)
    shop = flaky(project, "ConnectionError('the database is down')")
    look, away = JsonFiles.look, [ConnectionError("the broker has failed over"), ConnectionError()]

    def looking(source, ctx):
        if away:
            raise away.pop(0)
        return look(source, ctx)

    monkeypatch.setattr(JsonFiles, "look", looking)
    summary = ok(shop.run(at="2026-01-02"))
    assert [note.message for note in summary.notes][:2] == [
        "orders: the broker has failed over Trying again in 0.0 s.",
        "orders: ConnectionError Trying again in 0.0 s.",
    ]
    assert [o.attempts for o in summary.outcomes if o.dataset == "clean"] == [3]
    assert len(rows_of(shop, "clean")) == 1
    assert [s.state for s in shop.store.steps.of_run(summary.run_id)] == ["ok", "failed", "failed", "ok"]


def test_an_error_that_is_not_on_the_list_is_not_retried(project):
    shop = flaky(project, "ValueError('wrong')")
    summary = shop.run(at="2026-01-02")
    assert isinstance(summary.errors[0], StepFailed)
    assert (shop.folder / "tries").read_text() == "1"


def test_retry_goes_on_with_what_failed_and_leaves_the_rest(project):
    shop = flaky(project, "ValueError('wrong')")
    shop.run(at="2026-01-02")
    mended = project(
        {"pipelines/shop.py": FLAKY.replace("{error}", "1").replace("{options}", "").replace("< 3", "< 0")}
    )
    summary = ok(mended.retry())
    assert made(summary) == {("clean", "2026-01-01")}


def test_a_step_beyond_its_time_is_stopped_and_publishes_nothing(project):
    slow = """
        from lakewright import JsonFiles, Pipeline
        from pyspark.sql import functions as F
        shop = Pipeline("shop", start="2026-01-01")
        shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp", event_time="at")

        @shop.dataset(event_time="at", timeout="1 second")
        def clean(orders):
            # A condition that Spark cannot see through: this never ends by itself.
            many = orders.sparkSession.range(0, 10**15, 1, 2).where("md5(string(id)) = 'none'")
            return orders.crossJoin(many.agg(F.count("*").alias("n")))
    """
    shop = project({"pipelines/shop.py": slow})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    summary = shop.run(at="2026-01-02")
    assert summary.errors, (summary.outcomes, summary.notes)
    assert "longer than its timeout of 1 s" in str(summary.errors[0])
    assert not shop.lake.log("clean").exists()


def test_a_failed_branch_stops_what_is_below_it_and_nothing_else(project):
    files = orders_project()
    files["pipelines/shop.py"] += """
    @shop.dataset(event_time="at")
    def broken(orders):
        raise ValueError("boom")

    shop.sql("below", "SELECT * FROM broken", event_time="at")
"""
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    summary = shop.run(at="2026-01-02")
    assert (summary.failed, summary.skipped) == (["broken"], ["below"])
    assert {name for name, _ in made(summary)} == {"orders", "clean", "daily"}
    assert summary.closing_line().endswith("3 ok, 0 warnings, 1 failed, 1 skipped.")


def test_selection_follows_dbt(project):
    graph = project(orders_project()).graph
    assert graph.select(["clean"]) == ["clean"]
    assert graph.select(["+clean"]) == ["orders", "clean"]
    assert graph.select(["clean+"]) == ["clean", "daily"]
    assert graph.select(["layer:gold"]) == ["daily"]
    assert graph.select([]) == ["orders", "clean", "daily"]


def test_sigterm_ends_cleanly_and_the_next_run_goes_on(project, tmp_path, connect_url):
    shop = project(orders_project())
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    env = environment(
        connect_url,
        LAKEWRIGHT_FAILPOINT="published",
        LAKEWRIGHT_FAILPOINT_ACTION="pause",
        LAKEWRIGHT_FAILPOINT_DIR=str(tmp_path),
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "lakewright", "run", "--at", "2026-01-02", "--json"],
        cwd=shop.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    paused = tmp_path / "published.paused"
    while not paused.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.1)
            break
    child.send_signal(signal.SIGTERM)
    (tmp_path / "published.go").touch()
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert json.loads(out)
    assert shop.store.leases.held(shop._now()) == []
    assert shop.store.runs.latest()[0].state == "interrupted"
    ok(shop.run(at="2026-01-02"))
    assert [row["orders"] for row in rows_of(shop, "daily")] == [1]


@pytest.mark.parametrize("rows", [0, 3])
def test_an_arrival_of_any_size_is_made(project, rows):
    shop = project(orders_project())
    land(shop.folder, "d1.json", [order(str(n), "2026-01-01T10:00:00Z") for n in range(rows)])
    ok(shop.run(at="2026-01-02"))
    assert shop.store.receipts.live("orders", "arrival-1").rows == rows


def test_a_function_of_a_project_file_runs_in_spark_workers(project):
    shop = project(
        {
            "pipelines/shop.py": """
            from lakewright import JsonFiles, Pipeline
            from pyspark.sql import functions as F

            shop = Pipeline("shop", start="2026-01-01")
            shop.source("orders", JsonFiles("landing/orders"), schema="order_id string")

            def shout(text):
                return text.upper()

            @shop.dataset()
            def loud(orders):
                return orders.select(F.udf(shout)("order_id").alias("order_id"))
            """
        }
    )
    land(shop.folder, "d1.json", [{"order_id": "a"}])
    ok(shop.run(at="2026-01-02"))
    assert [row["order_id"] for row in rows_of(shop, "loud")] == ["A"]
