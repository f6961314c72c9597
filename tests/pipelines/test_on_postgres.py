"""Projects on PostgreSQL: the store there, and a database that is restarted in the middle of a write."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakewright.errors import LakewrightError, TargetError
from lakewright.failpoints import arm
from lakewright.model.receipts import Commit
from lakewright.pipelines.progress import Note
from lakewright.runtime.services import down, guard, processes, up
from lakewright.runtime.services.processes import this_process
from lakewright.runtime.services.state import Place
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of
from tests.pipelines.streaming import until


def test_a_project_with_its_store_on_postgresql_runs_rests_and_is_rebuilt(project, postgres):
    at = postgres.database()
    toml = f'name = "shop"\n[targets.dev]\nstore = "postgresql://{at.user}@{at.host}:{at.port}/{at.name}"\n'
    toml += 'store_password = "secret://file/password"\n'
    shop = project({**orders_project(), "lakewright.toml": toml, "password": postgres.password})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T10:00:00Z", 2)])
    days = {("daily", "2026-01-01"), ("daily", "2026-01-02")}
    assert days <= made(ok(shop.run(at="2026-01-03")))
    assert not ok(shop.run(at="2026-01-03")).outcomes
    known = {name: shop.store.receipts.live_slices(name).keys() for name in ("orders", "clean", "daily")}
    shop.rebuild_store()
    assert {name: shop.store.receipts.live_slices(name).keys() for name in known} == known
    assert not ok(shop.run(at="2026-01-03")).outcomes
    land(shop.folder, "d2.json", [order("c", "2026-01-01T11:00:00Z", 1)])
    assert made(ok(shop.run(at="2026-01-03"))) == {
        ("orders", "arrival-2"), ("clean", "2026-01-01"), ("daily", "2026-01-01")
    }  # fmt: skip
    assert [row["amount"] for row in rows_of(shop, "daily", "amount")] == [2, 6]
    assert shop.store.leases.held(shop._now()) == []
    assert shop.store.steps.open_steps() == []
    assert not list(shop.folder.rglob("store.db"))


RACED = """
    from lakewright import ConcurrentRunner, JsonFiles, Pipeline

    shop = Pipeline("shop", start="2026-01-01", runs=ConcurrentRunner(limit=2))
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at")
    def clean(orders):
        return orders
"""


@dataclass(frozen=True)
class Counting:
    """A writer that only counts: what is left is two runs, their leases and one store."""

    runner: str
    made: list[tuple[str, str]]
    versions: Any
    streams: bool = False
    replaces_slice: bool = True

    def publish(self, frame: Any, ctx: Any) -> Commit:
        self.made.append((ctx.table.identity.slice_id, self.runner))
        now = datetime.now(UTC)
        return Commit(next(self.versions), now, "WRITE", ctx.table.identity.to_json(), {"numOutputRows": 1}, {})


def test_two_runs_at_once_on_one_store_make_each_of_two_hundred_slices_once(project, postgres):
    toml = f'name = "shop"\n[targets.dev]\nstore = "{postgres.database().url.replace(f":{postgres.password}", "")}"\n'
    toml += 'store_password = "secret://file/password"\n'
    shops = {
        "one": project({"pipelines/shop.py": RACED, "lakewright.toml": toml, "password": postgres.password}),
        "two": project(),
    }
    days = [str(date(2026, 1, 1) + timedelta(days=n)) for n in range(200)]
    land(shops["one"].folder, "d1.json", [order(day, f"{day}T10:00:00Z") for day in days])
    ok(shops["one"].run(["orders"], at="2026-07-25"))
    counted: list[tuple[str, str]] = []
    versions = itertools.count(1)
    for name, shop in shops.items():
        shop.graph.datasets["clean"] = replace(shop.graph["clean"], writer=Counting(name, counted, versions))
    ended: dict[str, Any] = {}

    def run(name: str) -> None:
        ended[name] = shops[name].run(["clean"], at="2026-07-25", parallel=2)

    runs = [threading.Thread(target=run, args=(name,)) for name in shops]
    for one in runs:
        one.start()
    for one in runs:
        one.join(120)
    assert {name: (summary.state, summary.errors) for name, summary in ended.items()} == {
        "one": ("ok", []), "two": ("ok", []),
    }  # fmt: skip
    assert Counter(day for day, _ in counted) == Counter(days)
    store = shops["one"].store
    both = store.runs.latest()[:2]
    assert max(run.started_at for run in both) < min(run.ended_at for run in both)
    assert store.receipts.live_slices("clean").keys() == set(days)
    assert len(store.receipts.history("clean", limit=1000)) == 200
    assert store.steps.open_steps() == []
    assert store.leases.held(shops["one"]._now()) == []


INTO = """
    from lakewright import JsonFiles, Pipeline, PostgresTable

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", into=PostgresTable("db", "copied"), retries=4)
    def copied(orders):
        return orders.select("order_id", "at", "amount")
