"""Dead letters count while the rows that they belong to are published, whatever later attempts set aside."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from lakewright.errors import LimitExceeded, UnknownNameError
from lakewright.lake.side_tables import DEAD_LETTERS
from lakewright.model.times import utc_now
from lakewright.pipelines.capture import still_late
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.replay_records import Edits
from lakewright.pipelines.runner import Runner
from tests.pipelines.dying import dying_after_commit
from tests.pipelines.shop import land, ok, order, orders_project, rows_of

FIRST = "2026-01-01T10:00:00Z"
RULE = """guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"}, stop_above=0.7),
                                WindowedDeduplicator(keys=["order_id"], dropped="keep")]}"""
NO_ID = ["{}"]  # a NULL is left out of the text


def counted(shop) -> list[tuple[str, int, int]]:
    return [(one.dataset, one.open, one.evidence) for one in shop.count_dead_letters()]


def viewed(shop, name: str = "dead_letters") -> list[str]:
    return [row["record"] for row in shop.sql(f"SELECT record FROM {name}").collect()]


@pytest.mark.shows("03.dead-letter", 3, 4)
def test_letters_belong_to_what_is_published_and_those_of_a_failed_attempt_are_evidence(project, failing):
    shop = project(orders_project(RULE))
    land(shop.folder, "d1.json", [order("a", FIRST), order("a", FIRST), order("b", FIRST), order(None, FIRST)])
    ok(shop.run(at="2026-01-02"))
    published = rows_of(shop, "clean")
    assert (counted(shop), viewed(shop), len(viewed(shop, "repeats"))) == ([("clean", 1, 0)], NO_ID, 1)

    # A rule is mistyped, and the limit fires: nothing is published, and the rows are kept as evidence.
    strict = project(orders_project(RULE.replace("order_id IS NOT NULL", "order_id = 'z'")))
    (refused,) = strict.run(["clean"], at="2026-01-02", again=True).errors
    assert isinstance(refused, LimitExceeded)
    assert "dead-letters list clean --slice 2026-01-01 --state evidence" in str(refused)
    assert (counted(strict), viewed(strict)) == ([("clean", 1, 3)], NO_ID)
    evidence = strict.dead_letters(Selection("clean", states=("evidence",))).collect()
    assert sorted(row["record"] for row in evidence) == ['{"order_id":"a"}', '{"order_id":"a"}', '{"order_id":"b"}']
    # Files of both are joined: what is copied out of them, to stay, is not taken for rows of the next attempt.
    strict.maintain(everything=True)
    (refused,) = strict.run(["clean"], at="2026-01-02", again=True).errors
    assert (refused.rows, counted(strict)) == (4, [("clean", 1, 3)])

    # The edit is undone: by its code the slice is fresh, and its letter is the one that it has.
    shop = project(orders_project(RULE))
    assert ok(shop.run(at="2026-01-02")).made == []
    assert (rows_of(shop, "clean"), viewed(shop)) == (published, NO_ID)

    # Too loose, and the step fails: the row that is not in the output is still in the letters.
    loose = project(orders_project(RULE.replace("order_id IS NOT NULL", "true")))
    failing("private_written")
    assert loose.run(["clean"], at="2026-01-02", again=True).state == "failed"
    assert (rows_of(loose, "clean"), counted(loose), viewed(loose)) == (published, [("clean", 1, 0)], NO_ID)

    # Without the guards all rows are in the output, and none is set aside; taken back, it is as it was.
    bare = project(orders_project(""))
    ok(bare.run(["clean"], at="2026-01-02", again=True))
    assert (len(rows_of(bare, "clean")), counted(bare), viewed(bare), viewed(bare, "repeats")) == (4, [], [], [])
    bare.rollback("clean")
    assert (rows_of(bare, "clean"), viewed(bare), len(viewed(bare, "repeats"))) == (published, NO_ID, 1)

    # Under another name, or taken out: what is left of it can be looked at, and closed.
    renamed = project({name: text.replace("clean", "tidy") for name, text in orders_project(RULE).items()})
    assert counted(renamed) == [("clean", 1, 0)]
    for name in ("cleen", "tidie"):
        with pytest.raises(UnknownNameError, match=name):
            renamed.dead_letters(Selection(name))
    assert renamed.retire_dead_letters(Selection("clean", reasons=("has_id",)), because="renamed") == 1
    assert counted(renamed) == [("clean", 0, 0)]


def test_an_attempt_whose_successor_ends_as_well_keeps_its_letters_and_is_settled_before_a_third_begins(
    project, monkeypatch, failing
):
    shop = project(orders_project(f"{RULE}, retries=2"))
    land(shop.folder, "d1.json", [order("a", FIRST), order(None, FIRST)])
    ok(shop.run(["orders"], at="2026-01-02"))
    monkeypatch.setattr(Runner, "_wait_after", lambda *_: None)
    fence, away = shop.lake.fence, [ConnectionError("the server is away")]

    def fails_once(*told) -> None:
        if away:
            raise away.pop()
        fence(*told)

    monkeypatch.setattr(shop.lake, "fence", fails_once)
    # The first commits and leaves no receipt, the second ends while it takes over, the third would end half-way.
    failing("private_written:2")
    with dying_after_commit(shop, "clean", ConnectionError("the store is away"), times=1):
        summary = shop.run(["clean"], at="2026-01-02")
    assert (summary.errors, away) == ([], [])
    assert [(one.state, one.attempts) for one in summary.outcomes] == [("recovered", 3)]
    assert not shop.store.steps.open_steps()
    assert (counted(shop), viewed(shop), len(rows_of(shop, "clean"))) == ([("clean", 1, 0)], NO_ID, 1)


KEPT = """guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"}, keep="90 days")]}"""
SOURCE = 'event_time="at", keep_letters="90 days")'


