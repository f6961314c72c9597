"""Ordered delivery to Kafka: FIFO (idempotent) and Bin Pack, from Spark, against one acknowledged send at a time.

The two sides send as many messages as take them some seconds; messages a second are compared, pair by pair. After each
pair the topic is read back, and the order of every entity is looked at: a fast sending without it would mean nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import jvm_of, keep, measure, spread

ENTITIES = 20_000
LIMIT = 20.0
ONE_AT_A_TIME = 2_000


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import down, up

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    services = folder / ".lakewright" / "services"
    messages = min(size, 500_000)
    try:
        (folder / "pipelines").mkdir()
        (folder / "lakewright.toml").write_text('name = "bench"\n')
        (broker,) = up(services, ["kafka"])
        assert broker.address is not None
        with Project(folder) as project:
            spark = project.spark()
            events = spark.range(messages).selectExpr(
                f"concat('user-', pmod(id * 7919, {ENTITIES})) AS user", "id AS at", "repeat('x', 180) AS body"
            )
            events.write.parquet(str(folder / "events"))
            frame = spark.read.parquet(str(folder / "events"))
            results: dict[str, Any] = {}
            for name, send in ways(broker.address.url, frame).items():
                results[name] = against_one_at_a_time(name, send, broker.address.url, messages, pairs, jvm_of(spark))
            keep("ordered_delivery", results)
    finally:
        down(services, ["kafka"], delete=True)
        shutil.rmtree(folder, ignore_errors=True)


def ways(servers: str, frame: Any) -> dict[str, Callable[[str], None]]:
    """Name -> how a topic is sent to, by its name."""
    from lakewright.connectors.kafka_ordered import KafkaSink
    from lakewright.patterns.data_value.bin_pack_orderer import BinPackOrderer, send_in_bins
    from lakewright.patterns.data_value.fifo_orderer import FifoOrderer, send_in_order

    fifo = FifoOrderer(by="at", per="user", variant="idempotent")
    bins = BinPackOrderer(per="user", by="at")

    def send_fifo(topic: str) -> None:
        send_in_order(frame, KafkaSink(servers, topic), orderer=fifo)

    def send_bins(topic: str) -> None:
        send_in_bins(frame, KafkaSink(servers, topic), orderer=bins)

    return {"fifo": send_fifo, "bins": send_bins}


def against_one_at_a_time(
    name: str, send: Callable[[str], None], servers: str, messages: int, pairs: int, jvm: int
) -> dict[str, Any]:
    ours, baseline = [], []
    for pair in range(pairs + 1):  # the first one warms up
        topic = make_topic(servers, f"{name}-{pair}")
        other = make_topic(servers, f"{name}-{pair}-one")

        def mine(topic: str = topic) -> None:
            send(topic)

        def theirs(other: str = other) -> None:
            one_at_a_time(servers, other)

        first, second = (mine, theirs) if pair % 2 else (theirs, mine)
        one, two = measure(first, jvm), measure(second, jvm)
        rates = (messages / (one if pair % 2 else two).wall, ONE_AT_A_TIME / (two if pair % 2 else one).wall)
        check_order(servers, topic, messages)
        if pair:
            ours.append(rates[0])
            baseline.append(rates[1])
            print(f"  {name} pair {pair}: ours {rates[0]:,.0f}/s, one at a time {rates[1]:,.0f}/s", flush=True)
    ratio = spread([mine / theirs for mine, theirs in zip(ours, baseline, strict=True)])
    verdict = "kept" if ratio.median >= LIMIT else "MISSED"
    print(f"{name}: {ratio} times the throughput; at least {LIMIT:.0f}: {verdict}", flush=True)
    return {"ours": spread(ours), "baseline": spread(baseline), "ratio": ratio, "limit": LIMIT}


def one_at_a_time(servers: str, topic: str) -> None:
    """The best of its kind: one producer, nothing lingers, the next message when this one is acknowledged."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    body = "x" * 180
    for number in range(ONE_AT_A_TIME):
        producer.produce(topic, f'{{"at":{number},"body":"{body}"}}', f"user-{number % ENTITIES}")
        assert producer.flush(30) == 0


def make_topic(servers: str, topic: str) -> str:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": servers})
    client.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    return topic


def check_order(servers: str, topic: str, messages: int) -> None:
    """Each entity's messages are there in the order of their sequence numbers, and none is missing."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    last: dict[bytes, int] = {}
    count = 0
    while count < messages:
        for message in consumer.consume(10_000, timeout=30):
            place = int(dict(message.headers())["lw-sequence"])
            assert place == last.get(message.key(), 0) + 1, (message.key(), place)
            last[message.key()] = place
            count += 1
    consumer.close()
