"""FIFO Orderer: one after another, whatever the variant, and nothing left in a buffer."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from tests.patterns.data_value.deliveries import AT_ONCE, FakeBroker, FakeSink, records
from tests.pipelines.topics import fresh_topic

from lakewright.connectors.kafka_ordered import KafkaSink
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.patterns.data_value.fifo_orderer import (
    FifoOrderer,
    check_producer,
    deliver_bulk,
    deliver_each,
    deliver_pipelined,
    deliver_scopes,
    send_in_order,
)
from lakewright.patterns.data_value.ordered_sinks import Delivered, Outgoing
from lakewright.testing.kafka import Kafka


def read(kafka: Kafka, topic: str, count: int, partitions: int = 1) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, place, 0) for place in range(partitions)])
    found: list[Any] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), timeout=30)
    consumer.close()
    return found


@pytest.mark.shows("05.fifo-orderer", 1)
def test_a_thousand_events_are_read_in_the_order_of_their_sending_by_each_variant(kafka: Kafka) -> None:
    events = records(A=1000)
    for variant, deliver in (("individual", deliver_each), ("bulk", deliver_bulk), ("idempotent", deliver_pipelined)):
        topic = fresh_topic(kafka)
        orderer = FifoOrderer(variant=variant)  # type: ignore[arg-type]
        sink = KafkaSink(kafka.bootstrap, topic, bulk_limit=300).prepared(orderer.producer_options())
        orderer.check_sink(sink)
        assert deliver(events, sink, patience=AT_ONCE).records == 1000
        found = read(kafka, topic, 1000)
        assert [dict(message.headers())["lw-id"].decode() for message in found] == [one.id for one in events]
        assert [message.value() for message in found] == [one.value for one in events]


@pytest.mark.shows("05.fifo-orderer", 2, 3)
def test_a_record_waits_for_the_one_before_it_and_a_careless_producer_does_not() -> None:
    left = {"A3": 2}

    def twice(record: Outgoing) -> bool:
        left[record.id] = left.get(record.id, 0) - 1
        return left[record.id] >= 0

    sink = FakeSink(twice)
    assert deliver_each(records(A=4), sink, patience=AT_ONCE) == Delivered(4, 6, 2)
    assert sink.requests == [["A1"], ["A2"], ["A3"], ["A3"], ["A3"], ["A4"]]
    stuck = FakeSink(lambda record: record.id == "A3")
    with pytest.raises(TargetError, match="record of 'A' in record 3 of its entity was not taken in 5 tries"):
        deliver_each(records(A=4), stuck, patience=AT_ONCE)
    assert stuck.taken == ["A1", "A2"]

    whole = FakeSink(lambda record: record.id == "A3" and len(whole.requests) < 3, commits="full", bulk_limit=2)
    deliver_bulk(records(A=5), whole, patience=AT_ONCE)
    assert whole.taken == ["A1", "A2", "A3", "A4", "A5"]
    liar = FakeSink(lambda record: record.id == "A1")
    with pytest.raises(TargetError, match="declared to take a request whole, and took a part"):
        deliver_bulk(records(A=2), liar, patience=AT_ONCE)

    careless = {"max.in.flight.requests.per.connection": "5", "enable.idempotence": "false"}
    with pytest.raises(ConfigurationError, match="without idempotence"):
        check_producer(careless)
    assert FakeBroker(careless).deliver(range(8)) == [1, 2, 3, 4, 0, 5, 6, 7]
    for orderer in (FifoOrderer(variant="idempotent"), FifoOrderer(variant="bulk"), FifoOrderer()):
        check_producer(orderer.producer_options())
        assert FakeBroker(orderer.producer_options()).deliver(range(8)) == list(range(8))


@pytest.mark.shows("05.fifo-orderer", 4)
def test_four_workers_send_at_the_same_time_and_each_entity_keeps_its_order() -> None:
    together = threading.Barrier(4)
    lock = threading.Lock()

    class Waiting(FakeSink):
        """Takes a record only when four of them are on their way at once: one worker alone would wait for ever."""

        def send(self, sent: Sequence[Outgoing]) -> Mapping[int, str]:
            together.wait(timeout=30)
            with lock:
                return super().send(sent)

    # Entities of which each worker gets one.
    names = [next(f"u{n}" for n in range(99) if zlib.crc32(f"\0u{n}".encode()) % 4 == place) for place in range(4)]
    events = [Outgoing(name, n, f"{name}-{n}", b"") for n in range(1, 26) for name in names]
    sink = Waiting(commits="each")
    deliver = partial(deliver_each, patience=AT_ONCE)
    assert deliver_scopes(events, sink, deliver, workers=4).records == 100
    for name in names:
        assert [one for one in sink.taken if one.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(1, 26)]
    assert sink.opened == sink.closed == 4  # 100 records in the time of 25 requests

    broken = FakeSink(lambda record: record.id == f"{names[0]}-3")
    with pytest.raises(TargetError, match="was not taken"):
        deliver_scopes(events * 40, broken, deliver, workers=4)
    assert [one for one in broken.taken if one.startswith(f"{names[0]}-")] == [f"{names[0]}-{n}" for n in (1, 2)]


@pytest.mark.shows("05.fifo-orderer", 5)
def test_what_is_sent_again_after_a_crash_has_the_same_key_and_id(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, lake_folder: Path
) -> None:
    topic, flag = fresh_topic(kafka, partitions=2), tmp_path / "crashed"
    events = spark.createDataFrame([("A", 2), ("B", 1), ("A", 1), ("A", 3)], "user string, at int")
    events.coalesce(1).write.parquet(str(lake_folder / "events"))
    sink = KafkaSink(kafka.bootstrap, topic)
    orderer = FifoOrderer(by="at", per="user", variant="idempotent")

    def forward(batch: DataFrame, number: int) -> None:
        send_in_order(batch, sink, orderer=orderer)
        if not flag.exists():
            flag.touch()
            raise RuntimeError("between the sending and the note that the input was read")

    stream = spark.readStream.schema("user string, at int").parquet(str(lake_folder / "events"))
    writer = stream.writeStream.foreachBatch(forward).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="between the sending"):
        writer.trigger(availableNow=True).start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    told = [(m.key(), dict(m.headers())["lw-id"], m.value()) for m in read(kafka, topic, 8, partitions=2)]
    assert len(set(told)) == 4
    assert all(told.count(one) == 2 for one in told)
    assert [value for key, _, value in dict.fromkeys(told) if key == b"A"] == [
        b'{"user":"A","at":1}', b'{"user":"A","at":2}', b'{"user":"A","at":3}',
    ]  # fmt: skip

    # Without an entity there is one order, and one task; a value can be sent as it is.
    one = fresh_topic(kafka)
    plain = spark.createDataFrame([("c", 3), ("a", 1), ("b", 2)], "body string, at int")
    send_in_order(plain, KafkaSink(kafka.bootstrap, one), orderer=FifoOrderer(by="at"), value="body")
    send_in_order(plain.coalesce(1), KafkaSink(kafka.bootstrap, one), orderer=FifoOrderer(), value="body")
    assert [m.value() for m in read(kafka, one, 6)] == [b"a", b"b", b"c", b"c", b"a", b"b"]
    with pytest.raises(InputError, match=r"at=None\). Nothing was sent"):
        send_in_order(plain.selectExpr("body", "CAST(NULL AS INT) AS at"), sink, orderer=FifoOrderer(by="at"))


@pytest.mark.shows("05.fifo-orderer", 6)
def test_what_would_lose_the_order_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="at most 5 requests that are on their way, not of 6"):
        FifoOrderer(variant="idempotent", in_flight=6)
    with pytest.raises(ConfigurationError, match="acks=all, not acks=1"):
        KafkaSink("localhost:9092", "t", options={"acks": "1"})
    with pytest.raises(ConfigurationError, match=r"may take a part of a request.*bulk requests lose") as refused:
        FifoOrderer(variant="bulk").check_sink(FakeSink())
    assert "BinPackOrderer" in str(refused.value.hint)
    with pytest.raises(ConfigurationError, match="does not number requests"):
        FifoOrderer(variant="idempotent").check_sink(FakeSink(commits="full"))
    FifoOrderer(variant="individual").check_sink(FakeSink())
    for wrong in ({"variant": "fast"}, {"per": "user"}, {"by": "at", "workers": 2}, {"tries": 0}, {"then": ["x"]}):
        with pytest.raises(ConfigurationError, match="FIFO Orderer"):
            FifoOrderer(**wrong)  # type: ignore[arg-type]


@pytest.mark.shows("05.fifo-orderer", 7)
def test_buffers_are_empty_at_the_end_and_what_was_not_taken_is_an_error(kafka: Kafka) -> None:
    topic = fresh_topic(kafka)
    options = FifoOrderer(variant="idempotent").producer_options()
    sink = KafkaSink(kafka.bootstrap, topic).prepared({**options, "linger.ms": "2000"})
    session = sink.open()
    for record in records(A=50):
        session.post(record)
    assert len(session._producer) == 50  # nothing is sent yet
    session.flush()
    session.close()
    assert len(session._producer) == 0
    assert len(read(kafka, topic, 50)) == 50

    silent = KafkaSink("127.0.0.1:1", topic, timeout_seconds=0.5)
    with pytest.raises(TargetError, match=r"record of 'A' was not taken by the topic .* 5 records were not delivered"):
        deliver_pipelined(records(A=5), silent)
