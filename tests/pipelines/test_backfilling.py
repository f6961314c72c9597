"""What a backfill does to a dataset, and where it says that it cannot be exact."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import patch

from typer.testing import CliRunner

from lakewright import JsonFiles, Merger, Pinned, Pipeline, PostgresTable, StatefulMerger
from lakewright.cli.main import app
from lakewright.model.slices import Slice
from lakewright.pipelines.backfilling import backfill_cautions, backfill_limits, effect_of
from lakewright.pipelines.states import DatasetPlan, SliceState
from lakewright.store import open_store
from tests.pipelines.lab import LOOKED_AT, lab
from tests.pipelines.shop import land, ok, order

PIPELINE = """
    from lakewright import (DataOverwrite, FileProxy, JsonFiles, KafkaMessages, KafkaTopic, Latest, Merger, Pipeline,
                            Pinned, PostgresParts, PostgresProxy, PostgresTable, PostgresVersions, StatefulMerger,
                            Whole)

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")
    shop.source("rates", JsonFiles("landing/rates"), schema="customer int, rate int")

    @shop.dataset(event_time="at", inputs={"rates": Latest()})
    def rated(orders, rates):
        return orders.join(rates, "customer").select("order_id", "at", "rate")

    @shop.dataset(writer=Merger(keys=["customer"]))
    def customers(rates):
        return rates

    @shop.dataset(writer=StatefulMerger(keys=["customer"]))
    def restored(rates):
        return rates

    @shop.dataset(event_time="at", into=KafkaMessages("broker", "alerts", key="order_id"))
    def alerts(orders):
        return orders

    @shop.dataset(event_time="at", into=PostgresParts("db", "parts"))
    def parts(orders):
        return orders

    for name, into in {"numbered": PostgresVersions("db", "numbered"), "shown": PostgresProxy("db", "shown"),
                       "exported": FileProxy("exports")}.items():
        shop.add(lambda orders: orders, name=name, inputs={"orders": Whole()}, into=into)

    shop.source("visits", KafkaTopic("broker", "visits"), schema="at timestamp", event_time="at", mode="stream")

    @shop.dataset(mode="stream", event_time="at")
    def seen(visits):
        return visits
