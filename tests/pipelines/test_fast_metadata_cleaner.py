"""Fast Metadata Cleaner in a pipeline: a slice is a table behind the view, made again by TRUNCATE or DROP."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from lakewright import Pipeline
from lakewright.connectors.postgres_part_tables import PostgresParts
from lakewright.errors import ConfigurationError, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.identity import Identity
from lakewright.model.policies import Capture, Fail, LatePolicy, Repair, Revisit
from lakewright.patterns.idempotency.merger import Merger
from lakewright.store import this_process
from tests.connectors.test_postgres_table import Database, shop_files
from tests.pipelines.shop import land, made, ok, order

ASKED = "SELECT day::text, amount::int, _lw_event FROM daily ORDER BY 1"


@pytest.fixture
def database(postgres, monkeypatch) -> Database:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    yield Database(postgres.database())
    arm({})


def failing_at(name: str) -> None:
    arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})


def test_a_slice_is_a_table_that_is_made_again_whole_and_once(project, database):
    files = shop_files(database)
    declared = files["pipelines/shop.py"].replace(
        'PostgresTable("db", "daily")', 'PostgresParts("db", "daily", clean="drop")'
    )
    shop = project(
        files | {"pipelines/shop.py": declared.replace("Pipeline, PostgresTable", "Pipeline, PostgresParts")}
    )

    def tables() -> list[str]:
        asked = "SELECT tablename FROM pg_tables WHERE tablename ~ '^(daily|_lw_new|_lw_stage)' ORDER BY 1"
        return [name for (name,) in database.rows(asked)]

    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T11:00:00Z", 2)])
    ok(shop.run(at="2026-01-03"))
    assert tables() == ["daily_d20260101", "daily_d20260102"]
    land(shop.folder, "d2.json", [order("c", "2026-01-01T12:00:00Z", 1)])
    for place in ("staged", "committed.main"):
        failing_at(place)
        assert isinstance(shop.run(at="2026-01-03").errors[0], FailpointReached)
        arm({})
        late = 5 if place == "staged" else 6
        assert database.rows(ASKED) == [("2026-01-01", late, "2026-01-01"), ("2026-01-02", 2, "2026-01-02")]
    ok(shop.run(at="2026-01-03"))
    both = ["2026-01-01", "2026-01-02"]
    again = made(ok(shop.run(["daily"], at="2026-01-03", again=True, slices=both)))
    assert again == {("daily", day) for day in both}
    assert database.rows(ASKED) == [("2026-01-01", 6, "2026-01-01"), ("2026-01-02", 2, "2026-01-02")]
    live = shop.store.receipts.live_slices("daily").keys()
    shop.rebuild_store()
    assert shop.store.receipts.live_slices("daily").keys() == live
    assert not ok(shop.run(at="2026-01-03")).outcomes

    # The step gains a column: all parts have it before the data comes, and those that are not made again read NULL.
    assert "sum(amount) AS amount" in declared
    gained = declared.replace("sum(amount) AS amount", "max(amount) AS most, sum(amount) AS amount")
    gained = gained.replace("Pipeline, PostgresTable", "Pipeline, PostgresParts")
    shop = project({"pipelines/shop.py": gained})
    ok(shop.run(["daily"], at="2026-01-03", again=True, slices=["2026-01-02"]))
    assert database.rows("SELECT day::text, amount::int, most FROM daily ORDER BY 1") == [
        ("2026-01-01", 6, None), ("2026-01-02", 2, 2),
    ]  # fmt: skip
    shop = project({"pipelines/shop.py": gained.replace("max(amount) AS most, ", "")})
    lost = shop.run(["daily"], at="2026-01-03", again=True, slices=["2026-01-02"]).errors[0]
    assert isinstance(lost, SchemaChangeError)
    # One that is retyped is refused before a row is rounded or a column added.
    wider = gained.replace("sum(amount) AS amount", "CAST(sum(amount) AS DECIMAL(12,4)) AS amount, 1 AS further")
    shop = project({"pipelines/shop.py": wider})
    retyped = shop.run(["daily"], at="2026-01-03", again=True, slices=["2026-01-02"]).errors[0]
    assert isinstance(retyped, SchemaChangeError)
    assert "the column amount is bigint in the table and numeric(12,4) in the rows" in str(retyped)
    assert database.rows("SELECT * FROM pg_attribute WHERE attname = 'further'") == []
    shop = project({"pipelines/shop.py": gained.replace('clean="drop")', 'clean="drop", freeze_after="90 days")')})

    def backfill() -> list[str]:
        names, wish = shop.backfill_wish("2026-01-01", "2026-01-03", select=["daily"], outdated=False)
        return [line for line in shop.plan_backfill(names, wish).warnings if "frozen" in line]

    # What is older becomes read-only by `lakewright maintain`, and plans tell of it.
    into, april = shop.graph["daily"].into, datetime(2026, 4, 2, tzinfo=UTC)
    assert backfill() == []
    would = into.maintain("daily", connections=database.connections, dry_run=True, now=april)
    assert would == (True, "1 slices to freeze; 2 of at most 400 tables")
    assert tables() == ["daily_d20260101", "daily_d20260102"]
    done = into.maintain("daily", connections=database.connections, dry_run=False, now=april)
    assert done == (True, "1 slices frozen in daily_frozen_20260101_20260102; 2 of at most 400 tables")
    assert tables() == ["daily_d20260102", "daily_frozen_20260101_20260102"]
    assert backfill() == ["daily 2026-01-01: frozen in a read-only table of db: daily: it will be refused."]
    assert backfill()[0].removeprefix("daily ") in shop.plan(["daily"], at="2026-01-03").backfill_limits["daily"]
    owner = this_process()
    shop.store.leases.register(owner, timedelta(minutes=1), shop._now())
    shop.store.leases.acquire("daily", "2026-01-02", owner_id=owner.owner_id, run_id="r9", now=shop._now())
    (left,) = shop.maintain().outcomes
    assert (left.state, left.reason) == ("left", "run r9 writes to it just now")
    shop.store.leases.forget(owner.owner_id)
    (frozen,) = shop.maintain().outcomes
    assert (frozen.dataset, frozen.state) == ("daily", "done")
    assert tables() == ["daily_frozen_20260101_20260103"]
    (nothing,) = shop.maintain().outcomes
    assert (nothing.state, nothing.reason) == ("nothing", "1 of at most 400 tables; none to freeze")
    refused = shop.run(["daily"], at="2026-01-03", again=True, slices=["2026-01-01"]).errors[0]
    assert isinstance(refused, TargetError)
    assert "is frozen" in str(refused)
    assert database.rows(ASKED) == [("2026-01-01", 6, "2026-01-01"), ("2026-01-02", 2, "2026-01-02")]


def test_late_rows_of_a_frozen_slice_are_held_and_the_run_goes_on(project, database):
    declared = shop_files(database)["pipelines/shop.py"].replace("Pipeline, PostgresTable", "Pipeline, PostgresParts")
    declared = declared.replace('PostgresTable("db", "daily")', 'PostgresParts("db", "daily", freeze_after="30 days")')
    shop = project(shop_files(database) | {"pipelines/shop.py": declared})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T11:00:00Z", 2)])
    ok(shop.run(at="2026-01-03"))
    into, february = shop.graph["daily"].into, datetime(2026, 2, 1, tzinfo=UTC)
    done, said = into.maintain("daily", connections=database.connections, dry_run=False, now=february)
    assert (done, said.split(" ")[:3]) == (True, ["1", "slices", "frozen"])

    land(shop.folder, "d2.json", [order("c", "2026-01-01T12:00:00Z", 1), order("d", "2026-01-02T12:00:00Z", 3)])
    ok(shop.run(at="2026-02-01"))
    now = [("2026-01-01", 5, "2026-01-01"), ("2026-01-02", 5, "2026-01-02")]
    assert database.rows(ASKED) == now
    (state,) = shop.plan(at="2026-02-01")["daily"].states
    assert (state.slice.id, state.status, state.make) == ("2026-01-01", "held", False)
    assert "its destination holds it read-only" in state.reason
    kept = shop.sql("SELECT dataset, slice, get_json_object(record, '$.order_id') FROM late_rows").collect()
    assert [tuple(row) for row in kept] == [("daily", "2026-01-01", "c")]
    assert not ok(shop.run(at="2026-02-01")).made
    # Who asks for it is told that it cannot be.
    (refused,) = shop.run(["daily"], at="2026-02-01", again=True, slices=["2026-01-01"]).errors
    assert "is frozen" in str(refused)


def test_a_month_or_a_week_is_a_table_and_an_attempt_that_was_overtaken_changes_nothing(spark, database):
    def opened(slice_id: str, number: int, view: str = "monthly", every: str = "month"):
        into, identity = PostgresParts("db", view, every=every), Identity(view, slice_id, number, f"run-{number}")
        connections = database.connections
        return into.open(view, identity, connections=connections, spark=spark, still_mine=lambda: True)

    for number, rows in ((2, [(1,), (2,)]), (3, [(3,)])):
        frame = spark.createDataFrame(rows, "n int")
        assert opened("2026-02", number).replace(frame, where="").metrics == {"numOutputRows": len(rows)}
    assert opened("2026-02", 1).replace(frame, where="") is None, "overtaken"
    assert opened("2026-02", 4).touch() is not None
    assert database.rows("SELECT * FROM monthly_m20260201") == database.rows("SELECT * FROM monthly") == [(3,)]
    with pytest.raises(ConfigurationError, match="hold one month each, and the slice is none"):
        opened("2026-02-01", 9).replace(frame, where="")
    # A week of ISO is one table, also over New Year.
    assert opened("2026-W01", 1, "weekly", "week").replace(frame, where="") is not None
    assert database.rows("SELECT * FROM weekly_w20251229") == database.rows("SELECT * FROM weekly") == [(3,)]
    told = database.rows("SELECT starts, ends, cardinality(loaded) FROM _lw_parts WHERE view = 'weekly'")
    assert told == [(date(2025, 12, 29), date(2026, 1, 5), 7)]


def test_what_cannot_be_cleaned_so_is_refused_when_it_is_declared():
    with pytest.raises(ConfigurationError, match="TRUNCATE and DROP know whole tables only"):
        PostgresParts("db", "daily").check_writer("daily", Merger(keys=["day"]))
    into = PostgresParts("db", "daily", freeze_after="30 days")
    for late in (Repair(within="31 days"), Revisit(last="5 weeks")):
        with pytest.raises(ConfigurationError, match=r"daily: Re\w+ reaches further back than freeze_after='30 days'"):
            declare_daily(into, late)
    for late in (Repair(within="30 days"), Revisit(last="2 days"), Repair(), Capture(), Fail()):
        declare_daily(into, late)
    declare_daily(PostgresParts("db", "daily"), Repair(within="31 days"))
    wrongs = [{"connection": ""}, {"every": "year"}, {"clean": "delete"}, {"view": ""}]
    for wrong in (*wrongs, {"freeze_after": "2 hours"}, {"freeze_after": "a while"}):
        with pytest.raises(ConfigurationError):
            PostgresParts(**{"connection": "db", "view": "daily", **wrong})


def declare_daily(into: PostgresParts, late: LatePolicy) -> None:
    Pipeline("shop", start="2026-01-01").sql("daily", "SELECT * FROM orders", event_time="day", into=into, late=late)
