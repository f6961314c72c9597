"""Tables are looked after beside runs: nothing becomes stale, nothing is lost by a kill, and nobody is held up."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from lakewright import Compactor, Project
from lakewright.errors import ConfigurationError, DefinitionError, TargetError
from lakewright.failpoints import arm
from lakewright.lake.side_tables import DEAD_LETTERS
from lakewright.model.receipts import STALING_KINDS
from lakewright.pipelines.maintain import choose_tables
from lakewright.store import this_process
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of


def shop_with(project, policy):
    files = orders_project(policy)
    text = files["pipelines/shop.py"].replace("import (AsOf", "import (Compactor, AsOf")
    files["pipelines/shop.py"] = text.replace('"amount")\n', '"amount").repartition(3)\n', 1)
    return project(files)


def outcome(summary, name="clean"):
    return next(one for one in summary.outcomes if one.dataset == name)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def test_a_table_is_compacted_beside_its_readers_and_writers(project, tmp_path, monkeypatch):
    shop = shop_with(project, "maintenance=Compactor(min_files=2)")
    land(tmp_path / "project", "a.json", [order(f"o{n}", "2026-01-01T10:00:00Z") for n in range(6)])
    ok(shop.run(at="2026-01-03"))
    before, first = rows_of(shop, "clean"), shop.lake.log("clean").latest()

    would = outcome(shop.maintain(dry_run=True))
    assert (would.state, would.files_before, would.files_after) == ("done", 3, 1)
    assert shop.lake.log("clean").latest() == first

    # Somebody writes to it just now: left for the next time, and nobody is held up.
    owner = this_process()
    shop.store.leases.register(owner, timedelta(minutes=1), shop._now())
    shop.store.leases.acquire("clean", "2026-01-01", owner_id=owner.owner_id, run_id="r9", now=shop._now())
    assert outcome(shop.maintain()).reason == "run r9 writes to it just now"
    shop.store.leases.release("clean", "2026-01-01", shop.store.leases.held(shop._now())[0].number)
    shop.store.leases.acquire("maintenance:clean", "*", owner_id=owner.owner_id, run_id="r9", now=shop._now())
    assert outcome(shop.maintain()).state == "left"
    shop.store.leases.forget(owner.owner_id)

    # Somebody else was first: looked at again, and left for the next time.
    looked = []
    with monkeypatch.context() as conflicts:
        error = RuntimeError("[DELTA_CONCURRENT_DELETE_READ] files were deleted by a concurrent update")
        conflicts.setattr(Compactor, "run", lambda self, ctx: looked.append(ctx) or (_ for _ in ()).throw(error))
        summary = shop.maintain()
    assert (outcome(summary).state, summary.exit_code, len(looked)) == ("left", 0, 3)

    # Killed between the commit and its receipt: the next run takes it for what it is.
    arm({"LAKEWRIGHT_FAILPOINT": "committed.compact", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    died = shop.maintain()
    arm({})
    assert (outcome(died).state, died.exit_code) == ("failed", 1)
    assert shop.store.receipts.get("clean", first + 1) is None
    assert not made(ok(shop.run(at="2026-01-03"))), "the rows are the same: nobody is stale"
    receipt = shop.store.receipts.get("clean", first + 1)
    assert (receipt.kind, dict(receipt.touched)) == ("maintenance", {})
    assert receipt.kind not in STALING_KINDS
    assert rows_of(shop, "clean") == before
    again = shop.maintain()
    assert (outcome(again).state, outcome(again).reason) == ("nothing", "1 file, below 2")
    assert "1 as they were" in again.closing_line()

    # A late row: the slice is made anew, and compacted at the end of that run.
    shop = shop_with(project, 'maintenance=Compactor(min_files=2, when="after run", retention="0 hours", unsafe=True)')
    land(tmp_path / "project", "b.json", [order("late", "2026-01-01T11:00:00Z")])
    summary = ok(shop.run(at="2026-01-03"))
    assert made(summary) == {("orders", "arrival-2"), ("clean", "2026-01-01"), ("daily", "2026-01-01")}
    assert [note.message for note in summary.notes] == ["clean: compacted, 3 files before, 1 after."]
    assert len(rows_of(shop, "clean")) == 7
    arm({"LAKEWRIGHT_FAILPOINT": "compacted", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    summary = ok(shop.run(["clean"], at="2026-01-03", again=True))
    assert [note.severity for note in summary.notes] == ["warning"], "what fails there never fails a run"
    arm({})

    # Old files go; a rollback says so. Rows, receipts and readers stay.
    gone = outcome(shop.maintain())
    assert gone.state == "done"
    assert gone.deleted_files >= 9
    assert gone.deleted_bytes > 0
    with pytest.raises(TargetError, match="can no longer be restored"):
        shop.rollback("clean", to=first)
    assert len(rows_of(shop, "clean")) == 7
    everything = shop.maintain(everything=True, vacuum=False)
    assert {one.dataset for one in everything.outcomes} == {"orders", "clean", "daily"}
    shop.rebuild_store()
    assert shop.store.receipts.get("clean", first + 1).kind == "maintenance"


def test_what_is_maintained_is_chosen_by_policy(project):
    shop = shop_with(project, "")
    with pytest.raises(ConfigurationError, match="No dataset of this project declares how it is maintained"):
        shop.maintain()
    with pytest.raises(ConfigurationError, match="Of daily no dataset declares"):
        shop.maintain(["daily"])
    graph = shop_with(project, "maintenance=Compactor()").graph
    here = SimpleNamespace(graph=graph, lake=SimpleNamespace(borrowed={"orders"}))
    chosen = choose_tables(here, graph.order, selected=False, everything=False)
    assert list(chosen) == ["clean"]
    chosen = choose_tables(here, graph.order, selected=False, everything=True)
    assert list(chosen)[:3] == ["clean", "daily", DEAD_LETTERS], "what is borrowed is never touched"
    assert "daily" in choose_tables(here, ["daily"], selected=True, everything=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("maintenance='daily'", "is a policy such as Compactor()"),
        ('maintenance=Compactor(retention="8 days"), history="30 days"', "keeps its history for 30 days"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_its_place(project, options, words):
    with pytest.raises(DefinitionError, match=words) as refused:
        shop_with(project, options).graph  # noqa: B018
    assert "shop.py:" in str(refused.value)


def test_a_policy_can_be_given_where_it_fits(project):
    policy = 'maintenance=Compactor(retention="8 days", unsafe=True), history="30 days"'
    dataset = shop_with(project, policy).graph["clean"]
    assert dataset.maintenance == Compactor(retention="8 days", unsafe=True)
    assert isinstance(Project.maintain.__doc__, str)
