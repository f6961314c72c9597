"""Readiness markers in pipelines: what a producer promises, and sources that wait for what others promise."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from lakewright import Capture, Fail, JsonFiles, NextPartition, Pipeline, ReadinessMarker, Repair
from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.failpoints import arm
from lakewright.pipelines.marker_options import late_policy
from tests.pipelines.shop import land, made, ok, order

DAY = "2026-01-01"
PIPELINE = """
    from lakewright import Fail, FileNotifier, JsonFiles, Pipeline, ReadinessMarker

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp", event_time="at")
    told = ReadinessMarker(flag_file="COMPLETED", notify=FileNotifier("notices.jsonl"))
    shop.sql("clean", "SELECT * FROM orders", layer="silver", event_time="at", marker=told)
    shop.sql("kept", "SELECT * FROM orders", event_time="at", marker=ReadinessMarker(closed="immutable"))
    shop.sql("strict", "SELECT * FROM orders", event_time="at", late=Fail(), marker=ReadinessMarker(closed="immutable"))
"""


@pytest.fixture
def fail_at():
    """``fail_at("set_aside")``: the next hit of this failpoint raises."""
    yield lambda name: arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    arm({})


@pytest.mark.shows("02.readiness-marker", 1, 2, 3, 6)
def test_a_slice_is_ready_from_its_receipt_until_it_is_written_again(project, fail_at, monkeypatch):
    shop = project({"pipelines/shop.py": PIPELINE})
    flag = shop.folder / shop.lake.root / "_ready" / "clean" / DAY / "COMPLETED"
    land(shop.folder, "d1.json", [order("a", f"{DAY}T10:00:00Z")])
    # Line 2: a job that fails half-way leaves no marker, whatever it had committed before.
    fail_at("published:2")  # the first is the source's
    assert shop.run(["+clean"], at="2026-01-02").state == "failed"
    found = shop.ready("clean", DAY)
    assert (found.ready, flag.exists()) == (False, False)
    assert "did not succeed" in found.reason
    arm({})
    ok(shop.run(at="2026-01-02"))
    for name in ("clean", "kept", "strict"):
        assert shop.ready(name, DAY).ready
    assert shop.ready("orders", "arrival-1").ready
    assert not shop.ready("clean", "2026-01-02").ready
    # Line 1: what the marker names is in the log, and the flag says the same.
    first = shop.ready("clean", DAY)
    assert first.version in [commit.version for commit in shop.lake.log("clean").commits()]
    assert {**json.loads(flag.read_text()), "at": "", "files": 0} == {
        "run": first.run, "rows": 1, "version": first.version, "files": 0, "bytes": 0, "at": "",
    }  # fmt: skip
    assert not (shop.folder / "notices.jsonl").exists()

    # Line 3: gone before the first commit of the repeat, and back only after its end.
    seen = []
    monkeypatch.setattr(
        "lakewright.pipelines.make.failpoint",
        lambda name: seen.append((name, shop.ready("clean", DAY).ready, flag.exists())),
    )
    ok(shop.run(["clean"], at="2026-01-02", again=True))
    assert [*dict.fromkeys(seen)] == [(name, False, False) for name in ("set_aside", "private_written", "published")]
    assert (shop.ready("clean", DAY).ready, flag.exists()) == (True, True)
    assert not (shop.folder / "notices.jsonl").exists(), "made again of the same: nothing has changed"
    monkeypatch.undo()

    # Line 6: a late row makes a mutable slice again and tells; of immutable ones one captures it, one refuses.
    land(shop.folder, "d2.json", [order("late", f"{DAY}T11:00:00Z")])
    (shop.folder / "notices.jsonl").mkdir()  # the subscriber cannot be reached
    summary = shop.run(at="2026-01-03")
    assert [str(error)[:24] for error in summary.errors] == ["strict, slice 2026-01-01"]
    assert any("1 notice waits for the next run" in note.message for note in summary.notes)
    (shop.folder / "notices.jsonl").rmdir()
    shop.run(["clean"], at="2026-01-03")
    notice = json.loads((shop.folder / "notices.jsonl").read_text())
    assert (notice["dataset"], notice["slice"]) == ("clean", DAY)
    assert "orders has 1 more row for it" in notice["message"]
    assert "2 rows after 1 rows" in notice["message"]
    counts = shop.sql("SELECT (SELECT count(*) FROM clean), (SELECT count(*) FROM kept), (SELECT count(*) FROM strict)")
    assert tuple(counts.first()) == (2, 1, 1)
    assert shop.sql("SELECT dataset FROM late_rows").first()["dataset"] == "kept"
    assert shop.ready("kept", DAY).ready
    assert shop.ready("kept", DAY).version == shop.store.receipts.live("kept", DAY).version
    assert json.loads(flag.read_text())["rows"] == 2

    # A run that died before it could write the flag, and a repeat that failed and that nothing asks for any more.
    flag.unlink()
    fail_at("set_aside")
    assert shop.run(["clean"], at="2026-01-03", again=True).state == "failed"
    assert (shop.ready("clean", DAY).ready, flag.exists()) == (False, False)
    arm({})
    assert not shop.run(["clean"], at="2026-01-03").made
    assert (shop.ready("clean", DAY).ready, flag.exists()) == (True, True)

    # Going back: ready again with what was there before, and subscribers hear of it from the next run.
    shop.rollback("clean", to=first.version)
    assert (shop.ready("clean", DAY).version, json.loads(flag.read_text())["rows"]) == (first.version, 1)
    assert shop.store.markers.withdrawn("clean") == []
    shop.run(["clean"], at="2026-01-03")
    assert "rolled back" in (shop.folder / "notices.jsonl").read_text().splitlines()[-1]
    shop.rebuild_store()
    assert shop.ready("clean", DAY).ready
    assert shop.store.markers.list("clean") == []


WAITING = """
    from lakewright import FlagFile, JsonFiles, NextPartition, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    columns = "order_id string, at timestamp"
    shop.source("orders", JsonFiles("landing/orders"), schema=columns, event_time="at")
    shop.source("hours", JsonFiles("landing/hours", ready=NextPartition(), wait_at_most="2 hours"), schema=columns)
    for name in ("a", "b", "c"):
        shop.source(f"flagged_{name}", JsonFiles("landing/flagged", ready=FlagFile("_SUCCESS")), schema=columns)
    shop.sql("clean", "SELECT * FROM orders", event_time="at")
