"""A compacted topic: its settings in words, and the state that its messages add up to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from tests.pipelines.topics import COMPACTED, after_cleaning

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_compaction import check_log_compaction
from lakewright.connectors.kafka_destination import KafkaMessages
from lakewright.model.connections import Connection, Connections
from lakewright.model.maintenance import MaintainsItself
from lakewright.patterns.ingestion.compactor import keep_latest_per_key
from lakewright.testing.kafka import Kafka

MESSAGES = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("a", "3"), ("c", None), ("b", "2")]


@pytest.mark.shows("02.compactor", 6)
def test_a_reader_that_folds_by_key_gets_the_state_whatever_the_broker_has_dropped(
    spark: SparkSession, kafka: Kafka
) -> None:
    topic = kafka.topic(settings=COMPACTED)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for key, value in MESSAGES:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    held = read.option("subscribe", topic).option("startingOffsets", "earliest").load()
    held = held.selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value", "partition", "offset")

    def state(messages: DataFrame) -> dict[str, str]:
        return {row["key"]: row["value"] for row in keep_latest_per_key(messages).collect()}

    assert state(held) == {"a": "3", "b": "2"}, "the last of each key is there, and a tombstone takes its key away"
    some = held.where("NOT (key = 'a' AND value = '1')")
    assert state(some) == {"a": "3", "b": "2"}, "some of the older ones may be gone"
    assert dict(after_cleaning(kafka, topic)) == {b"a": b"3", b"b": b"2", b"c": None}
    assert state(held) == {"a": "3", "b": "2"}, "or all of them, when the broker has cleaned"

    told = check_log_compaction(KafkaClient("test", kafka.bootstrap), topic, reads_within=timedelta(hours=1))
    assert (told.compacts, told.deletes, told.min_lag_ms) == (True, False, 0)
    assert "Readers fold by key" in told.findings[0]
    assert any("a reader that is 1 hour behind would not see it" in one for one in told.findings)
    assert any("max.compaction.lag.ms is not set" in one for one in told.findings)
    assert any("A tombstone is there for 1 day" in one for one in told.findings)


def test_the_settings_of_a_topic_are_told_in_words(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    connections = Connections({"broker": Connection("broker", f"kafka://{kafka.bootstrap}")})
    into: Any = KafkaMessages("broker", topic, key="user")
    assert isinstance(into, MaintainsItself)
    done, said = into.maintain("alerts", connections=connections, dry_run=False, now=datetime.now(UTC))
    assert not done
    assert "is not compacted (cleanup.policy=delete)" in said
    settings = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5400000",
        "min.compaction.lag.ms": "7200000",
        "max.compaction.lag.ms": "86400000",
        "delete.retention.ms": "500",
    }
    monkeypatch.setattr(KafkaClient, "settings", lambda self, topic: settings)
    client = KafkaClient("test", kafka.bootstrap)
    told = check_log_compaction(client, topic, reads_within=timedelta(hours=1)).findings
    assert told[1:] == (
        "It deletes as well (after 1.5 hours): a key that is not sent again is lost then "
        "(cleanup.policy=compact,delete).",
        "A tombstone is there for 500 ms (delete.retention.ms): a reader that is slower keeps the key.",
    )
