"""A run that was cancelled, one that another machine has locked out, one that failed: each goes on, for real.

One project and one story, since every start of Spark costs seconds: what is cancelled runs with a JVM of its own, what
is retried in a process on the Connect server of the tests, the run between them in the tests' own session. What a
command says is tested without Spark in test_store_commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.processes import environment

from lakewright.cli.init import write_scaffold
from lakewright.model.runs import Run
from lakewright.store import Owner, Store, open_store

from .conftest import Lakewright

NEVER_ENDS = """
    forever = raw_orders.sparkSession.range(0, 10**13, 1, 1).where("md5(string(id)) = 'none'")
    return raw_orders.crossJoin(forever).drop("id")
"""
BELOW = """
orders.sql("orders_seen", "SELECT sum(orders) AS orders FROM daily_revenue", description="All orders so far.")
"""
ELSEWHERE = Owner("elsewhere:1", "another-machine", 1, "1@1")


@contextmanager
def started(folder: Path, *words: str, master: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; it does not outlive the test."""
    command = [sys.executable, "-m", "lakewright", *words, "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=folder, env=environment(master), text=True, **pipes)
    try:
        yield child
    finally:
        child.kill()


def ended(child: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    out, err = child.communicate(timeout=240)
    assert "Traceback" not in err
    assert out, err
    return child.returncode, json.loads(out)


def made(summary: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["dataset"], one["slice"]) for one in summary["slices"] if one["state"] == "ok"}


def wait_for_step(store: Store, dataset: str, child: subprocess.Popen[str]) -> None:
    """Look at the store until a step is under way, or the process has ended before it."""
    while not store.steps.open_steps(dataset):
        try:
            child.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"ended too early: {child.communicate()}")


def lock_from_elsewhere(store: Store) -> None:
    now = datetime.now(UTC)
    store.leases.register(ELSEWHERE, timedelta(hours=1), now)
    store.leases.acquire("pipeline:orders", "*", owner_id=ELSEWHERE.owner_id, run_id="far", now=now)
    store.runs.start(Run("far", "orders", now), owner_id=ELSEWHERE.owner_id, options={}, now=now)


@pytest.mark.usefixtures("warm")
def test_a_cancelled_a_locked_out_and_a_failed_run_go_on(lakewright: Lakewright, folder: Path, connect_url: str):
    shop = folder / "shop"
    write_scaffold(shop)
    file = shop / "pipelines" / "orders.py"
    good = file.read_text() + BELOW
    days = ("2026-01-05", "2026-01-06")

    # Cancelled by another process, while a Spark job is under way that would never end.
    file.write_text(good.replace('\n    return raw_orders.withColumn("country", F.upper("country"))\n', NEVER_ENDS))
    with open_store(f"sqlite:///{shop}/.lakewright/store.db") as store, started(shop, "run") as child:
        wait_for_step(store, "clean_orders", child)
        cancelled = lakewright("cancel", "--project", str(shop))
        assert "it ends after the commits that are under way" in cancelled.stderr
        code, summary = ended(child)
        assert (code, summary["state"]) == (130, "interrupted")
        assert made(summary) == {("raw_orders", "arrival-1")}
        assert store.runs.latest()[0].error == "cancelled by `lakewright cancel`"
        assert store.leases.held(datetime.now(UTC)) == []
        assert store.steps.open_steps() == []

        # Locked by a process on another machine, of which nobody here can tell whether it lives.
        file.write_text(good.replace("sum(amount) AS revenue", "sum(amont) AS revenue"))
        lock_from_elsewhere(store)
        refused = lakewright("run", "--project", str(shop))
        assert refused.exit_code == 1
        assert "The pipeline 'orders' is running already" in refused.stderr
        assert "`lakewright unlock`" in refused.stderr
        unlocked = lakewright("unlock", "orders", "--project", str(shop))
        assert unlocked.exit_code == 0
        assert "Unlocked pipeline:orders; it was held by process 1 on another-machine (run far)" in unlocked.stderr

        # The next run goes on from there: bronze is not taken again. Then a step of its own fails.
        failed = lakewright("run", "--json", "--project", str(shop))
        summary = json.loads(failed.stdout)
        assert (failed.exit_code, summary["state"]) == (1, "failed")
        assert made(summary) == {("clean_orders", day) for day in days}
        assert summary["skipped"] == ["orders_seen"]
        assert "amont" in summary["error"]["message"]
        far = store.runs.get("far")
        assert far is not None
        assert far.state == "lost"

        # Mended and retried: what failed and what is below it, and nothing above.
        file.write_text(good)
        with started(shop, "retry", master=connect_url) as child:
            code, summary = ended(child)
        assert (code, summary["state"]) == (0, "ok")
        assert made(summary) == {*(("daily_revenue", day) for day in days), ("orders_seen", "whole")}
        assert summary["fresh"] == []
    nothing = lakewright("retry", "--project", str(shop))
    assert nothing.exit_code == 2
    assert "succeeded: there is nothing to retry" in nothing.stderr
