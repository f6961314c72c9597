"""Kill the real command between any two commits, run again: the tables are those of a run that nobody disturbed.

In the suite all but one of the victims share the Spark Connect server of the test run, since a JVM of its own costs
half a minute; `make chaos` kills each with its JVM.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lakewright.pipelines.project import Project
from lakewright.testing.plugin import write_files
from tests.pipelines.shop import land, ok, order, rows_of
from tests.processes import LAKEWRIGHT, killed

PIPELINE = """
    from lakewright import (DataOverwrite, DeadLetter, JsonFiles, Merger, Pipeline, PrivateOutput, ReadinessMarker,
                            Scd2, WindowedDeduplicator)

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(
        event_time="at",
        marker=ReadinessMarker(flag_file="COMPLETED"),
        outputs={"big_orders": PrivateOutput(writer=DataOverwrite())},
        guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"}, warn_above_rows=0,
                                         warn_per_key=("customer", 1)),
                              WindowedDeduplicator(keys=["order_id"])]},
    )
    def clean(orders):
        return {"clean": orders, "big_orders": orders.where("amount > 5")}

    @shop.dataset(writer=Merger(keys=["customer"], history=Scd2(valid_from="at")))
    def customers(orders):
        named = orders.where("order_id IS NOT NULL").dropDuplicates(["customer", "at"])
        return named.select("customer", "amount", "at")
"""
FIRST = [
    order("a", "2026-01-01T10:00:00Z", 5),
    order("b", "2026-01-01T11:00:00Z", 7, 2),
    order(None, "2026-01-01T12:00:00Z"),
]
SECOND = [
    order("a", "2026-01-01T10:00:00Z", 9),
    order("d", "2026-01-02T10:00:00Z", 2),
    "{not json",
    order("d", "2026-01-02T10:00:00Z", 2),
]
TABLES = ("orders", "clean", "big_orders", "customers")
TOML = 'name = "shop"\n[targets.dev]\nfast_start = true\nmaster = "local[1]"\nparallel = 1\n'


def content(project) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {name: rows_of(project, name) for name in TABLES}
    letters = project.sql("SELECT dataset, slice, rule, record, raw FROM dead_letters").collect()
    found["dead_letters"] = sorted(letters, key=str)
    return found


def run_killed(folder: Path, failpoint: str, select: str, master: str | None = None) -> None:
    words = (*LAKEWRIGHT, "run", "--at", "2026-01-03", "--select", select)
    killed(folder, *words, failpoint=failpoint, master=master)


@pytest.fixture(scope="module")
def half_way(spark, tmp_path_factory) -> Path:
    """A project with one day made, and a second file landed that touches both days; each test gets a copy."""
    folder = tmp_path_factory.mktemp("half_way") / "shop"
    write_files(folder, {"lakewright.toml": TOML, "pipelines/shop.py": PIPELINE})
    land(folder, "d1.json", FIRST)
    with Project(folder, spark=spark) as project:
        ok(project.run(at="2026-01-02"))
    land(folder, "d2.json", SECOND)
    return folder


@pytest.fixture(scope="module")
def undisturbed(spark, half_way, tmp_path_factory):
    """What the tables hold when nobody kills anything."""
    folder = shutil.copytree(half_way, tmp_path_factory.mktemp("undisturbed") / "shop")
    with Project(folder, spark=spark) as project:
        ok(project.run(at="2026-01-03"))
        return content(project)


FAILPOINTS = {
    "orders": ["recorded", "leased", "committed.main", "set_aside", "before_receipt", "finished"],
    "+clean": [
        "committed.dead_letters:2", "set_aside:2", "committed.big_orders", "private_written", "committed.main:2",
        "before_receipt:2", "finished:2",
    ],
    "+customers": ["committed.main:2", "before_receipt:2", "finished:2"],
}  # fmt: skip


@pytest.fixture
def shop(project, half_way, tmp_path):
    shutil.copytree(half_way, tmp_path / "shop")
    return project(folder="shop")


def flag(shop, slice_id: str) -> Path:
    return Path(shop.lake.root) / "_ready" / "clean" / slice_id / "COMPLETED"


def mended(shop, undisturbed) -> None:
    """One more run, and everything is as if nobody had killed anything."""
    ok(shop.run(at="2026-01-03"))
    assert content(shop) == undisturbed
    assert shop.store.leases.held(shop._now()) == []
    assert shop.store.steps.open_steps() == []
    for name in TABLES:
        ours = [c.version for c in shop.lake.log(name).commits() if '"kind":"data"' in (c.metadata or "")]
        assert [version for version in ours if shop.store.receipts.get(name, version) is None] == []
        assert all(shop.ready(name, slice_id).ready for slice_id in shop.store.receipts.live_slices(name))
    days = ("2026-01-01", "2026-01-02")
    told = {slice_id: json.loads(flag(shop, slice_id).read_text())["version"] for slice_id in days}
    assert told == {slice_id: shop.ready("clean", slice_id).version for slice_id in told}
    assert not ok(shop.run(at="2026-01-03")).outcomes


# A real kill for each kind of commit (of bronze, side rows, a private output, a public one, a MERGE), and before,
# between and after them. They hit one project; the first `committed.main` of a later run is the fence of its dead
# predecessor. The last two tell the step that is left open, and the table whose newest commit nobody knows of.
IN_A_ROW = [
    ("recorded", "orders", None, None),
    ("leased", "orders", ("orders", "arrival-2"), None),
    ("fenced", "orders", ("orders", "arrival-2"), None),
    ("committed.main:2", "orders", ("orders", "arrival-2"), "orders"),
    ("set_aside", "orders", ("orders", "arrival-2"), "_lakewright/dead_letters"),
    ("private_written", "+clean", ("clean", "2026-01-01"), "big_orders"),
    ("committed.main:2", "+clean", ("clean", "2026-01-01"), "clean"),
    ("finished", "+clean", None, None),
    ("before_receipt", "+customers", ("customers", "arrival-2"), "customers"),
]
WITH_ITS_JVM = "clean"


def test_each_run_mends_what_the_kill_before_it_left_and_the_last_one_everything(shop, undisturbed, connect_url):
    shop.graph  # noqa: B018  (declares the names)
    for failpoint, select, step, table in IN_A_ROW:
        run_killed(shop.folder, failpoint, select, None if table == WITH_ITS_JVM else connect_url)
        assert [(dead.dataset, dead.slice_id) for dead in shop.store.steps.open_steps()] == ([step] if step else [])
        if step is None:
            continue
        assert not shop.ready(*step).ready
        assert flag(shop, "2026-01-01").exists() == (step[0] != "clean"), "gone before the first commit of the slice"
        if table is not None:
            log = shop.lake.log(table)
            assert '"kind":"data"' in log.commit(log.latest()).metadata  # it reached the log, and nobody knows of it
    # What people are told of a step does not depend on whether it lived to say it: this one died after its commit.
    told = [one.message for one in shop.store.findings.latest("clean") if one.slice_id == "2026-01-01"]
    assert [words.partition(" (")[0] for words in told].count("1 of 4 rows") == 1, told
    # Nor are keys that fail again and again: told by the first making of the day, and by the one that died.
    assert sum(words.endswith("have the same customer: 1 (1).") for words in told) == 2, told
    mended(shop, undisturbed)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("failpoint", "select"),
    [(failpoint, select) for select, failpoints in FAILPOINTS.items() for failpoint in failpoints],
)
def test_a_kill_leaves_nothing_that_a_second_run_does_not_mend(shop, undisturbed, failpoint, select):
    run_killed(shop.folder, failpoint, select)
    mended(shop, undisturbed)
