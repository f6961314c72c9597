"""Kafka to bronze, 1 KB of JSON a message: our stream against the one that people write by hand."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from benchmarks.harness import compare, jvm_of, keep

TOPIC = "visits"
PER_BATCH = 250_000
SCHEMA = (
    "visit_id string, event_time timestamp, user_id int, page string, referrer string, browser string, "
    "language string, duration_ms int, ip string, notes string"
)
PROJECT = """
from lakewright import KafkaTopic, Pipeline

visits = Pipeline("visits", start="2026-01-01")
visits.source("large", KafkaTopic("broker", "{topic}"), schema="{schema}", event_time="event_time", mode="stream",
              max_records={most})
visits.source("small", KafkaTopic("broker", "{topic}-small"), schema="{schema}", event_time="event_time", mode="stream",
              max_records=4)
"""


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project
    from lakewright.runtime.services import down, up

    folder = Path(tempfile.mkdtemp(prefix="lakewright-bench-"))
    services = folder / ".lakewright" / "services"
    messages = min(size, 1_000_000)
    try:
        (folder / "pipelines").mkdir()
        text = PROJECT.format(topic=TOPIC, schema=SCHEMA, most=PER_BATCH)
        (folder / "pipelines" / "visits.py").write_text(text)
        (folder / "lakewright.toml").write_text('name = "bench"\n[connections.broker]\nservice = "kafka"\n')
        (broker,) = up(services, ["kafka"])
        assert broker.address is not None
        fill(broker.address.url, TOPIC, messages)
        fill(broker.address.url, f"{TOPIC}-small", 200)
        with Project(folder) as project:
            project.graph  # noqa: B018  (declares the names)
            jvm = jvm_of(project.spark())
            by_hand = Baseline(project.spark(), broker.address.url, folder / "by_hand")
            found = compare(
                f"Kafka to bronze, {messages:,} messages of 1 KB",
                lambda: ours(project, "large"),
                lambda: by_hand.run(TOPIC, PER_BATCH),
                jvm=jvm,
                pairs=pairs,
                warmups=1,
                limit=1 / 0.9,
            )
            small = compare(
                "50 micro-batches of 4 messages",
                lambda: ours(project, "small"),
                lambda: by_hand.run(f"{TOPIC}-small", 4),
                jvm=jvm,
                pairs=pairs,
                warmups=1,
            )
            rate = messages / found.ours.median
            extra = (small.ours.median - small.baseline.median) / 50 * 1000
            print(f"  ours {rate:,.0f} messages/s; {extra:.0f} ms more per micro-batch (limit 100)", flush=True)
            keep("kafka", {"large": found, "small": small, "per_second": rate, "extra_ms_per_batch": extra})
    finally:
        down(services, ["kafka"], delete=True)
        shutil.rmtree(folder, ignore_errors=True)


def ours(project: Any, name: str) -> None:
    """Read the topic once more, from its beginning, into a table of its own."""
    shutil.rmtree(project.lake.resolve(name), ignore_errors=True)
    generation = project.store.streams.current(name)
    if generation is not None:
        shutil.rmtree(project.lake.checkpoint(name, generation.number), ignore_errors=True)
    project.store.streams.forget(name)
    project.store.receipts.forget(name)
    for error in project.run([name]).errors:
        raise error


class Baseline:
    """The best that we can write by hand: one pass, Delta's own sink, the day of the event as partition."""

    def __init__(self, spark: Any, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder

    def run(self, topic: str, most: int) -> None:
        from pyspark.sql import functions as F

        place = self._folder / uuid.uuid4().hex
        messages = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", most)
            .load()
        )
        rows = messages.select(
            F.from_json(F.col("value").cast("string"), SCHEMA).alias("record"), "topic", "partition", "offset"
        ).select("record.*", "topic", "partition", "offset", F.to_date("record.event_time").alias("day"))
        query = (
            rows.writeStream.format("delta")
            .partitionBy("day")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(place / "table"))
        )
        query.awaitTermination()
        shutil.rmtree(place)


def fill(bootstrap: str, topic: str, messages: int) -> None:
    """Send messages of 1 KB into two partitions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    client = AdminClient({"bootstrap.servers": bootstrap})  # kept, or it ends before its answer comes
    client.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(messages):
        producer.produce(topic, message(number), partition=number % 2)
        producer.poll(0)
    assert producer.flush(120) == 0


def message(number: int) -> str:
    record = {
        "visit_id": f"visit-{number:012d}",
        "event_time": f"2026-01-{1 + number % 3:02d}T{number % 24:02d}:{number % 60:02d}:00Z",
        "user_id": number % 10_000,
        "page": f"/articles/{number % 500}",
        "referrer": "https://search.example.com/?q=lakes",
        "browser": "Firefox 132",
        "language": "en-GB",
        "duration_ms": number % 90_000,
        "ip": f"10.0.{number % 250}.{number % 199}",
    }
    return json.dumps({**record, "notes": "n" * (1_000 - len(json.dumps(record)))})
