"""Envelopes in a pipeline: wrapped rows, and facts of the run that no reader stumbles on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.pipelines.shop import land, ok, order, rows_of
from tests.pipelines.streaming import send, visit, visits_project
from tests.pipelines.topics import fresh_topic

PIPELINE = """
    from lakewright import JsonFiles, KafkaMessages, MetadataDecorator, Pipeline, PostgresTable, Wrapper

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")
    FACTS = ["job_version", "batch", "attempt", "run_time"]

    @shop.dataset(event_time="at",
                  wrap=Wrapper({"at": "at", "large": "amount > 5"}, context=["job_version"], version="VERSION"),
                  metadata=MetadataDecorator(FACTS, where="table", version="VERSION"))
    def wrapped(orders):
        return orders

    @shop.dataset(wrap=Wrapper({"large": "amount > 5"}, form="two_tables", keys=["order_id"]),
                  metadata=MetadataDecorator(FACTS, version="VERSION"))
    def apart(orders):
        return orders

    @shop.dataset(into=KafkaMessages("broker", "TOPIC", key="order_id", ledger="TOPIC.ledger"),
                  metadata=MetadataDecorator(["job_version", "batch"], where="native", version="VERSION"))
    def sent(orders):
        return orders.select("order_id", "amount")

    @shop.dataset(into=PostgresTable("db", "stored", view="stored_shown"),
                  metadata=MetadataDecorator(["job_version"], version="VERSION"))
    def stored(orders):
        return orders.select("order_id", "amount")
"""


def messages(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "t", "auto.offset.reset": "earliest",
         "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), timeout=30)
    consumer.close()
    return found


@pytest.mark.shows("05.wrapper", 7)
@pytest.mark.shows("05.metadata-decorator", 1, 3, 4)
def test_rows_are_wrapped_and_tell_the_run_that_made_them_where_nobody_looks(project, kafka, postgres, failing):
    topic, at = kafka.topic(), postgres.database()
    toml = f'name = "shop"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n[connections.db]\n'
    toml += f'url = "postgresql://{at.user}@{at.host}:{at.port}/{at.name}"\npassword = "secret://file/password"\n'
    text = PIPELINE.replace("TOPIC", topic)
    files = {"lakewright.toml": toml, "password": postgres.password}
    shop = project({**files, "pipelines/shop.py": text.replace("VERSION", "1.0")})
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z", 9)])
    failing("private_written")  # the raw part is there, and what was computed of it is not
    assert shop.run(["orders", "apart"], at="2026-01-02").state == "failed"
    ok(shop.run(at="2026-01-02"))
    before = rows_of(shop, "wrapped")

    shop = project({"pipelines/shop.py": text.replace("VERSION", "1.1")})
    land(shop.folder, "b.json", [order("b", "2026-01-02T10:00:00Z", 2)])
    ok(shop.run(["orders", "wrapped", "sent"], at="2026-01-03"))
    hidden = shop.lake.read("wrapped", system_columns=True)
    contexts = shop.lake.read("wrapped_context")
    joined = hidden.join(contexts, hidden["_lw_context_id"] == contexts["context_id"])
    assert sorted(map(tuple, joined.select("raw.order_id", contexts["job_version"], "attempt").collect())) == [
        ("a", "1.0", 1), ("b", "1.1", 2),
    ]  # fmt: skip
    assert [row.asDict() for row in rows_of(shop, "wrapped", "large", "job_version")] == [
        {"large": False, "job_version": "1.1"}, {"large": True, "job_version": "1.0"},
    ]  # fmt: skip

    # Two tables, each with its rows once, though they were begun twice; the facts are a hidden column.
    assert rows_of(shop, "apart") == [("a", True)]
    assert rows_of(shop, "apart_raw", "order_id", "amount") == [("a", 9)]
    told = [json.loads(row[0]) for row in shop.lake.read("apart", system_columns=True).select("_lw_context").collect()]
    assert told == [{"job_version": "1.0", "batch": "arrival-1", "attempt": 2, "run_time": "2026-01-02T00:00:00+00:00"}]

    first, second = messages(kafka.bootstrap, topic, 2)
    assert (first.key(), first.value()) == (b"a", b'{"order_id":"a","amount":9}')
    assert {"job_version": b"1.0", "batch": b"arrival-1"}.items() <= dict(first.headers()).items()
    assert {"job_version": b"1.1", "batch": b"arrival-2"}.items() <= dict(second.headers()).items()

    with at.connect() as session:
        stored = session.execute("SELECT order_id, _lw_context FROM stored").fetchall()
        assert stored == [("a", '{"job_version":"1.0"}')]
        assert session.execute("SELECT * FROM stored_shown").fetchall() == [("a", 9)]

    # The first day again, by the new release: one context row per day, with a higher attempt; raw is what it was.
    ok(shop.run(["wrapped"], at="2026-01-03", again=True, slices=["2026-01-01"]))
    again = shop.lake.read("wrapped_context").select("context_id", "job_version", "attempt").collect()
    assert sorted(map(tuple, again)) == [("2026-01-01", "1.1", 3), ("2026-01-02", "1.1", 2)]
    after = [row for row in rows_of(shop, "wrapped") if row["raw"]["order_id"] == "a"]
    assert [(row["raw"], row["large"]) for row in after] == [(row["raw"], row["large"]) for row in before]
    assert (before[0]["job_version"], after[0]["job_version"]) == ("1.0", "1.1")


LIVE = """
    from lakewright import MetadataDecorator, Wrapper

    @visits.dataset(mode="stream", event_time="at", wrap=Wrapper({"at": "at", "is_root": "page = '/'"}),
                    metadata=MetadataDecorator(["batch", "job_version"], version="3.1"))
    def live(raw):
        return raw
"""


def test_a_stream_is_wrapped_too_and_tells_its_micro_batch(project, kafka):
    topic = fresh_topic(kafka)
    send(kafka, topic, [visit(1), visit(2, page="/a")])
    visits = project(visits_project(kafka, topic, LIVE))
    ok(visits.run(["raw", "live"]))
    assert [(row["raw"]["id"], row["is_root"]) for row in rows_of(visits, "live", "raw", "is_root")] == [
        ("v1", True), ("v2", False),
    ]  # fmt: skip
    told = {row[0] for row in visits.lake.read("live", system_columns=True).select("_lw_context").collect()}
    batch = next(iter(visits.store.receipts.live_slices("live")))
    assert [json.loads(one) for one in told] == [{"batch": batch, "job_version": "3.1"}]
