"""Ordered delivery in a pipeline: to a topic, a table and an address, and again after a failure."""

from __future__ import annotations

import pytest

from lakewright import BinPackOrderer, FifoOrderer, HttpFeed, KafkaMessages, Merger, Pipeline, PostgresTable
from lakewright.errors import ConfigurationError, DefinitionError
from tests.patterns.data_value.deliveries import Partner
from tests.pipelines.shop import land, ok, order
from tests.pipelines.test_envelopes import messages

PIPELINE = """
    from lakewright import (BinPackOrderer, FifoOrderer, HttpFeed, JsonFiles, KafkaMessages, MetadataDecorator,
                            Pipeline, PostgresTable)

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")
    BINS = BinPackOrderer(per="customer", by="at", pause_seconds=0)

    @shop.dataset(event_time="at", into=KafkaMessages("broker", "TOPIC", key="customer", ledger="TOPIC.ledger",
                                                      order=FifoOrderer(by="at", per="customer")))
    def feed(orders):
        return orders.select("customer", "at", "order_id")

    @shop.dataset(event_time="at", into=PostgresTable("db", "stored", adopt=True, order=BINS))
    def stored(orders):
        return orders.select("customer", "at", "order_id")

    @shop.dataset(event_time="at", into=HttpFeed("URL/orders", order=BINS, bulk_limit=2), retries=0)
    def partner(orders):
        return orders.select("customer", "at", "order_id")
"""


@pytest.mark.shows("05.bin-pack-orderer", 6, 7)
@pytest.mark.shows("05.fifo-orderer", 5)
def test_a_slice_is_delivered_in_order_and_once_more_after_a_failure_with_the_same_ids(
    project, kafka, postgres, failing
):
    partner, topic, at = Partner(), kafka.topic(), postgres.database()
    toml = f'name = "shop"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n[connections.db]\n'
    toml += f'url = "postgresql://{at.user}@{at.host}:{at.port}/{at.name}"\npassword = "secret://file/password"\n'
    text = PIPELINE.replace("TOPIC", topic).replace("URL", partner.url)
    shop = project({"lakewright.toml": toml, "password": postgres.password, "pipelines/shop.py": text})
    with at.connect() as session:
        session.execute(
            "CREATE TABLE stored (place bigserial, customer int, at timestamptz, order_id text, _lw_event text)"
        )
    rows = [("a3", 3, 1), ("b1", 1, 2), ("a1", 1, 1), ("b2", 2, 2), ("a2", 2, 1)]
    land(shop.folder, "a.json", [order(name, f"2026-01-01T10:0{n}:00Z", customer=who) for name, n, who in rows])

    refused = {"left": 2}

    def throttled(record):
        refused["left"] -= record["value"]["order_id"] == "a1"
        return record["value"]["order_id"] == "a1" and refused["left"] >= 0

    partner.refuses = throttled
    failing("http.sent")  # all is posted, and nothing of it is recorded
    failed = shop.run(at="2026-01-02")
    assert [outcome.dataset for outcome in failed.outcomes if outcome.error] == ["partner"]
    ok(shop.run(at="2026-01-02"))

    found = messages(kafka.bootstrap, topic, 5)
    assert [(m.key().decode(), dict(m.headers())["lw-sequence"]) for m in found] == [
        ("1", b"1"), ("2", b"1"), ("1", b"2"), ("2", b"2"), ("1", b"3"),
    ]  # fmt: skip
    assert [m.value().decode().split('"')[-2] for m in found] == ["a1", "b1", "a2", "b2", "a3"]
    with at.connect() as session:
        stored = session.execute("SELECT order_id FROM stored ORDER BY place").fetchall()
    assert [row[0] for row in stored] == ["a1", "b1", "a2", "b2", "a3"]

    taken = [(one["key"], one["id"], one["value"]["order_id"]) for one in partner.taken["/orders"]]
    assert len(taken) == 10
    assert {one["number"] for one in partner.told} == {"1", "2"}
    assert {(one["dataset"], one["slice"]) for one in partner.told} == {("partner", "2026-01-01")}
    for attempt in (taken[:5], taken[5:], list(dict.fromkeys(taken))):  # by its ids, a consumer sees each record once
        assert [name for key, _, name in attempt if key == "1"] == ["a1", "a2", "a3"]
        assert [name for key, _, name in attempt if key == "2"] == ["b1", "b2"]
    receipt = shop.store.receipts.live("partner", "2026-01-01")
    assert (receipt.counters.read, receipt.counters.written) == (5, 5)

    # A row without an entity: nothing is sent anywhere, and what was sent before stands.
    land(shop.folder, "b.json", [{**order("c1", "2026-01-01T11:00:00Z"), "customer": None}])
    failed = shop.run(at="2026-01-02")
    assert len(failed.errors) == 3
    assert all("no place in any order" in str(error) for error in failed.errors)
    assert len(partner.taken["/orders"]) == 10
    assert "lw-number" in dict(messages(kafka.bootstrap, topic, 5)[-1].headers())
    partner.close()


@pytest.mark.shows("05.fifo-orderer", 6)
def test_an_order_that_a_destination_cannot_keep_is_refused_when_the_project_is_loaded():
    fifo = FifoOrderer(by="at", per="customer")
    for call, word in (
        (lambda: KafkaMessages("broker", "t", key="order_id", order=fifo), "the order is per customer, but the key is"),
        (lambda: KafkaMessages("broker", "t", order="fifo"), "order is a FifoOrderer"),  # type: ignore[arg-type]
        (lambda: HttpFeed("http://x/y", order=None), "order is a BinPackOrderer"),  # type: ignore[arg-type]
        (lambda: HttpFeed("http://x/y", order=FifoOrderer(variant="bulk")), "may take a part of a request"),
        (lambda: HttpFeed("http://x/y", order=FifoOrderer(variant="idempotent")), "does not number requests"),
        (lambda: HttpFeed("//x", order=fifo), "the url is an address"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            call()
    shop = Pipeline("shop", start="2026-01-01")
    for into, word in (
        (HttpFeed("http://x/y", order=fifo), "which knows no rows to merge"),
        (PostgresTable("db", "t", order=BinPackOrderer(per="customer", by="at")), "have no order of their own"),
    ):
        with pytest.raises(DefinitionError, match=word):
            shop.sql("merged", "SELECT * FROM orders", writer=Merger(keys=["order_id"]), into=into)