"""


@pytest.fixture
def database():
    """A PostgreSQL of this test's own, which may be killed."""
    home = Path(tempfile.mkdtemp(prefix="lakewright-own-"))
    home.chmod(0o755)
    services = home / "services"
    services.mkdir()
    guard.ensure(services, this_process())
    yield services
    guard.throw_away(services)
    shutil.rmtree(home, ignore_errors=True)


def test_a_database_that_dies_in_a_write_costs_a_retry_and_no_row(project, database, tmp_path):
    address = up(database, ["postgres"], only_while=this_process())[0].address
    toml = f'name = "shop"\n[connections.db]\nurl = "{address.shown.replace(":***", "")}"\n'
    toml += f'password = "secret://file/{address.password_file}"\n'
    shop = project({"pipelines/shop.py": INTO, "lakewright.toml": toml})
    land(shop.folder, "d1.json", [order(str(n), "2026-01-01T10:00:00Z", n) for n in range(5)])
    paused, go = tmp_path / "staged.paused", tmp_path / "staged.go"
    arm({"LAKEWRIGHT_FAILPOINT": "staged", "LAKEWRIGHT_FAILPOINT_ACTION": "pause",
         "LAKEWRIGHT_FAILPOINT_DIR": str(tmp_path)})  # fmt: skip
    done = []
    running = threading.Thread(target=lambda: done.append(shop.run(at="2026-01-02")))
    try:
        running.start()
        until(paused.exists)
        server = Place(database / "postgres").load().process
        processes.send(server, signal.SIGKILL)
        assert processes.wait_until_gone([server], 30)
        up(database, ["postgres"], only_while=this_process())
    finally:
        go.touch()
        running.join(120)
        arm({})
    (summary,) = done
    ok(summary)
    assert [outcome.attempts for outcome in summary.made if outcome.dataset == "copied"] == [2]
    assert any("Trying again" in note.message for note in summary.notes)
    with psycopg.connect(address.url) as session:
        assert session.execute("SELECT count(*), count(DISTINCT order_id) FROM copied").fetchone() == (5, 5)
        left = session.execute("SELECT count(*) FROM pg_tables WHERE starts_with(tablename, '_lw_stage')").fetchone()
        assert left == (0,)
    assert not ok(shop.run(at="2026-01-02")).outcomes


GUARDED = """
    from lakewright import DeadLetter, JsonFiles, Pipeline, PostgresTable

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", into=PostgresTable("db", "paid"), retries=2,
                  guards_in={"orders": [DeadLetter(rules={"paid": "amount > 0"}, stop_above=0.5)]})
    def paid(orders):
        return orders.select("order_id", "at", "amount")
"""