def lying(shop) -> list[tuple[object, ...]]:
    every = shop.dead_letters(Selection(states=("open", "corrected", "retired"))).orderBy("dataset").collect()
    return [(row["dataset"], row["state"], row["record"], row["raw"], row["note"]) for row in every]


def test_letters_are_kept_from_the_first_time_on_and_closed_ones_are_forgotten(project):
    files = orders_project(KEPT)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace('event_time="at")', SOURCE, 1)
    shop = project(files)
    land(shop.folder, "d1.json", [order("a", FIRST), order(None, FIRST), "{"])
    ok(shop.run(at="2026-01-02"))
    # Made again just now, its letter is not younger for it.
    ok(shop.run(["clean"], at=utc_now(), again=True, slices=["2026-01-01"]))
    assert {one.oldest.isoformat()[:10] for one in shop.count_dead_letters()} == {"2026-01-02"}

    def maintained() -> list[str]:
        found = shop.maintain(["orders", "clean"]).outcomes
        return [one.reason for one in found if one.dataset.startswith("dead letters of")]

    assert maintained() == ["1 open for longer than kept: retired; 0 closed ones forgotten"] * 2
    note = "older than 90 days"
    assert lying(shop) == [("clean", "retired", "{}", None, note), ("orders", "retired", "{}", "{", note)]

    # As long again after that nothing of what they said is left; that they are retired is, while they are set aside.
    now = shop._now
    shop._now = lambda: now() + timedelta(days=91)
    for forgotten in (1, 0):
        assert maintained() == [f"0 open for longer than kept: retired; {forgotten} closed ones forgotten"] * 2
        assert lying(shop) == [(name, "retired", None, None, note) for name in ("clean", "orders")]
    shop._now = now
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace("order_id IS NOT NULL", "true")
    shop = project(files)
    ok(shop.run(["clean"], at="2026-01-02", again=True))
    now = shop._now
    shop._now = lambda: now() + timedelta(days=91)
    assert maintained()[1] == "0 open for longer than kept: retired; 1 closed ones forgotten"
    assert [name for name, *_ in lying(shop)] == ["orders"]


def test_letters_are_counted_also_since_a_time_that_their_history_reaches_no_more(project):
    shop = project(orders_project(KEPT))
    for day in (1, 2):
        land(shop.folder, f"d{day}.json", [order(None, f"2026-01-0{day}T10:00:00Z"), order("a", FIRST)])
        ok(shop.run(at=f"2026-01-0{day + 1}"))
    # Delta gives no version that is older than its files are kept: a week.
    first = Path(shop.lake.resolve(DEAD_LETTERS)) / "_delta_log" / f"{0:020d}.json"
    os.utime(first, (first.stat().st_mtime - 8 * 86_400,) * 2)
    (counts,) = shop.count_dead_letters(since=shop.lake.log(DEAD_LETTERS).committed_at(1))
    assert (counts.open, counts.new) == (2, 0)


LATE = """
    from lakewright import JsonFiles, LateDataDetector, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_id"]), guards_in={"orders": [
        LateDataDetector("1 hour", stop_above=0.6)]})
    def known(orders):
        return orders
"""


