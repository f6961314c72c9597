"""Keyed Idempotency in a pipeline: the step sees the key; rows that can have none are dead letters."""

from __future__ import annotations

import pytest

from lakewright.errors import LimitExceeded
from lakewright.patterns.idempotency.keyed_idempotency import hash_values
from tests.pipelines.shop import land, made, ok, order, rows_of
from tests.pipelines.streaming import send, visit, visits_project

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
@pytest.mark.shows("04.merger", 1, 4)
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
    # The correction once more: the merge is repeated, and the table is the same.
    assert ("known", "arrival-2") in made(ok(shop.run(at="2026-01-02", again=True, slices=["arrival-2"])))
    assert [tuple(row) for row in rows_of(shop, "known")] == [(hash_values(["a", 1]), "a", 6)]


STREAM = """
    from lakewright import KeyedIdempotency

    keyed = {"raw": [KeyedIdempotency(columns=["id", "page"], into="visit_key" LIMIT)]}

    @visits.dataset(mode="stream", writer=Merger(keys=["visit_key"]), guards_in=keyed)
    def streamed(raw):
        return raw.select("visit_key", "id", "page")

    @visits.dataset(writer=Merger(keys=["visit_key"]), guards_in=keyed)
    def batched(raw):
        return raw.select("visit_key", "id", "page")
"""


@pytest.mark.shows("04.keyed-idempotency", 7)
def test_a_stream_gives_the_keys_of_a_batch_and_sets_the_same_rows_aside(project, kafka):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, STREAM.replace(" LIMIT", "")))
    send(kafka, topic, [visit(1), visit(2, page="/b"), visit(3, page=None)])
    ok(shop.run(["raw", "streamed"], at="2026-01-03"))
    send(kafka, topic, [visit(1), {**visit(4), "id": None}])  # one that was sent twice, and one that can have no key
    ok(shop.run(["raw", "streamed", "batched"], at="2026-01-03"))
    expected = {(hash_values(["v1", "/"]), "v1", "/"), (hash_values(["v2", "/b"]), "v2", "/b")}
    assert {tuple(row) for row in rows_of(shop, "streamed")} == expected
    assert rows_of(shop, "batched") == rows_of(shop, "streamed")
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True)
    told = {name: sorted((row["offset"], row["rule"]) for row in letters.where(f"dataset = '{name}'").collect())
            for name in ("streamed", "batched")}  # fmt: skip
    assert told["streamed"] == [(2, "no key: page is NULL"), (4, "no key: id is NULL")]
    assert told["batched"] == told["streamed"]


@pytest.mark.parametrize(
    ("limit", "wider"), [("stop_above=0.3", "stop_above=0.5"), ("stop_above_rows=1", "stop_above_rows=2")]
)
def test_too_many_rows_without_a_key_stop_a_stream_and_a_batch_before_anything_is_published(
    project, kafka, limit, wider
):
    topic = kafka.topic()
    shop = project(visits_project(kafka, topic, STREAM.replace(" LIMIT", f", {limit}")))
    send(kafka, topic, [visit(1), visit(2), visit(3, page=None), visit(4, page=None)])
    ok(shop.run(["raw"], at="2026-01-03"))
    for name in ("streamed", "batched"):
        refused = shop.run([name], at="2026-01-03")
        assert (refused.state, refused.exit_code) == ("refused", 3)
        (error,) = refused.errors
        assert isinstance(error, LimitExceeded)
        assert (error.dataset, error.rows) == (name, 2)
        assert not shop.lake.log(name).exists(), "nothing was published"
    letters = shop.lake.read("_lakewright/dead_letters", system_columns=True)
    assert letters.where("rule = 'no key: page is NULL'").count() == 4, "they stay as evidence"
    shop = project(visits_project(kafka, topic, STREAM.replace(" LIMIT", f", {wider}")))
    ok(shop.run(["streamed", "batched"], at="2026-01-03"))
    assert [row["id"] for row in rows_of(shop, "streamed")] == ["v1", "v2"]
    assert rows_of(shop, "batched") == rows_of(shop, "streamed")
