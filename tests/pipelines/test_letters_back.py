"""After a rollback the dead letters are those of the attempts that count again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from pyspark.sql import functions as F

from lakewright.errors import LeaseHeldError
from lakewright.lake.letter_places import RECORD_ID
from lakewright.lake.side_tables import DEAD_LETTERS, dead_letter_rows
from lakewright.model.identity import Identity
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.slices import WHOLE
from lakewright.model.times import utc_now
from lakewright.pipelines import recover
from lakewright.pipelines.corrections import follow_arrival
from lakewright.pipelines.dead_letters import Selection
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.letters_back import bring_letters_back
from lakewright.pipelines.replay_records import Edits
from lakewright.pipelines.workshop import Workshop
from lakewright.store import Grant, open_store
from tests.pipelines.shop import made, ok, rows_of

PIPELINE = """
    from lakewright import CsvFiles, DeadLetter, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", CsvFiles("landing"), schema="order_id string, at timestamp", event_time="at")

    @shop.dataset(event_time="at", guards_in={"orders": [DeadLetter(rules={"has_id": "order_id IS NOT NULL"})]})
    def clean(orders):
        return orders
"""
ORDERS = """order_id,at,note
a,2026-01-01 10:00:00,x
,2026-01-01 11:00:00,x
b,2026-01-02 10:00:00,x
,2026-01-02 11:00:00,x
"""


def test_a_letter_that_was_replayed_is_open_again_where_its_slice_is_rolled_back(project):
    shop = project({"pipelines/shop.py": PIPELINE, "landing/d1.csv": ORDERS})
    began = utc_now()
    tomorrow = began + timedelta(days=1)  # so that every letter was judged after any of the times asked for
    ok(shop.run(at=tomorrow))
    replayed_from = utc_now()
    chosen = Selection("clean", slices=("2026-01-01",))
    replayed = shop.replay_dead_letters(chosen, Edits(columns={"order_id": "n"}), at=tomorrow)
    assert (replayed.corrected, len(rows_of(shop, "clean"))) == (1, 3)
    assert shop.sql("SELECT * FROM dead_letters").count() == 1
    # Made once more, the letters of the first time are in the history of the table alone.
    ok(shop.run(["clean"], at=tomorrow, again=True, slices=["2026-01-01"]))

    # The table is back, and another run has taken over before the letters are: they stay, and the next run's recovery
    # brings them back; so does the one after it, where that fails as well.
    def taken_over(tools: Workshop, dataset: Dataset, grant: Grant) -> object:
        tools.store.leases.release(grant.dataset, grant.slice_id, grant.number)
        return bring_letters_back(tools, dataset, grant)

    with patch("lakewright.pipelines.rollback.bring_letters_back", taken_over), pytest.raises(LeaseHeldError):
        shop.rollback("clean", to=1)
    assert shop.sql("SELECT * FROM dead_letters").count() == 1
    with patch("lakewright.pipelines.recover.bring_letters_back", taken_over), pytest.raises(LeaseHeldError):
        shop.run(["clean"], at=tomorrow)
    went_on = ok(shop.run(["clean"], at=tomorrow))
    assert not made(went_on)
    assert "its commit was found in the log" in str(went_on.notes[0])
    assert not shop.store.steps.open_steps()
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    assert shop.store.receipts.live("clean", "2026-01-01").counters.rejected == {"has_id": 1}
    found = {row["slice"]: (row["state"], row["attempts"]) for row in shop.dead_letters().collect()}
    assert found == {"2026-01-01": ("open", 1), "2026-01-02": ("open", 0)}
    assert shop.sql("SELECT * FROM dead_letters").count() == 2
    # What lies there again was set aside before: it is no news.
    assert [[one.new for one in shop.count_dead_letters(since=since)] for since in (began, replayed_from)] == [[2], [0]]

    # Taken back from before it was made for the first time, a slice has no letters: not as SQL either.
    shop.rollback("clean", to=0)
    (first,) = shop.store.receipts.live_slices("clean")
    assert [row["slice"] for row in shop.sql("SELECT slice FROM dead_letters").collect()] == [first]

    # By another schema a record of CSV is told by another hash: its correction does not count beside it.
    shop = project({"pipelines/shop.py": PIPELINE.replace("at timestamp", "at timestamp, note string")})
    (shop.folder / "landing" / "d2.csv").write_text("order_id,at,note\nc,,x\n", encoding="utf-8")
    ok(shop.run(["orders"], at=tomorrow))
    ok(shop.backfill("2026-01-01", "2026-01-03", at=tomorrow, sources=True))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    told = [one.message for one in shop.store.findings.latest("orders") if one.subject == "corrections"]
    assert [one.startswith("1 corrections of orders were given up: arrival-1 was read again") for one in told] == [True]
    states = shop.dead_letters(Selection(states=("open", "corrected", "retired"))).groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in states} == {"open": 3, "retired": 1}

    # So it is with a source, which keeps the rows: they are told anew under the number that counts again.
    shop.rollback("orders")
    told = shop.sql("SELECT slice, number FROM dead_letters WHERE dataset = 'orders'").collect()
    assert [tuple(row) for row in told] == [("arrival-2", shop.store.receipts.live("orders", "arrival-2").number)]


def test_letters_that_are_no_longer_kept_are_told():
    def receipt(slice_id: str, number: int, state: str, rejected: int) -> Receipt:
        told = Receipt("clean", slice_id, "data", number, number - 1, number, datetime(2026, 1, 3, tzinfo=UTC))
        return replace(told, state=state, counters=Counters(rejected={"has_id": rejected}))

    # Attempts 1 and 2 count again, whose files are gone; the second had rejected nothing.
    history = [receipt("2026-01-01", 1, "live", 3), receipt("2026-01-02", 2, "live", 0)]
    history += [receipt("2026-01-01", 3, "rolled back", 0), receipt("2026-01-02", 4, "rolled back", 5)]
    commits = [
        Commit(place, datetime(2026, 1, 3, tzinfo=UTC), "WRITE", identity.to_json(), {}, {})
        for place, identity in enumerate(
            Identity("clean", one.slice_id, one.number, "r", part="dead_letters") for one in history
        )
    ]
    # So has an attempt whose slice was taken back, with its letters, until that was rolled back as well.
    history += [receipt("arrival-1", 5, "live", 4), receipt("arrival-2", 6, "live", 2)]
    history.append(replace(receipt("arrival-2", 7, "live", 0), kind="rewind"))
    for one, operation in zip(history[4:], ("WRITE", "WRITE", "DELETE"), strict=True):
        identity = Identity("clean", one.slice_id, one.number, "r", part="dead_letters")
        commits.append(Commit(len(commits), one.committed_at, operation, identity.to_json(), {}, {}))
    log = SimpleNamespace(exists=lambda: True, bounds=lambda: (0, 6), commit=lambda version: commits[version])
    lost = [f"file:/lake/{DEAD_LETTERS}/dataset=clean/slice={one.slice_id}/input=orders/part-0" for one in history]
    lake = SimpleNamespace(log=lambda name: log, delta_log=lambda name: log, lost_files=lambda name, version: lost)
    receipts = SimpleNamespace(since=lambda *args, **kinds: history)
    shop = SimpleNamespace(lake=lake, store=SimpleNamespace(receipts=receipts))
    told = bring_letters_back(shop, SimpleNamespace(name="clean", is_source=False, is_stream=False), None)
    assert [one.slice_id for one in told] == ["2026-01-01", "arrival-2"]
    assert "3 of its rows were set aside" in told[0].message


def test_a_correction_of_a_record_that_its_topic_no_longer_holds_is_given_up_with_its_letter(spark):
    place = "_lw_topic string, _lw_partition int, _lw_offset bigint"
    bronze = spark.createDataFrame([], f"{place}, _lw_arrival bigint, _lw_event string")
    kept = f"{place}, _lw_part string, _lw_occurrence int, _lw_arrival bigint, _lw_event string"
    corrections = spark.createDataFrame([("t", 0, 7, "in", 1, 1, "2026-01-01")], kept)
    set_aside = spark.createDataFrame([("t", 0, 7), ("t", 0, 8)], place)
    told = dead_letter_rows(
        set_aside,
        reasons=F.array(F.lit("has_id")),
        identity=Identity("raw", "arrival-1", 1, "r"),
        input_name="raw",
        keep=(),
    )
    letters = told.withColumn("id", F.expr(RECORD_ID)).withColumn("state", F.lit("corrected"))
    shop, source = MagicMock(), SimpleNamespace(name="raw", is_replaced=False)
    shop.lake.read.side_effect = lambda name, **_: bronze if name == "raw" else corrections
    module, retired = "lakewright.pipelines.corrections", []

    def note_life(shop, closed, *_, **__):
        retired.extend(row["offset"] for row in closed.collect())
        raise ValueError("killed here")

    with (
        patch(f"{module}.all_letters", return_value=letters),
        patch(f"{module}.note_life", note_life),
        pytest.raises(ValueError, match="killed here"),
    ):
        follow_arrival(shop, source, Identity("raw", "arrival-1", 2, "r"), 1, None)
    assert retired == [7]
    (finding,) = shop.store.findings.add.call_args.args[0]
    assert finding.message.startswith("1 corrections of raw were given up: arrival-1 was read again, and the topic no")


def test_a_rollback_that_died_is_settled_when_its_letters_are_back_and_not_before(tmp_path):
    now, looked = utc_now(), []
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        store.receipts.add([Receipt("clean", "2026-01-01", "data", v, v - 1, v + 1, now) for v in (0, 1)])
        store.steps.open(
            run_id="dead", dataset="clean", slice_id=WHOLE.id, number=7, attempt=1, reason="rollback to version 0",
            outputs=["clean"], now=now,
        )  # fmt: skip
        found = [((), (Receipt("clean", WHOLE.id, "restore", 2, 1, 7, now, inputs={"orders": 3}),)), ((), ())]
        shop = MagicMock(store=store, now=lambda: now)
        shop.run.run_id = "next"
        dataset: Any = SimpleNamespace(name="clean", is_stream=False, is_source=False)

        def letters(*_):
            looked.append(store.steps.open_steps())
            if len(looked) == 1:
                raise LeaseHeldError("killed here", name="clean", owner="nobody")
            return ()

        nothing = dict.fromkeys(("change_notices", "warnings_of", "partial_findings", "set_flag"), lambda *_: ())
        told = {"_found": lambda *_: found.pop(0), "bring_letters_back": letters, "restored_version": lambda _: 0}
        with patch.multiple(recover, **told, **nothing):
            (step,) = store.steps.open_steps()
            with pytest.raises(LeaseHeldError):
                recover._settle(shop, dataset, step, None)
            assert [one.state for one in store.receipts.since("clean", -1, 9, kinds=("data",))] == [
                "live",
                "rolled back",
            ]
            assert store.steps.open_steps() == [step]
            assert recover._settle(shop, dataset, step, None)[0].version == 2
        assert looked == [[step], [step]]
        assert store.steps.open_steps() == []
        settled = store.steps.last("clean")
        assert settled is not None
        assert settled.state == "recovered"
