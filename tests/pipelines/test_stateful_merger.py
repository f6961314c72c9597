"""Stateful Merger in a pipeline: a repeated slice takes the table back, and the run goes on to the newest."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakewright.errors import DefinitionError, SchemaChangeError, TargetError
from lakewright.failpoints import arm
from lakewright.model.identity import Identity
from lakewright.model.receipts import Receipt
from lakewright.model.slices import Slice
from lakewright.model.times import utc_now
from lakewright.pipelines.backfilling import effect_of
from lakewright.pipelines.decide import Wish
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.restoring import merges_of
from lakewright.store import open_store
from tests.pipelines.shop import land, made, ok, rows_of
from tests.processes import LAKEWRIGHT, killed

PIPELINE = """
    from lakewright import JsonFiles, Pipeline, ReadinessMarker, StatefulMerger

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("changes", JsonFiles("landing/changes"), schema="type string, name string, gone boolean")

    @shop.dataset(writer=StatefulMerger(keys=["type"], deleted="gone"))
    def devices(changes):
        '''Every device as it is now.'''
        return changes
"""
TOML = 'name = "shop"\n[targets.dev]\nfast_start = true\nmaster = "local[1]"\nparallel = 1\n'
FEED = [
    [("phone", "P1", False)],
    [("phone", "P2", False), ("watch", "W1", False)],
    [("watch", "W1", True), ("wrong", "X", False)],
    [("phone", "P4", False)],
]


def deliver(folder: Path, number: int, changes: list[tuple[Any, ...]]) -> None:
    rows = [dict(zip(("type", "name", "gone"), change, strict=True)) for change in changes]
    land(folder, f"c{number}.json", rows, folder="changes")


def four_arrivals(shop) -> None:
    for number, changes in enumerate(FEED, 1):
        deliver(shop.folder, number, changes)
        ok(shop.run(at="2026-01-02"))
        if number == 2:
            # Somebody compacts between the second and the third: versions without data.
            path = shop.lake.resolve("devices")
            again = shop.lake.session().read.format("delta").load(path).coalesce(1).write.format("delta")
            again.mode("overwrite").option("dataChange", "false").option("maxRecordsPerFile", 1).save(path)
            shop.lake.session().sql(f"OPTIMIZE delta.`{path}`")


@pytest.fixture
def shop(prepared):
    yield prepared("four arrivals", {"lakewright.toml": TOML, "pipelines/shop.py": PIPELINE}, four_arrivals)
    arm({})


def held(shop) -> list[tuple[str, str]]:
    return [(row["type"], row["name"]) for row in rows_of(shop, "devices")]


def restores(shop) -> list[int]:
    found = (Identity.from_json(commit.metadata) for commit in shop.lake.log("devices").commits())
    return [one.details["restored_to"] for one in found if one is not None and one.kind == "restore"]


def live(shop) -> dict[str, int]:
    return {name: one.version for name, one in shop.store.receipts.live_slices("devices").items()}


def planned(shop, slice_id: str, *, newest: str = "arrival-4") -> list[str]:
    """What a plan says that repeats a slice."""
    plan = shop.plan_backfill(["devices"], Wish(utc_now(), again={"devices": frozenset({slice_id})}))
    assert [state.slice.id for state in plan["devices"].to_make][-1] == newest, "on to the newest"
    assert effect_of(plan["devices"].dataset) == "restore"
    return list(plan.warnings)


FINAL = [("phone", "P4"), ("wrong", "X")]


@pytest.mark.shows("04.stateful-merger", 1, 2, 3)
def test_a_repeated_slice_takes_the_table_back_and_the_run_goes_on_to_the_newest(shop, caplog):
    assert (held(shop), restores(shop)) == (FINAL, []), "compaction is no reason to go back"
    third = shop.store.receipts.live("devices", "arrival-3")
    log = shop.lake.log("devices")
    assert log.commit(third.version_before).operation == "OPTIMIZE"
    assert planned(shop, "arrival-3") == [
        f"devices: goes back to version {third.version_before} before arrival-3 is merged, then on to the newest slice."
    ]
    assert planned(shop, "arrival-1") == ["devices: is emptied before arrival-1 is merged: no earlier slice is known."]
    shop._now = lambda: third.committed_at + timedelta(days=30)
    assert "is 30 days old, and the table keeps versions for less: it will be refused" in planned(shop, "arrival-3")[0]
    shop._now = utc_now

    # What the file of the third arrival said was wrong: it is replaced, which makes an arrival of its own.
    deliver(shop.folder, 3, [("watch", "W3", False)])
    summary = ok(shop.run(at="2026-01-02"))
    assert [(o.dataset, o.slice_id) for o in summary.outcomes if o.dataset == "devices"] == [
        ("devices", "arrival-3"), ("devices", "arrival-4"), ("devices", "arrival-5"),
    ]  # fmt: skip
    assert restores(shop) == [third.version_before]
    assert held(shop) == [("phone", "P4"), ("watch", "W3")]
    assert not ok(shop.run(at="2026-01-02")).outcomes

    # The first one again: nothing is earlier, so the table is emptied, and everything follows.
    caplog.set_level(logging.INFO, logger="lakewright.stateful_merger")
    assert made(ok(shop.run(at="2026-01-02", again=True, slices=["arrival-1"]))) == {
        ("devices", f"arrival-{number}") for number in range(1, 6)
    }
    assert restores(shop) == [third.version_before, -1]
    assert "the first execution is repeated: the table is emptied" in caplog.text
    assert held(shop) == [("phone", "P4"), ("watch", "W3")]
    before = live(shop)
    shop.rebuild_store()
    assert live(shop) == before, "the log alone tells which slices the table holds"


@pytest.mark.shows("04.stateful-merger", 4)
def test_it_is_refused_before_anything_is_touched_where_the_version_is_gone_or_rows_were_erased(shop, project):
    log, path = shop.lake.log("devices"), Path(shop.lake.resolve("devices"))
    erased = Identity("devices", "whole", 10**6, "erasing", kind="erase")
    shop.lake.open("devices", erased).delete("type = 'wrong'")
    pin(shop.lake, shop.store, "devices")
    before, known = log.latest(), live(shop)
    for slice_id in ("arrival-2", "arrival-4"):
        (error,) = shop.run(at="2026-01-02", again=True, slices=[slice_id]).errors
        assert isinstance(error, TargetError)
        assert "before rows were erased" in str(error)
        (told,) = planned(shop, slice_id)
        assert f"before rows were erased (version {log.latest()}): it will be refused" in told
    assert (log.latest(), live(shop)) == (before, known)

    deliver(shop.folder, 6, [("new", "N", False)])
    ok(shop.run(at="2026-01-02"))  # a version that can be restored: it is after the barrier
    needed = {Path(file).name for file in shop.lake.read("devices", version=before).inputFiles()}
    for file in path.glob("*.parquet"):
        if file.name not in needed:
            file.unlink()
    with shop.store.transaction() as conn:  # and without the barrier, what is left of the versions decides
        conn.exec_driver_sql("UPDATE receipts SET kind = 'maintenance' WHERE kind = 'erase'")
    before = log.latest()
    (told,) = planned(shop, "arrival-2", newest="arrival-5")
    assert re.search(r"arrival-2: version 1, which it would go back to, .* \d+ of its files are gone", told)
    assert "goes back to version" in planned(shop, "arrival-5", newest="arrival-5")[0], "this one is whole"
    (error,) = shop.run(at="2026-01-02", again=True, slices=["arrival-2"]).errors
    assert "arrival-2 cannot be repeated" in str(error)
    assert "The earliest slice that can be repeated is arrival-5" in str(error)

    # Nor is it taken back for a step that no longer fits it.
    code = shop.folder / "pipelines" / "shop.py"
    code.write_text(code.read_text().replace("return changes", "return changes.drop('name')"))
    (error,) = project().run(at="2026-01-02", again=True, slices=["arrival-5"]).errors
    assert isinstance(error, SchemaChangeError)
    assert "the column name is in the table and no longer in the rows. Nothing was written" in str(error)
    assert log.latest() == before


@pytest.mark.shows("04.stateful-merger", 5)
def test_a_kill_between_restore_and_merge_and_between_merge_and_receipt_is_mended(shop, connect_url):
    words = (*LAKEWRIGHT, "run", "--at", "2026-01-02", "--slice", "arrival-3")
    killed(shop.folder, *words, failpoint="went_back", master=connect_url)
    assert len(restores(shop)) == 1
    assert held(shop) == [("phone", "P2"), ("watch", "W1")], "taken back, not merged, and no receipt tells of it"
    assert set(live(shop)) == {f"arrival-{number}" for number in range(1, 5)}
    summary = ok(shop.run(at="2026-01-02"))
    assert made(summary) == {("devices", "arrival-3"), ("devices", "arrival-4")}
    assert (held(shop), len(restores(shop))) == (FINAL, 1)

    # The same with a receipt of the restore: the store knows as well what the table no longer holds.
    killed(shop.folder, *words, failpoint="went_back_recorded", master=connect_url)
    assert (held(shop), len(restores(shop))) == ([("phone", "P2"), ("watch", "W1")], 2)
    assert set(live(shop)) == {"arrival-1", "arrival-2"}
    assert made(ok(shop.run(at="2026-01-02"))) == {("devices", "arrival-3"), ("devices", "arrival-4")}
    assert (held(shop), len(restores(shop))) == (FINAL, 2)

    # It fails once the MERGE is there and no receipt: the next run finds it in the log, and has nothing to merge.
    arm({"LAKEWRIGHT_FAILPOINT": "published", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    assert shop.run(at="2026-01-02", again=True, slices=["arrival-4"]).errors
    arm({})
    assert (held(shop), set(live(shop))) == (FINAL, {"arrival-1", "arrival-2", "arrival-3"})
    assert not made(ok(shop.run(at="2026-01-02")))
    assert (held(shop), len(restores(shop))) == (FINAL, 3)
    assert set(live(shop)) == {f"arrival-{number}" for number in range(1, 5)}
    assert shop.store.steps.open_steps() == []
    assert not ok(shop.run(at="2026-01-02")).outcomes


@pytest.mark.shows("04.stateful-merger", 6)
def test_on_postgres_the_same_slices_are_repeated_from_a_history_and_a_kill_is_mended(project, postgres, monkeypatch):
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    text = PIPELINE.replace("StatefulMerger\n", "StatefulMerger, PostgresTable\n")
    text = text.replace("@shop.dataset(", '@shop.dataset(into=PostgresTable("db", "devices"), ')
    url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
    toml = f'{TOML}[connections.db]\nurl = "{url}"\npassword = "secret://env/PG_TEST_PASSWORD"\n'
    shop = project({"lakewright.toml": toml, "pipelines/shop.py": text})

    def stored() -> list[tuple[Any, ...]]:
        with at.connect() as session:
            return session.execute("SELECT type, name FROM devices ORDER BY 1").fetchall()

    for number, changes in enumerate(FEED, 1):
        deliver(shop.folder, number, changes)
        ok(shop.run(at="2026-01-02"))
    assert stored() == FINAL
    deliver(shop.folder, 3, [("watch", "W3", False)])
    arm({"LAKEWRIGHT_FAILPOINT": "published:2", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    assert shop.run(at="2026-01-02").errors
    arm({})
    assert [name for name, _ in stored()] == ["phone", "watch"], "taken back, in the transaction that merged the third"
    assert "arrival-4" not in live(shop)
    ok(shop.run(at="2026-01-02"))
    assert stored() == [("phone", "P4"), ("watch", "W3")], "what the lake's variant holds"
    assert set(live(shop)) == {f"arrival-{number}" for number in range(1, 6)}
    assert not ok(shop.run(at="2026-01-02")).outcomes
    before = live(shop)
    shop.rebuild_store()
    assert live(shop) == before


@pytest.mark.shows("04.stateful-merger", 7)
def test_a_gap_takes_nothing_back_and_what_others_wrote_before_the_first_slice_stays(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")

    def committed(dataset: str, *kinds: str) -> None:
        found = [(f"arrival-{kind}", "data") if kind.isdigit() else ("whole", kind) for kind in kinds]
        store.receipts.add([
            Receipt(dataset, slice_id, kind, version, version - 1 if version else None, version, utc_now())
            for version, (slice_id, kind) in enumerate(found)
        ])  # fmt: skip

    def decided(dataset: str, slice_id: str) -> tuple[str, int | None]:
        decision = merges_of(store, dataset).decide(Slice.parse(slice_id))
        return decision.action, decision.version

    committed("ours", "schema", "1", "3", "foreign")
    assert decided("ours", "arrival-7") == ("go on", None), "nobody made 4 to 6"
    assert decided("ours", "arrival-2") == ("restore", 1), "nor 2, and 1 stays"
    assert decided("ours", "arrival-1") == ("truncate", None)
    committed("adopted", "foreign", "1", "2")
    assert decided("adopted", "arrival-1") == ("restore", 0)


def test_what_cannot_work_is_refused_when_the_project_is_loaded(project):
    whole = PIPELINE.replace("shop.source(", "shop.source('other', JsonFiles('x'), schema='a int')\n    shop.source(")
    whole = whole.replace("def devices(changes)", "def devices(changes, other)")
    with pytest.raises(DefinitionError, match="there is no earlier state to go back to"):
        project({"pipelines/shop.py": whole}, folder="whole").graph  # noqa: B018
    adopted = 'into=PostgresTable("db", "t", adopt=True)'
    for option, why in (
        ('mode="stream"', "cannot follow a stream"),
        (adopted, "rebuilds the table from its history"),
        ('rows="preserve"', "in which no slice can be told"),
    ):
        text = PIPELINE.replace("StatefulMerger\n", "StatefulMerger, PostgresTable\n")
        text = text.replace("@shop.dataset(", f"@shop.dataset({option}, ")
        with pytest.raises(DefinitionError, match=why):
            project({"pipelines/shop.py": text}, folder=option[:4]).graph  # noqa: B018
