"""A target that reads from another one's lake what it has not made itself, and never writes there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.errors import ConfigurationError, TargetError
from lakewright.failpoints import arm
from lakewright.lake.corrections import corrections_of
from lakewright.model.identity import Identity
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.replay_records import Edits
from lakewright.store import OWN
from tests.pipelines.shop import GUARDED, land, made, ok, order, orders_project, rows_of

TOML = """
    name = "shop"
    default_target = "prod"
    [targets.prod]
    lake = "prod/lake"
    store = "prod/store.db"
    [targets.dev]
    upstream = "prod"
"""
HISTORY = """
    shop.source("names", JsonFiles("landing/names"), schema="customer int, name string, at timestamp", event_time="at")
    shop.sql("names_history", "SELECT * FROM names",
             writer=Merger(keys=["customer"], history=Scd2(valid_from="at")))

    @shop.dataset(event_time="at", inputs={"names_history": AsOf("at")})
    def named(orders, names_history):
        return join_as_of(orders, names_history, keys=["customer"], at="at", valid_from="at")
"""


def one_day(prod):
    land(prod.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order(None, "2026-01-01T11:00:00Z")])
    ok(prod.run(at="2026-01-02"))


@pytest.fixture
def both(prepared, project):
    """The same project on prod, where a day is made, and on dev, where nothing is."""
    prod = prepared("one day on prod", {**orders_project(GUARDED), "lakewright.toml": TOML}, one_day)
    assert prod.graph.order == ["orders", "clean", "daily"]
    return prod, project(target="dev")


def files_of(place: Path) -> dict[str, tuple[float, int]]:
    return {str(f): (f.stat().st_mtime, f.stat().st_size) for f in place.rglob("*") if f.is_file()}


def typed(folder: Path, *words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--project", str(folder), "--target", "dev"])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_dev_makes_what_it_is_asked_for_from_prods_bronze(both):
    prod, dev = both
    before = files_of(prod.folder / "prod")
    assert "1 rows" in typed(dev.folder, "ready", "clean", "--slice", "2026-01-01")
    assert not dev.ready("clean", "2026-01-02").ready
    made_here = {("clean", "2026-01-01"), ("daily", "2026-01-01")}

    planned = dev.plan(at="2026-01-02")
    assert {(p.dataset.name, s.slice.id) for p in planned.datasets for s in p.to_make} == made_here
    assert planned.read_from == {"orders": "prod"}
    assert "read from prod" in typed(dev.folder, "plan", "--at", "2026-01-02")
    assert "(reads orders from prod)" in typed(dev.folder, "plan", "--select", "clean", "--at", "2026-01-02")

    summary = ok(dev.run(["clean+"], at="2026-01-02"))
    assert made(summary) == made_here
    assert summary.notes[0].message == "read from prod: orders"
    assert rows_of(dev, "clean") == rows_of(prod, "clean")
    assert dev.lake.borrowed == {"orders"}
    counters = dev.store.receipts.live("clean", "2026-01-01").counters
    assert (counters.read, counters.rejected, counters.written) == (2, {"has_id": 1}, 1)
    assert not ok(dev.run(at="2026-01-02")).made
    assert files_of(prod.folder / "prod") == before

    # What prod takes later is late in dev, whether dev looks by plan or by run.
    land(prod.folder, "d2.json", [order("late", "2026-01-01T12:00:00Z", 7)])
    assert not dev.plan(at="2026-01-02")["orders"].new
    assert not ok(dev.run(at="2026-01-02")).made
    ok(prod.run(at="2026-01-02"))
    before = files_of(prod.folder / "prod")
    states = dev.plan(at="2026-01-02")["clean"].states
    assert [(s.slice.id, s.status, s.reason) for s in states] == [
        ("2026-01-01", "late", "orders has 1 more row for it since version 0")
    ]
    assert made(ok(dev.run(at="2026-01-02"))) == made_here
    assert rows_of(dev, "daily", "amount", "orders") == rows_of(prod, "daily", "amount", "orders")

    # Reading, looking and a rebuild work across the two; nothing of prod can be changed from here.
    assert dev.sql("SELECT count(*) FROM orders JOIN clean USING (order_id)").first()[0] == 2
    status = json.loads(typed(dev.folder, "status", "--json"))["datasets"]
    assert {one["name"]: one["note"] for one in status} == {"clean": "", "daily": "", "orders": "read from prod"}
    assert "Upstream" in typed(dev.folder, "doctor")
    with pytest.raises(ConfigurationError, match="another target"):
        dev.rollback("orders")
    with pytest.raises(TargetError, match="another target"):
        dev.lake.open("orders", Identity("orders", "arrival-1", 1, "r"))
    with pytest.raises(ConfigurationError, match="another target") as refused:
        dev.replay_dead_letters(Selection("clean"), Edits(columns={"order_id": "b"}), at="2026-01-02")
    assert "backfill --select clean" in refused.value.hint
    assert not dev.lake.log(corrections_of("orders")).exists()
    dev.rebuild_store()
    assert not ok(dev.run(at="2026-01-02")).made
    assert files_of(prod.folder / "prod") == before


def test_a_dataset_that_becomes_devs_own_makes_its_readers_stale(both):
    prod, dev = both
    assert made(ok(dev.run(["daily"], at="2026-01-02"))) == {("daily", "2026-01-01")}
    assert dev.lake.borrowed == {"orders", "clean"}
    assert [s.status for s in dev.plan(["clean+"], at="2026-01-02")["clean"].states] == ["due"]
    # A run that fails before the first commit leaves everything as it was: clean is still read from prod.
    arm({"LAKEWRIGHT_FAILPOINT": "set_aside", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        assert dev.run(["clean"], at="2026-01-02").failed == ["clean"]
    finally:
        arm({})
    assert dev.plan(["daily"], at="2026-01-02").read_from["clean"] == "prod"
    assert dev.store.origins.all() == {"orders": prod.lake.root, "clean": prod.lake.root}
    # So does one that was killed, once the next run has looked.
    dev.store.move(["clean"], OWN)
    assert made(ok(dev.run(["daily"], at="2026-01-02"))) == {("daily", "2026-01-01")}
    assert dev.lake.borrowed == {"orders", "clean"}

    assert made(ok(dev.run(["clean"], at="2026-01-02"))) == {("clean", "2026-01-01")}
    [state] = dev.plan(at="2026-01-20")["daily"].states
    assert (state.status, state.reason) == ("stale", "clean was read from another lake when it was made")
    assert made(ok(dev.run(at="2026-01-02"))) == {("daily", "2026-01-01")}
    assert not ok(dev.run(at="2026-01-02")).made


def test_histories_and_replaced_files_of_the_upstream_are_followed(project):
    files = orders_project()
    files["pipelines/shop.py"] += HISTORY
    prod = project({**files, "lakewright.toml": TOML})
    land(prod.folder, "d1.json", [order("a", "2026-01-02T10:00:00Z")])
    land(prod.folder, "n1.json", [{"customer": 1, "name": "Ann", "at": "2026-01-01T00:00:00Z"}], folder="names")
    ok(prod.run(["orders", "+names_history"], at="2026-01-03"))
    dev = project(target="dev")
    ok(dev.run(["named"], at="2026-01-03"))
    assert [row["name"] for row in rows_of(dev, "named")] == ["Ann"]
    land(prod.folder, "n1.json", [{"customer": 1, "name": "Anne", "at": "2026-01-01T00:00:00Z"}], folder="names")
    ok(prod.run(["+names_history"], at="2026-01-03"))
    assert made(ok(dev.run(["named"], at="2026-01-03"))) == {("named", "2026-01-02")}
    assert [row["name"] for row in rows_of(dev, "named")] == ["Anne"]
    # The history itself would be made here of both arrivals, and the replaced file is known from prod's log.
    assert [s.slice.id for s in dev.plan(["names_history"])["names_history"].to_make] == ["arrival-1", "arrival-2"]
    ours, theirs = (target.store.arrivals.all("names")[1] for target in (dev, prod))
    assert (ours.files, ours.supersedes) == (theirs.files, theirs.supersedes)
    assert ours.supersedes