"""


def test_each_writer_says_what_a_backfill_does_and_what_speaks_against_it(project):
    shop = project({"pipelines/shop.py": PIPELINE})
    found = {name: effect_of(dataset) for name, dataset in shop.graph.datasets.items()}
    assert found == {
        "orders": "take again", "rates": "take again", "rated": "overwrite", "customers": "merge",
        "restored": "restore", "alerts": "send again", "parts": "overwrite", "numbered": "new version",
        "shown": "new version", "exported": "new version", "visits": "rewind", "seen": "rewind",
    }  # fmt: skip
    land(shop.folder, "o.json", [order("a", "2026-01-01T10:00:00Z")])
    land(shop.folder, "r1.json", [{"customer": 1, "rate": 2}], folder="rates")
    chosen = ["orders", "rates", "rated", "customers"]
    ok(shop.run(chosen, at="2026-01-02"))

    def cautions(**options: bool) -> list[str]:
        names, wish = shop.backfill_wish(
            "2026-01-01", "2026-01-02", select=["rated", "customers"], sources=options.get("sources", False),
            outdated=False,
        )  # fmt: skip
        return list(shop.plan_backfill(names, wish).warnings)

    assert cautions() == []
    assert shop.plan(at="2026-01-02").backfill_limits == {}
    land(shop.folder, "r2.json", [{"customer": 1, "rate": 3}], folder="rates")
    ok(shop.run(["rates"], at="2026-01-02"))
    (told,) = cautions()
    assert told.startswith("rated 2026-01-01: rates is read as it is now (Latest()) and has changed since")
    typed = ["backfill", "--from", "2026-01-01", "--to", "2026-01-02", "--select", "rated", "--dry-run"]
    shown = CliRunner().invoke(app, [*typed, "--project", str(shop.folder)])
    assert shown.exit_code == 0, shown.output
    assert "rates is read as it is now" in " ".join(shown.output.split())

    # A plan tells it before anybody asks for a backfill.
    names = ["rated", "customers"]
    (limit,) = shop.plan(names, at="2026-01-02").backfill_limits["rated"]
    assert limit.startswith("2026-01-01: rates is read as it is now (Latest()) and has changed since")
    typed = ["plan", "--at", "2026-01-02", "--select", "rated", "--select", "customers", "--project", str(shop.folder)]
    shown = " ".join(CliRunner().invoke(app, typed).output.split())
    assert "a backfill is not exact: 2026-01-01: rates is read as it is now" in shown
    assert "Merger by customer (backfill: merge)" in shown

    changed = PIPELINE.replace('"order_id", "at", "rate"', '"order_id", "at", "rate", "amount"')
    edited = project({"pipelines/shop.py": changed})
    names, wish = edited.backfill_wish("2026-01-01", "2026-01-02", select=["rated"], sources=False, outdated=False)
    told = list(edited.plan_backfill(names, wish).warnings)
    assert any("made by older code or options" in line for line in told)

    whole = project({"pipelines/shop.py": PIPELINE.replace('inputs={"rates": Latest()}', 'inputs={"rates": Whole()}')})
    names, wish = whole.backfill_wish("2026-01-01", "2026-01-02", select=["rated"], sources=False, outdated=False)
    told = list(whole.plan_backfill(names, wish).warnings)
    assert any("rates is read as it is now (Whole()) and has changed since" in line for line in told)

    # What was recorded is no longer there: without --sources nobody needs it.
    (shop.folder / "landing" / "orders" / "o.json").unlink()
    (limit,) = edited.plan(["orders"], at="2026-01-02").backfill_limits["orders"]
    assert limit.startswith("arrival-1 cannot be read as it was")
    names, wish = edited.backfill_wish("2026-01-01", "2026-01-02", select=["+rated"], sources=True, outdated=False)
    told = list(edited.plan_backfill(names, wish).warnings)
    assert any(line.startswith("orders arrival-1 cannot be read as it was") for line in told)
    names, wish = edited.backfill_wish("2026-01-01", "2026-01-02", select=["+rated"], sources=False, outdated=False)
    assert not any("cannot be read" in line for line in edited.plan_backfill(names, wish).warnings)


def test_a_pinned_version_that_is_too_old_and_a_plain_merge_are_told(tmp_path):
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing"), schema="at timestamp, n int", event_time="at")
    shop.source("rates", JsonFiles("rates"), schema="n int, rate int")
    shop.add(lambda orders, rates: orders, name="rated", event_time="at", inputs={"rates": Pinned()})
    shop.add(lambda rates: rates, name="known", writer=Merger(keys=["n"]))
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        bench = lab(store, shop)
        bench.arrive("orders", "2026-01-01")
        bench.arrive("rates")
        bench.arrive("rates")
        bench.commit("rated", "2026-01-01", {"2026-01-01": 3}, orders=0, rates=0)
        bench.commit("known", "arrival-1", {}, rates=0)
        plans = [
            DatasetPlan(bench.graph[name], bench.graph.slicing[name], (SliceState(Slice.parse(again), "again", ""),), 1)
            for name, again in (("rated", "2026-01-01"), ("known", "arrival-1"))
        ]

        def told(*lost: str, **properties: str) -> list[str]:
            lake = SimpleNamespace(
                borrowed=frozenset(), properties=lambda name: properties, lost_by_log=lambda name, version: lost
            )
            known = SimpleNamespace(graph=bench.graph, store=store, codes={}, lake=lake)
            return backfill_cautions(known, plans, LOOKED_AT + timedelta(days=28))

        old, merged = told()
        assert old == (
            "rated 2026-01-01: version 0 of rates is 28 days old and can no longer be read: it will be refused."
        )
        assert merged.startswith("known: its changes are merged again on top of what is there")
        longer = {"delta.deletedFileRetentionDuration": "interval 60 days"}
        assert told(**longer) == [merged]
        assert told("a.parquet", "b.parquet", **longer) == [
            "rated 2026-01-01: version 0 of rates can no longer be read: 2 of its files are gone: it will be refused.",
            merged,
        ]
        # The oldest version goes first: of a hundred slices a plan tells that one.
        lake = SimpleNamespace(borrowed=frozenset(), properties=lambda name: {}, lost_by_log=lambda name, version: [])
        known = SimpleNamespace(graph=bench.graph, store=store, codes={}, lake=lake)
        assert backfill_limits(known, plans, LOOKED_AT + timedelta(days=28)) == {
            "rated": ("2026-01-01: version 0 of rates is 28 days old and can no longer be read: it will be refused.",)
        }


def test_a_table_outside_the_lake_goes_back_by_its_history_however_old_it_is(tmp_path):
    shop = Pipeline("shop", start="2026-01-01")
    shop.source("rates", JsonFiles("rates"), schema="n int, rate int")
    for name, into in {"known": None, "shown": PostgresTable("db", "shown")}.items():
        shop.add(lambda rates: rates, name=name, writer=StatefulMerger(keys=["n"]), into=into)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        bench = lab(store, shop)
        for number in (1, 2, 3):
            bench.arrive("rates")
            for name in ("known", "shown"):
                bench.commit(name, f"arrival-{number}", {}, rates=number - 1)

        lake = SimpleNamespace(
            borrowed=frozenset(), properties=lambda name: {}, outside={"shown"}, lost_by_log=lambda name, version: []
        )
        known = SimpleNamespace(graph=bench.graph, store=store, codes={}, lake=lake)

        def told(name: str, slice_id: str) -> list[str]:
            again = (SliceState(Slice.parse(slice_id), "again", ""),)
            plan = DatasetPlan(bench.graph[name], bench.graph.slicing[name], again, 1)
            return backfill_cautions(known, [plan], LOOKED_AT + timedelta(days=28))

        (refused,) = told("known", "arrival-2")
        assert "version 0, which it would go back to, is 28 days old" in refused
        assert "it will be refused" in refused
        plans = [DatasetPlan(bench.graph[name], bench.graph.slicing[name], (), 3) for name in ("known", "shown")]
        with patch.object(store.receipts, "since", wraps=store.receipts.since) as histories:
            limits = backfill_limits(known, plans, LOOKED_AT + timedelta(days=28))
        assert histories.call_count == len(plans), "once for each dataset, however many slices it has"
        assert set(limits) == {"known"}, "the first slice empties the table, which can be done at any time"
        assert limits["known"][0].startswith(
            "arrival-2 and 1 more: version 0, which the table would go back to, is 28 days"
        )
        assert backfill_limits(known, plans, LOOKED_AT) == {}
        (goes_back,) = told("shown", "arrival-2")
        assert goes_back == ("shown: goes back to version 0 before arrival-2 is merged, then on to the newest slice.")
        assert told("shown", "arrival-1") == [
            "shown: is emptied before arrival-1 is merged: no earlier slice is known."
        ]
