"""Delete the store: everything that matters comes back from the logs."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lakewright.errors import TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.lake.log import DeltaLog
from lakewright.lake.side_tables import DEAD_LETTERS
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Receipt
from lakewright.pipelines.harvest import is_another, notice, receipt_of, refuse_lost_history
from lakewright.store import open_store
from tests.pipelines.shop import GUARDED, cut_before, land, made, ok, order, orders_project, rows_of


def two_days(shop):
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order(None, "2026-01-01T11:00:00Z")])
    land(shop.folder, "d2.json", [order("c", "2026-01-02T10:00:00Z", 1)])
    ok(shop.run(at="2026-01-03"))


@pytest.fixture
def shop(prepared):
    return prepared("two days and a dead letter", orders_project(GUARDED), two_days)


def forget_store(shop, project):
    """The project as it is after somebody deleted the store's files."""
    shop.close()
    for file in (shop.folder / ".lakewright").glob("store.db*"):
        file.unlink()
    return project(folder=shop.folder.name)


def test_after_a_rebuild_plan_status_and_a_further_run_behave_as_before(shop, project):
    before = rows_of(shop, "clean")
    versions = {name: shop.lake.log(name).latest() for name in ("orders", "clean", "daily")}
    rebuilt = forget_store(shop, project)
    summary = rebuilt.rebuild_store()
    assert (summary.datasets, summary.arrivals) == (3, 1)
    assert any("rows read" in text for text in summary.unknown)
    plan = rebuilt.plan(at="2026-01-03")
    assert [(d.dataset.name, d.fresh, d.to_make, d.new) for d in plan.datasets] == [
        ("orders", 1, (), ""),
        ("clean", 2, (), ""),
        ("daily", 2, (), ""),
    ]
    assert not ok(rebuilt.run(at="2026-01-03")).outcomes
    assert {name: rebuilt.lake.log(name).latest() for name in versions} == versions
    assert rows_of(rebuilt, "clean") == before
    counters = rebuilt.store.receipts.live("clean", "2026-01-01").counters
    assert (counters.read, counters.duplicates, counters.written) == (None, None, 1)

    # Numbers go on above everything that the log has seen.
    ok(rebuilt.run(["clean"], at="2026-01-03", again=True, slices=["2026-01-01"]))
    assert rebuilt.store.receipts.live("clean", "2026-01-01").number > 1_000_000