"""


@pytest.mark.shows("02.readiness-marker", 4, 7)
def test_sources_wait_between_runs_and_hold_no_worker(project):
    clock = [datetime(2026, 1, 2, tzinfo=UTC)]
    shop = project({"pipelines/shop.py": WAITING}, now=lambda: clock[0])
    for name, folder in (("d1.json", "orders"), ("hour=10/1.json", "hours"), ("date=2026-01-01/1.json", "flagged")):
        land(shop.folder, name, [order("a", f"{DAY}T10:00:00Z")], folder=folder)
    plan = shop.plan()
    assert plan["hours"].waits == ("landing/hours/hour=10 has no later partition beside it yet",)
    assert plan["flagged_a"].waits == ("landing/flagged/date=2026-01-01 has no _SUCCESS yet",)
    assert not plan["hours"].new
    # Line 7: four that wait, one slot: whatever else there is to do is done, in the same run.
    summary = ok(shop.run(parallel=1))
    assert made(summary) == {("orders", "arrival-1"), ("clean", DAY)}
    assert sorted(note.message for note in summary.notes)[0] == (
        "flagged_a: waiting: landing/flagged/date=2026-01-01 has no _SUCCESS yet"
    )
    assert len(summary.notes) == 4
    assert shop.store.arrivals.last("hours") is None, "what waits is no arrival"
    # Line 4: the limit counts from when the folder was first seen, by the clock of the store.
    clock[0] += timedelta(hours=2)
    assert ok(shop.run(["hours"])).fresh == ["hours"]
    clock[0] += timedelta(minutes=1)
    late = shop.run(["hours", "flagged_a"])
    assert (late.state, late.failed, late.fresh) == ("refused", ["hours"], ["flagged_a"])
    assert (
        str(late.errors[0])
        .partition("hours: ")[2]
        .startswith(
            "landing/hours/hour=10 has no later partition beside it yet; it was first seen at 2026-01-02 00:00 UTC and "
            "may take 2 hours. Nothing was published for it."
        )
    )
    # When 11 appears the consumer of 10 starts, and 11 waits in its turn; a flag opens its folder.
    land(shop.folder, "hour=11/1.json", [order("b", f"{DAY}T11:00:00Z")], folder="hours")
    (shop.folder / "landing/flagged/date=2026-01-01/_SUCCESS").touch()
    (shop.folder / "landing/flagged/date=2026-01-02").mkdir()
    (shop.folder / "landing/flagged/date=2026-01-02/_SUCCESS").touch()  # a marker without data is told, and waits
    summary = ok(shop.run(["hours", "flagged_a"]))
    assert made(summary) == {("hours", "arrival-1"), ("flagged_a", "arrival-1")}
    assert [file[0] for file in shop.store.arrivals.last("hours").window["files"]] == ["hour=10/1.json"]
    assert sorted(note.message for note in summary.notes) == [
        "flagged_a: waiting: landing/flagged/date=2026-01-02 is marked as complete, and holds no file",
        "hours: waiting: landing/hours/hour=11 has no later partition beside it yet",
    ]


def test_options_that_promise_what_cannot_be_kept_are_refused_with_their_place():
    shop = Pipeline("shop", start="2026-01-01")
    immutable = ReadinessMarker(closed="immutable")
    for options, words in (
        ({"event_time": "at", "late": Repair(), "marker": immutable}, r"late=Repair\(\)"),
        ({"marker": immutable}, "no event_time"),
        ({"marker": "COMPLETED"}, "ReadinessMarker"),
    ):
        with pytest.raises(DefinitionError, match=words) as caught:
            shop.sql("gold", "SELECT * FROM clean", **options)
        assert caught.value.file == __file__
    with pytest.raises(ConfigurationError, match="stream"):
        late_policy("raw", {"marker": ReadinessMarker(), "mode": "stream"})
    shop.sql("gold", "SELECT * FROM clean", event_time="at", marker=immutable)
    shop.sql("strict", "SELECT * FROM clean", event_time="at", marker=immutable, late=Fail())
    assert [dataset.late for dataset in shop.datasets] == [Capture(), Fail()]
    for wrong in ({"ready": "_SUCCESS"}, {"wait_at_most": "2 hours"}, {"ready": NextPartition(), "wait_at_most": "2"}):
        with pytest.raises(ConfigurationError):
            JsonFiles("landing", **wrong)
