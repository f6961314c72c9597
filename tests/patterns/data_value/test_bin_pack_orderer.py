"""Bin Pack Orderer: bulk requests, partial commits, and the order of each entity all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from tests.patterns.data_value.deliveries import AT_ONCE, FakeSink, Partner, records

from lakewright.connectors.http_ordered import HttpSink
from lakewright.connectors.kafka_ordered import KafkaSink
from lakewright.connectors.postgres_ordered import PostgresSink
from lakewright.errors import ConfigurationError, InputError, MissingColumnsError, TargetError
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.patterns.data_value.bin_pack_orderer import (
    BinPackOrderer,
    deliver_bins,
    pack,
    pack_in_order,
    send_in_bins,
)
from lakewright.patterns.data_value.ordered_delivery import Patience
from lakewright.patterns.data_value.ordered_sinks import Delivered, Outgoing
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres


@pytest.fixture
def partner() -> Iterator[Partner]:
    found = Partner()
    yield found
    found.close()


def packed(**counts: int) -> list[Outgoing]:
    return [record for one in pack(records(**counts)) for record in one]


def by_entity(ids: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in ids:
        found.setdefault(one[0], []).append(int(one[1:]))
    return found


@pytest.mark.shows("05.bin-pack-orderer", 1, 2, 4, 5)
def test_what_fails_is_tried_again_in_its_bin_and_the_next_bin_waits() -> None:
    assert [[one.id for one in bin_] for bin_ in pack(records(A=3, B=2, C=1))] == [
        ["A1", "B1", "C1"], ["A2", "B2"], ["A3"],
    ]  # fmt: skip
    left = {"A1": 2}

    def twice(record: Outgoing) -> bool:
        left[record.id] = left.get(record.id, 0) - 1
        return left[record.id] >= 0

    sink = FakeSink(twice)
    assert deliver_bins(packed(A=3, B=2, C=1), sink, patience=AT_ONCE) == Delivered(6, 5, 2)
    assert sink.requests == [["A1", "B1", "C1"], ["A1"], ["A1"], ["A2", "B2"], ["A3"]]
    assert by_entity(sink.taken) == {"A": [1, 2, 3], "B": [1, 2], "C": [1]}
    assert (sink.opened, sink.closed) == (1, 1)

    never = FakeSink(lambda record: record.id == "B2")
    with pytest.raises(TargetError, match="record of 'B' in bin 2 was not taken in 5 tries: busy") as failed:
        deliver_bins(packed(A=3, B=3), never, patience=AT_ONCE)
    assert "What comes after it was not sent" in str(failed.value)
    assert never.taken == ["A1", "B1", "A2"]
    assert never.closed == 1

    small = FakeSink(twice, bulk_limit=2)
    deliver_bins(packed(A=2, B=1, C=1, D=1, E=1), small, patience=AT_ONCE)
    assert small.requests == [["A1", "B1"], ["C1", "D1"], ["E1"], ["A2"]]

    for wrong, word in ((records(A=2, B=1), "bin 1 comes after bin 2"), ([*records(A=1)] * 2, "twice in bin 1")):
        with pytest.raises(InputError, match=word):
            deliver_bins(wrong, FakeSink(), patience=AT_ONCE)


@pytest.mark.shows("05.bin-pack-orderer", 3)
def test_over_a_thousand_runs_with_random_failures_no_order_is_lost_and_a_plain_bulk_request_loses_it() -> None:
    broken = 0
    for seed in range(1000):
        chance = random.Random(seed)
        counts = {key: chance.randint(1, 6) for key in "ABCDE"}
        sink = FakeSink(lambda record, dice=chance: dice.random() < 0.3, bulk_limit=chance.randint(1, 6))
        deliver_bins(packed(**counts), sink, patience=Patience(tries=200, pause_seconds=0))
        assert by_entity(sink.taken) == {key: list(range(1, n + 1)) for key, n in counts.items()}
        naive, waiting = FakeSink(lambda record, dice=chance: dice.random() < 0.3), records(**counts)
        while waiting:
            refused = naive.send(waiting)
            waiting = [record for place, record in enumerate(waiting) if place in refused]
        broken += any(found != sorted(found) for found in by_entity(naive.taken).values())
    assert broken > 900


@pytest.mark.shows("05.bin-pack-orderer", 6)
def test_a_repeat_of_the_job_is_recognised_by_its_ids_wherever_the_first_one_died() -> None:
    whole = by_entity([record.id for record in records(A=3, B=2, C=1)])
    seen_disorder = False
    for died_at in range(1, 5):
        sink = FakeSink(lost=lambda request, at=died_at: request == at, bulk_limit=2)
        with pytest.raises(TargetError, match="no answer"):
            deliver_bins(packed(A=3, B=2, C=1), sink, patience=Patience(tries=1, pause_seconds=0))
        sink.lost = lambda request: False
        deliver_bins(packed(A=3, B=2, C=1), sink, patience=AT_ONCE)
        plain = by_entity(sink.taken)
        seen_disorder |= any(found != sorted(found) for found in plain.values())
        assert by_entity(list(dict.fromkeys(sink.taken))) == whole
    assert seen_disorder  # without it, a consumer sees A1, A2, A1, A2, A3


@pytest.mark.shows("05.bin-pack-orderer", 1, 7, 8)
def test_spark_packs_and_two_partners_get_their_own_minutes_in_order(
    spark: SparkSession, partner: Partner, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = spark.createDataFrame([("A", 3), ("B", 2), ("A", 1), ("C", 5), ("A", 2), ("B", 1)], "key string, at int")
    laid_out = letters.coalesce(1)
    for frame, together in ((letters, False), (laid_out, True)):
        orderer = BinPackOrderer(per="key", by="at", together=together)
        rows = pack_in_order(frame, orderer=orderer).coalesce(1).collect()
        bins = {n: [f"{row['key']}{row['at']}" for row in rows if row["bin"] == n] for n in (1, 2, 3)}
        assert bins == {1: ["A1", "B1", "C5"], 2: ["A2", "B2"], 3: ["A3"]}
    pack_in_order(laid_out, orderer=BinPackOrderer(per="key", by="at", together=True)).explain()
    assert "Exchange" not in capsys.readouterr().out
    known = letters.repartition(2, "key")  # Spark knows where the entities are: they move once
    pack_in_order(known, orderer=BinPackOrderer(per="key", by="at")).explain()
    assert capsys.readouterr().out.count("Exchange") == 1

    minutes = spark.createDataFrame(
        [("zen", f"10:0{n}", n) for n in (2, 0, 1)] + [("acme", f"10:0{n}", n) for n in (1, 0)],
        "partner string, minute string, visits int",
    )
    left = {"zen": 3}

    def throttled(record: dict[str, Any]) -> bool:
        left[record["key"]] = left.get(record["key"], 0) - 1
        return left[record["key"]] >= 0

    partner.refuses = throttled
    urls = {"acme": f"{partner.url}/acme", "zen": f"{partner.url}/zen"}
    orderer = BinPackOrderer(per="partner", by="minute", pause_seconds=0)
    done = send_in_bins(minutes, HttpSink("", urls=urls), orderer=orderer, output="partner")
    assert (done.records, done.tried_again) == (5, 3)
    assert done.per_minute == 60 * 5 / done.seconds
    assert {path: [r["value"]["minute"] for r in taken] for path, taken in partner.taken.items()} == {
        "/zen": ["10:00", "10:01", "10:02"], "/acme": ["10:00", "10:01"],
    }  # fmt: skip
    assert [r["sequence"] for r in partner.taken["/zen"]] == [1, 2, 3]

    # Entities of several columns are told apart, whatever signs they hold.
    twins = spark.createDataFrame([("a/b", "c", 1), ("a", "b/c", 1)], "site string, page string, at int").coalesce(1)
    of_both = BinPackOrderer(per=["site", "page"], by="at", pause_seconds=0)
    assert send_in_bins(twins, HttpSink(f"{partner.url}/twins"), orderer=of_both).records == 2
    assert {r["key"] for r in partner.taken["/twins"]} == {"a%2Fb/c", "a/b%2Fc"}

    before = len(partner.told)
    for missing in ("(NULL, '10:00', 1)", "('zen', NULL, 1)"):
        bad = minutes.union(spark.sql(f"SELECT * FROM VALUES {missing}"))
        with pytest.raises(InputError, match=r"have no place in any order: .*None.* Nothing was sent"):
            send_in_bins(bad, HttpSink("", urls=urls), orderer=orderer, output="partner")
    with pytest.raises(MissingColumnsError, match="minut"):
        send_in_bins(minutes, HttpSink("", urls=urls), orderer=BinPackOrderer(per="partner", by="minut"))
    assert len(partner.told) == before

    partner.answers = [(400, b"")]
    with pytest.raises(TargetError, match=r"Bin Pack Orderer: .*answers HTTP 400.*nothing after it was sent"):
        send_in_bins(minutes.coalesce(1), HttpSink(f"{partner.url}/x"), orderer=orderer)


@pytest.mark.shows("05.bin-pack-orderer", 2, 6)
def test_kafka_postgresql_and_http_take_bins_and_a_database_that_goes_away_between_two_of_them(
    kafka: Kafka, postgres: Postgres, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
    feed = PostgresSink(Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD")), "feed")

    def cut_between(bins: list[Outgoing]) -> Iterator[Outgoing]:
        for record in bins:
            if record.id == "B2":  # bin 1 is acknowledged, bin 2 is being put together
                with at.connect() as session:
                    session.execute(
                        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        b"WHERE application_name = 'lakewright' AND datname = current_database()"
                    )
            yield record

    done = deliver_bins(cut_between(packed(A=3, B=2, C=1)), feed.prepared({}), patience=AT_ONCE)
    assert (done.records, done.tried_again) == (6, 2)
    deliver_bins(packed(A=3, B=2, C=1), feed, patience=AT_ONCE)  # all of it again: each record is there once
    with at.connect() as session:
        rows = session.execute(b"SELECT id FROM feed ORDER BY position").fetchall()
    assert [row[0] for row in rows] == ["A1", "B1", "C1", "A2", "B2", "A3"]
    gone = PostgresSink(Connection("db", f"postgresql://{at.user}@{at.host}:1/{at.name}"), "feed")
    with pytest.raises(TargetError, match=r"record of 'A' in bin 1 was not taken in 2 tries: .*[Cc]onnection"):
        deliver_bins(packed(A=2), gone, patience=Patience(tries=2, pause_seconds=0))

    topic = kafka.topic(partitions=2)
    assert deliver_bins(packed(A=3, B=2, C=1), KafkaSink(kafka.bootstrap, topic), patience=AT_ONCE).records == 6
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    found: list[Any] = []
    while len(found) < 6:
        found += consumer.consume(6, timeout=30)
    consumer.close()
    assert by_entity([dict(m.headers())["lw-id"].decode() for m in found]) == {"A": [1, 2, 3], "B": [1, 2], "C": [1]}
    assert {(m.key(), dict(m.headers())["lw-sequence"]) for m in found if m.key() == b"C"} == {(b"C", b"1")}
    with pytest.raises(InputError, match="no topic 'no-such-topic'"):
        KafkaSink(kafka.bootstrap, "no-such-topic").prepared({})
    silent = KafkaSink("127.0.0.1:1", topic, timeout_seconds=0.5)
    with pytest.raises(TargetError, match="record of 'A' in bin 1 was not taken in 1 tries"):
        deliver_bins(packed(A=1), silent, patience=Patience(tries=1, pause_seconds=0))

    # 429, 500, an answer that nobody can read, and one without a word.
    partner.answers = [(429, b""), (500, b""), (200, b"<html>"), (0, b"")]
    monkeypatch.setenv("PARTNER_TOKEN", "Bearer abc")
    sink = HttpSink(f"{partner.url}/v", bulk_limit=2, headers={"Authorization": "secret://env/PARTNER_TOKEN"})
    deliver_bins(packed(A=3, B=2, C=1), sink.prepared({}), patience=AT_ONCE)
    assert by_entity([r["id"] for r in partner.taken["/v"]]) == {"A": [1, 2, 3], "B": [1, 2], "C": [1]}
    assert {one["token"] for one in partner.told} == {"Bearer abc"}
    assert "Bearer" not in repr(sink)


def test_what_cannot_be_packed_is_refused_when_it_is_declared() -> None:
    for wrong in ({"per": (), "by": "at"}, {"per": "k", "by": ""}, {"per": "k", "by": "at", "tries": 0}):
        with pytest.raises(ConfigurationError, match="Bin Pack Orderer"):
            BinPackOrderer(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="one record at a time"):
        BinPackOrderer(per="k", by="at").check_sink(FakeSink(commits="each"))
    for call in (
        lambda: HttpSink("ftp://partner"),
        lambda: HttpSink("http://partner", commits="some"),  # type: ignore[arg-type]
        lambda: HttpSink("http://partner", bulk_limit=0),
        lambda: HttpSink("", urls={"a": "http://partner"}).open("b"),
        lambda: KafkaSink("localhost:9092", ""),
        lambda: KafkaSink("localhost:9092", "t", bulk_limit=0),
        lambda: KafkaSink("localhost:9092", "", topics={"a": "t"}).open("b"),
        lambda: PostgresSink(Connection("db", "postgresql://u@h/d"), ""),
        lambda: PostgresSink(Connection("db", "postgresql://u@h/d"), "", tables={"a": "t"}).open("b"),
    ):
        with pytest.raises(ConfigurationError):
            call()
