"""A layout that was declared anew: refused by a run, and put into effect by a rewrite that leaves the rows alone."""

from __future__ import annotations

import pytest

from lakewright.errors import ConfigurationError, MissingColumnsError, TargetError
from lakewright.failpoints import arm
from lakewright.pipelines import repartition
from lakewright.pipelines.code import code_hash
from tests.pipelines.shop import land, made, ok, order, orders_project, rows_of

BY_CUSTOMER = 'layout=HorizontalPartitioner(by=["customer"])'
BY_WEEK = 'layout=HorizontalPartitioner(by=["week"], derive={"week": "weekofyear(at)"})'


def shop_with(project, layout):
    files = orders_project(layout)
    files["pipelines/shop.py"] = files["pipelines/shop.py"].replace(
        "import (AsOf", "import (HorizontalPartitioner, AsOf"
    )
    return project(files)


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


def test_a_table_is_laid_out_anew_in_one_commit_and_nothing_becomes_stale(project, tmp_path):
    shop = shop_with(project, BY_CUSTOMER)
    land(
        tmp_path / "project",
        "a.json",
        [order("o1", "2026-01-01T10:00:00Z"), order("o2", "2026-01-02T10:00:00Z", customer=2)],
    )
    ok(shop.run(at="2026-01-03"))
    before = rows_of(shop, "clean", "order_id", "customer")
    assert shop.repartition("clean").before == ("customer",)
    assert shop.lake.log("clean").latest() == 1, "what is declared already is left alone"

    shop = shop_with(project, BY_WEEK)
    refused = shop.run(["clean"], at="2026-01-03", again=True)
    assert "laid out by customer, and declares week" in str(refused.errors[0])
    assert "lakewright repartition clean" in refused.errors[0].hint
    assert shop.repartition("clean", dry_run=True).rows == 2
    assert shop.lake.log("clean").latest() == 1

    # Killed after the commit, before its receipt: the next run accounts for it.
    arm({"LAKEWRIGHT_FAILPOINT": "rewritten", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    with pytest.raises(Exception, match="rewritten"):
        shop.repartition("clean")
    arm({})
    assert shop.lake.delta_log("clean").partition_columns() == ("_lw_event", "week")
    assert rows_of(shop, "clean", "order_id", "customer") == before
    assert not made(ok(shop.run(at="2026-01-03"))), "the same rows: nobody has to read them again"

    land(tmp_path / "project", "b.json", [order("o3", "2026-01-02T11:00:00Z")])
    assert made(ok(shop.run(at="2026-01-03"))) == {
        ("orders", "arrival-2"),
        ("clean", "2026-01-02"),
        ("daily", "2026-01-02"),
    }
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["o1", "o2", "o3"]

    # Without a layout: the column that only the layout made is left behind.
    shop = shop_with(project, "")
    for column in ("weeks", "_lw_event"):  # not there, or not theirs to drop
        with pytest.raises(MissingColumnsError, match=column):
            shop.repartition("clean", drop=[column])
    assert shop.repartition("clean", drop=["week"]).after == ()
    assert shop.lake.delta_log("clean").partition_columns() == ("_lw_event",)
    ok(shop.run(["clean"], at="2026-01-03", again=True))
    assert rows_of(shop, "clean")[0].asDict().keys() == {"order_id", "at", "customer", "amount"}
    with pytest.raises(ConfigurationError, match="by what arrives"):
        shop.repartition("orders")


def test_a_table_that_somebody_wrote_to_meanwhile_is_put_back(project, tmp_path, monkeypatch):
    shop = shop_with(project, BY_CUSTOMER)
    land(tmp_path / "project", "a.json", [order("o1", "2026-01-01T10:00:00Z")])
    ok(shop.run(at="2026-01-03"))
    path = shop.lake.resolve("clean")
    shop = shop_with(project, BY_WEEK)
    judged = repartition.partition_rows

    def meanwhile(frame, **options):
        frame.write.format("delta").mode("append").save(path)
        return judged(frame, **options)

    monkeypatch.setattr(repartition, "partition_rows", meanwhile)
    with pytest.raises(TargetError, match="put back"):
        shop.repartition("clean")
    assert shop.lake.delta_log("clean").partition_columns() == ("_lw_event", "customer")
    assert len(rows_of(shop, "clean")) == 2, "what the other one wrote is kept"


def test_other_partition_columns_make_nothing_outdated_but_a_derived_column_does(project):
    codes = [code_hash(shop_with(project, layout).graph["clean"]) for layout in ("", BY_CUSTOMER, BY_WEEK)]
    assert codes[0] == codes[1] != codes[2]