@pytest.mark.shows("03.dead-letter", 5)
def test_a_database_that_is_stopped_for_seconds_costs_retries_and_no_good_row_is_dead_lettered(
    project, database, tmp_path
):
    address = up(database, ["postgres"], only_while=this_process())[0].address
    toml = f'name = "shop"\n[connections.db]\nurl = "{address.shown.replace(":***", "")}"\n'
    toml += f'password = "secret://file/{address.password_file}"\n'
    shop = project({"pipelines/shop.py": GUARDED, "lakewright.toml": toml})
    land(shop.folder, "d1.json", [order(str(n), "2026-01-01T10:00:00Z", n) for n in range(5)])
    tried: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, Note) and "Trying again" in event.message:
            tried.append(event.message)
            if len(tried) == 2:  # it was away for two attempts and the pause between them
                up(database, ["postgres"], only_while=this_process())

    arm({"LAKEWRIGHT_FAILPOINT": "set_aside", "LAKEWRIGHT_FAILPOINT_ACTION": "pause",
         "LAKEWRIGHT_FAILPOINT_DIR": str(tmp_path)})  # fmt: skip
    done = []
    running = threading.Thread(target=lambda: done.append(shop.run(at="2026-01-02", listener=listen)))
    try:
        running.start()
        until((tmp_path / "set_aside.paused").exists)
        assert down(database)[0].state == "stopped"
    finally:
        (tmp_path / "set_aside.go").touch()
        running.join(120)
        arm({})
    (summary,) = done
    ok(summary)
    assert len(tried) == 2
    assert [outcome.attempts for outcome in summary.made if outcome.dataset == "paid"] == [3]
    with psycopg.connect(address.url) as session:
        found = session.execute("SELECT order_id FROM paid ORDER BY 1").fetchall()
    assert found == [("1",), ("2",), ("3",), ("4",)]
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).collect()
    assert [(row["slice"], row["rules"], json.loads(row["record"])) for row in letters] == [
        ("2026-01-01", ["paid"], {"amount": 0})
    ]
    counters = shop.store.receipts.live("paid", "2026-01-01").counters
    assert (counters.read, counters.written, counters.rejected) == (5, 4, {"paid": 1})
    assert not ok(shop.run(at="2026-01-02")).outcomes


STORED = """
    from lakewright import JsonFiles, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(event_time="at", retries=0)
    def clean(orders):
        return orders
"""


def test_a_store_that_dies_in_a_run_ends_it_as_a_failure_that_passes_and_the_next_goes_on(
    project, database, tmp_path, monkeypatch
):
    monkeypatch.setattr("lakewright.store.dialect._PAUSES", ())
    address = up(database, ["postgres"], only_while=this_process())[0].address
    toml = f'name = "shop"\n[targets.dev]\nstore = "{address.shown.replace(":***", "")}"\n'
    toml += f'store_password = "secret://file/{address.password_file}"\n'
    shop = project({"pipelines/shop.py": STORED, "lakewright.toml": toml})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5)])
    arm({"LAKEWRIGHT_FAILPOINT": "published", "LAKEWRIGHT_FAILPOINT_ACTION": "pause",
         "LAKEWRIGHT_FAILPOINT_DIR": str(tmp_path)})  # fmt: skip
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(shop.run(at="2026-01-02"))
        except LakewrightError as error:
            ended.append(error)

    running = threading.Thread(target=run)
    try:
        running.start()
        until((tmp_path / "published.paused").exists)
        server = Place(database / "postgres").load().process
        processes.send(server, signal.SIGKILL)
        assert processes.wait_until_gone([server], 30)
    finally:
        (tmp_path / "published.go").touch()
        running.join(120)
        arm({})
    (error,) = ended
    # Code 1: whoever has started it, such as Airflow, tries again.
    assert isinstance(error, TargetError)
    assert error.exit_code == 1
    assert "cannot be reached" in error.message
    assert "run again: what was committed before stays" in str(error.hint)

    up(database, ["postgres"], only_while=this_process())
    shop.store.leases.break_lease("pipeline:shop")  # the process that held it is gone, but for this test
    again = ok(shop.run(at="2026-01-02"))
    assert any("an earlier run died here; its commit was found in the log" in note.message for note in again.notes)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    assert not ok(shop.run(at="2026-01-02")).outcomes