def test_late_rows_that_belong_to_what_is_published_are_not_replaced_by_an_attempt_that_failed(project, failing):
    shop = project({"pipelines/shop.py": LATE})
    land(shop.folder, "a1.json", [order("a", FIRST)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "a2.json", [order("b", "2026-01-01T08:30:00Z"), order("c", "2026-01-01T09:30:00Z")])
    ok(shop.run(at="2026-01-02"))

    def late(opened) -> list[str]:
        return sorted(json.loads(record)["order_id"] for record in viewed(opened, "late_rows"))

    published = rows_of(shop, "known")
    assert (len(published), late(shop)) == (2, ["b"])
    # The limit fires, and its row is not told twice; then nothing is late, and the step fails: neither has published.
    strict = project({"pipelines/shop.py": LATE.replace("0.6", "0.4")})
    (refused,) = strict.run(["known"], at="2026-01-02", again=True, slices=["arrival-2"]).errors
    assert (type(refused), late(strict)) == (LimitExceeded, ["b"])
    loose = project({"pipelines/shop.py": LATE.replace('"1 hour"', '"9 hours"')})
    again = {"again": True, "slices": ["arrival-1", "arrival-2"]}
    failing("private_written:2")
    assert loose.run(["known"], at="2026-01-02", **again).state == "failed"
    assert late(loose) == ["b"]
    ok(loose.run(["known"], at="2026-01-02", **again))
    assert (len(rows_of(loose, "known")), late(loose)) == (3, [])


def test_late_rows_that_a_later_attempt_did_not_set_aside_are_in_the_output(spark):
    rows = [("taken", "arrival-1", 1), ("taken", "arrival-2", 4), ("streamed", "arrival-1", 1)]
    late = spark.createDataFrame(rows, "dataset string, slice string, number bigint")
    lake = SimpleNamespace(read=lambda *_, **__: late, session=lambda: spark)
    receipts = SimpleNamespace(live_numbers=lambda name: {"arrival-1": 2, "arrival-2": 4})
    graph = MagicMock(slicing={name: SimpleNamespace(kind="arrival") for name in ("taken", "streamed")})
    graph.__getitem__.side_effect = lambda name: SimpleNamespace(is_source=False, is_stream=name == "streamed")
    held = still_late(lake, SimpleNamespace(receipts=receipts), graph).collect()
    assert sorted(map(tuple, held)) == [("streamed", "arrival-1", 1), ("taken", "arrival-2", 4)]


def test_what_attempts_said_that_count_no_longer_or_never_did_is_forgotten_too(project):
    def shop_with(rule: str):
        guards = KEPT.replace('"order_id IS NOT NULL"', f'"{rule}"').replace("keep=", "stop_above=0.7, keep=")
        return project(orders_project(guards))

    shop = shop_with("order_id IS NOT NULL")
    for day in ("01", "02", "03"):
        at = f"2026-01-{day}T10:00:00Z"
        land(shop.folder, f"d{day}.json", [order(f"o{day}", at), order(None, at)])
    ok(shop.run(at="2026-01-04"))
    # One is corrected, one is good by another rule, and of the third day an attempt publishes nothing.
    ok(
        shop.replay_dead_letters(
            Selection("clean", slices=("2026-01-01",)), Edits(columns={"order_id": "n1"}), at="2026-01-04"
        ).run
    )
    ok(shop_with("true").run(["clean"], at="2026-01-04", again=True, slices=["2026-01-02"]))
    shop = shop_with("amount > 5")
    assert shop.run(["clean"], at="2026-01-04", again=True, slices=["2026-01-03"]).state != "ok"

    def told() -> list[tuple[str, bool]]:
        rows = shop.lake.read(DEAD_LETTERS, system_columns=True)
        found = rows.selectExpr("slice", "record IS NOT NULL AS told").distinct().collect()
        return sorted((row["slice"], row["told"]) for row in found)

    def maintained() -> list[str]:
        return [one.reason for one in shop.maintain(["clean"]).outcomes if one.dataset.startswith("dead letters of")]

    # What was corrected, or is only being retired, is told for as long again.
    for forgotten in (2, 0):
        retired = forgotten // 2
        assert maintained() == [f"{retired} open for longer than kept: retired; {forgotten} closed ones forgotten"]
        assert told() == [("2026-01-01", True), ("2026-01-02", False), ("2026-01-03", False), ("2026-01-03", True)]
    now = shop._now
    shop._now = lambda: now() + timedelta(days=91)
    for forgotten in (2, 0):
        assert maintained() == [f"0 open for longer than kept: retired; {forgotten} closed ones forgotten"]
        assert told() == [("2026-01-01", False), ("2026-01-02", False), ("2026-01-03", False)]
