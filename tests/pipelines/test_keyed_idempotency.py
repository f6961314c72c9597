"""Keyed Idempotency in a pipeline: the step sees the key; rows that can have none are dead letters."""

from __future__ import annotations

import pytest

from lakewright.patterns.idempotency.keyed_idempotency import hash_values
from tests.pipelines.shop import land, ok, order, rows_of

PIPELINE = """
    from lakewright import JsonFiles, KeyedIdempotency, Merger, Pipeline

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")

    @shop.dataset(writer=Merger(keys=["order_key"]),
                  guards_in={"orders": [KeyedIdempotency(columns=["order_id", "customer"], into="order_key")]})
    def known(orders):
        return orders.select("order_key", "order_id", "amount")
"""


@pytest.mark.shows("04.keyed-idempotency", 7)
def test_the_key_is_made_before_the_step_and_null_parts_go_to_the_dead_letters(project):
    shop = project({"pipelines/shop.py": PIPELINE})
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z", 5), order(None, "2026-01-01T11:00:00Z", 7)])
    ok(shop.run(at="2026-01-02"))
    # The same order once more, in another file: the same key, so it is one row.
    land(shop.folder, "b.json", [order("a", "2026-01-01T10:00:00Z", 6)])
    summary = ok(shop.run(at="2026-01-02"))
    assert [tuple(row) for row in rows_of(shop, "known")] == [(hash_values(["a", 1]), "a", 6)]
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True).where("dataset = 'known'")
    assert [row["rule"] for row in letters.collect()] == ["no key: order_id is NULL"]
    first = shop.store.receipts.live("known", "arrival-1")
    assert (first.counters.read, first.counters.rejected_rows, first.counters.written) == (2, 1, 1)
    assert summary.made