def test_a_late_row_committed_to_bronze_before_a_kill_is_repaired_after_a_rebuild(shop, project):
    timeless = {**order("never", ""), "at": None}
    land(shop.folder, "late.json", [order("late", "2026-01-01T23:00:00Z", 100), timeless])
    arm({"LAKEWRIGHT_FAILPOINT": "published", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        summary = shop.run(["orders"], at="2026-01-04")
    finally:
        arm({})
    assert isinstance(summary.errors[0], FailpointReached)
    rebuilt = forget_store(shop, project)
    rebuilt.rebuild_store()
    summary = ok(rebuilt.run(at="2026-01-04"))
    assert made(summary) == {("clean", "2026-01-01"), ("daily", "2026-01-01")}
    # What nobody had told yet is told, once.
    letters = rebuilt.sql("SELECT slice, rule FROM dead_letters WHERE dataset = 'orders'").collect()
    assert [tuple(row) for row in letters] == [("arrival-2", "no usable event time")]
    told = rebuilt.lake.log(DEAD_LETTERS).latest()
    rebuilt.rebuild_store()
    assert rebuilt.lake.log(DEAD_LETTERS).latest() == told
    assert [row["amount"] for row in rows_of(rebuilt, "daily")] == [105, 1]


def test_a_rollback_survives_a_rebuild(shop, project):
    ok(shop.backfill("2026-01-01", "2026-01-02", select=["clean"], at="2026-01-03"))
    shop.rollback("clean", to=1)
    before = rows_of(shop, "clean")
    rebuilt = forget_store(shop, project)
    rebuilt.rebuild_store()
    assert not [s for s in rebuilt.plan(at="2026-01-03")["clean"].states if s.make]
    ok(rebuilt.run(at="2026-01-03"))
    assert rows_of(rebuilt, "clean") == before


def test_files_are_known_for_longer_than_the_log_of_their_table_tells_of_them(shop, project):
    land(shop.folder, "d3.json", [order("d", "2026-01-02T12:00:00Z", 2)])
    ok(shop.run(at="2026-01-03"))
    land(shop.folder, "d2.json", [order("c", "2026-01-02T10:00:00Z", 7)])  # replaces what came under this name
    ok(shop.run(at="2026-01-03"))
    land(shop.folder, "d4.json", [order("e", "2026-01-01T12:00:00Z", 3)])
    log = cut_before(shop, "orders", arrival=4)
    before = {name: rows_of(shop, name, *by) for name, by in (("orders", ["order_id"]), ("daily", []))}

    rebuilt = forget_store(shop, project)
    summary = rebuilt.rebuild_store()
    assert min(int(file.stem) for file in log.glob("*.json")) > 0
    assert summary.arrivals == 4
    assert not any("would be taken again" in text for text in summary.unknown)
    assert not ok(rebuilt.run(["orders"], at="2026-01-03")).outcomes, "no file is taken a second time"
    assert {name: rows_of(rebuilt, name, *by) for name, by in (("orders", ["order_id"]), ("daily", []))} == before

    # Of a lake whose windows are lost as well people are told.
    windows = rebuilt.lake.local / "_lakewright" / "windows" / "orders"
    for file in windows.glob("*.json"):
        file.unlink()
    told = forget_store(rebuilt, project).rebuild_store().unknown
    assert any(text.startswith("orders: which files 3 of its earlier arrivals held") for text in told)


READS_PAGES = """
    from lakewright import Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.sql("known", "SELECT page FROM pages")
"""


def test_a_table_made_anew_is_refused_and_a_rebuilt_store_makes_anew_what_was_made_of_the_old_one(
    project, spark, tmp_path
):
    table = tmp_path / "pages"

    def write(*pages):
        for page in pages:
            frame = spark.createDataFrame([(page,)], "page string")
            frame.coalesce(1).write.format("delta").mode("append").save(str(table))

    write("a", "b")
    project({"pipelines/shop.py": 'from lakewright import Pipeline\n\nshop = Pipeline("shop", start="2026-01-01")\n'})
    project().adopt(table, "pages")
    shop = project({"pipelines/shop.py": READS_PAGES})
    ok(shop.run(at="2026-01-03"))
    shutil.rmtree(table)
    write("c")

    for look in (shop.plan, shop.run):
        with pytest.raises(TargetError, match="version 1 was indexed: it was dropped") as refused:
            look(at="2026-01-03")
    assert "`lakewright store rebuild`" in refused.value.hint
    shop.rebuild_store()
    ok(shop.run(at="2026-01-03"))
    assert [row["page"] for row in rows_of(shop, "known")] == ["c"]
    assert not ok(shop.run(at="2026-01-03")).outcomes


def test_a_log_is_another_one_where_the_newest_commit_that_is_known_of_it_is_not_there():
    then = datetime(2026, 1, 1, tzinfo=UTC)
    known = Receipt("pages", "whole", "foreign", 5, 4, 0, then)

    def another(earliest, latest, at=then):
        log: Any = SimpleNamespace(committed_at=lambda version: at)
        return is_another(log, known, (earliest, latest))

    assert not another(0, 5)
    assert not another(6, 9)
    assert another(0, 4)
    assert another(7, 9)
    assert another(0, 5, at=then + timedelta(milliseconds=1))


def test_when_a_version_was_committed_is_told_without_a_look_at_its_files(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    lines = ['{"protocol":{}}', '{"commitInfo":{"timestamp":1767225600123}}', '{"add": is not looked at']
    (tmp_path / "_delta_log" / f"{5:020d}.json").write_text("\n".join(lines))
    assert DeltaLog(str(tmp_path)).committed_at(5) == datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)


def test_a_fence_of_a_dataset_that_nothing_reads_is_no_commit_that_nobody_had_looked_at(tmp_path):
    then = datetime(2026, 1, 1, tzinfo=UTC)

    def commit(version: int, kind: Any, *, changes: bool) -> Commit:
        told = Identity("gold", "whole", version, "r", kind=kind).to_json()
        return Commit(version, then, "WRITE", told, {}, {}, data_change=changes)

    commits = [commit(0, "data", changes=True), commit(1, "fence", changes=False), commit(2, "schema", changes=False)]
    commits += [commit(3, "schema", changes=True), commit(4, "data", changes=True), commit(5, "data", changes=True)]
    log: Any = SimpleNamespace(bounds=lambda: (0, 5), commit=lambda version: commits[version])
    lake: Any = SimpleNamespace(log=lambda name: log, outside=(), is_declared=lambda name: True)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        indexed = [receipt_of("gold", commits[0]), receipt_of("gold", commits[5])]
        store.receipts.add(indexed)
        notice(lake, store, ["gold"])
        # What changes rows is left to recovery: nobody knows yet whether it counts.
        assert store.receipts.gaps("gold", 0, 5) == [3, 4]
        refuse_lost_history(store, "gold", 3)
        with pytest.raises(TargetError, match="versions 3 to 4 are gone from the log"):
            refuse_lost_history(store, "gold", 5)
