"""A table that somebody else wrote to or vacuumed: told in words, by whichever command meets it first."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from lakewright.cli.failures import describe
from lakewright.cli.main import app
from lakewright.errors import TargetError
from lakewright.patterns.ingestion.own_session import own_session
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of

PINNED = """
    from lakewright import Pinned

    shop.source("rates", JsonFiles("landing/rates"), schema="customer int, rate int")
    shop.sql("latest", "SELECT * FROM rates", writer=Merger(keys=["customer"]))

    @shop.dataset(event_time="at", inputs={"latest": Pinned()})
    def priced(orders, latest):
        return orders.join(latest, "customer", "left")
"""


@pytest.fixture
def shop(project):
    files = orders_project()
    files["pipelines/shop.py"] += PINNED
    opened = project(files)
    land(opened.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    land(opened.folder, "r1.json", [{"customer": 1, "rate": 10}], folder="rates")
    ok(opened.run(at="2026-01-02"))
    land(opened.folder, "r2.json", [{"customer": 1, "rate": 20}], folder="rates")
    ok(opened.run(at="2026-01-02"))
    return opened


def test_somebody_elses_rows_and_vacuum_are_told_in_words(shop, spark):
    def typed(*words: str) -> str:
        return CliRunner().invoke(app, [*words, "--project", str(shop.folder)]).stderr

    # Rows appended by plain Spark: plan, run and status say so, and readers follow.
    clean = shop.lake.resolve("clean")
    spark.read.format("delta").load(clean).write.format("delta").mode("append").save(clean)
    told = "Somebody else wrote version 1 of clean. Its readers are stale. If it was a mistake: `lakewright rollback"
    for _ in range(2):
        assert told in typed("plan", "--at", "2026-01-02")
    assert [s.slice.id for s in shop.plan(at="2026-01-02")["daily"].to_make] == ["2026-01-01"]
    summary = ok(shop.run(at="2026-01-02"))
    assert made(summary) == {("daily", "2026-01-01")}
    assert [note.severity for note in summary.notes if told in note.message] == ["warning"]
    assert told.replace("Somebody", "clean: Somebody") in typed("status")
    assert rows_of(shop, "daily", "orders")[0]["orders"] == 2
    # A run tells it once; rows that no step reads are told as such, in a table that nobody reads too.
    spark.sql(f"INSERT INTO delta.`{shop.lake.resolve('daily')}` (amount) VALUES (7)")
    summary = ok(shop.run(at="2026-01-02"))
    assert not summary.made
    assert ["daily. Its rows have no event cell" in note.message for note in summary.notes] == [True]
    assert not ok(shop.run(at="2026-01-02")).notes

    # Vacuumed: what needs the older version names it, and what to do. Nothing changes.
    land(shop.folder, "d2.json", [order("b", "2026-01-01T11:00:00Z")])
    ok(shop.run(at="2026-01-02"))
    with own_session(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}) as careless:
        for name in ("clean", "latest"):
            careless.sql(f"VACUUM delta.`{shop.lake.resolve(name)}` RETAIN 0 HOURS")
    before = rows_of(shop, "clean")
    with pytest.raises(TargetError, match="version 0 can no longer be restored") as caught:
        shop.rollback("clean", to=0)
    lines = describe(caught.value).lines()
    assert "Somebody ran VACUUM" in lines[0]
    assert "`lakewright backfill`" in lines[1]
    summary = shop.run(["priced"], at="2026-01-02", again=True, slices=["2026-01-01"])
    assert isinstance(summary.errors[0], TargetError)
    assert "reads latest as it was at version 1, and 1 of that version's files are gone" in str(summary.errors[0])
    assert "inputs={'latest': Whole()}" in str(summary.errors[0])
    assert rows_of(shop, "clean") == before
    assert not ok(shop.run(at="2026-01-02")).made
