"""Topics that somebody else fills, by Debezium Server or a connector of their own: read without a worker."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from lakewright import ChangeDataCapture
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.errors import InputError
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connection, Connections
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.protocols import SourceContext
from lakewright.testing.kafka import Kafka

INSERT = b'{"op":"c","after":{"id":1,"body":"b","at":1767225600000},"source":{"lsn":10,"txId":7,"snapshot":"false"}}'
UPDATE = (
    b'{"op":"u","after":{"id":1,"body":"__debezium_unavailable_value","at":1767225601000},'
    b'"source":{"lsn":11,"txId":8,"snapshot":"false"}}'
)


def test_topics_of_others_are_read_without_registering_anything(spark: SparkSession, kafka: Kafka) -> None:
    prefix = f"dbserver{uuid.uuid4().hex[:8]}"
    source = ChangeDataCapture("db", ["visits"], registers=False, topic_prefix=prefix).of(
        "visits", placeholder="__debezium_unavailable_value", millis=["at"]
    )
    # Neither a database nor a worker is declared: whoever fills the topic has them.
    connections = Connections({"broker": Connection("broker", f"kafka://{kafka.bootstrap}")})
    ctx = SourceContext("visits", Path(), connections=connections, project_name="blog")
    KafkaClient("test", kafka.bootstrap).create(f"{prefix}.public.visits", {}, partitions=1)
    until = time.monotonic() + 20
    while True:
        try:
            source.beginning(ctx)
            break
        except InputError:  # a topic that was just made is not known everywhere at once
            assert time.monotonic() < until
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for value in (INSERT, UPDATE):
        producer.produce(f"{prefix}.public.visits", value, key=b'{"id":1}')
    assert producer.flush(10) == 0
    found = source.look(ctx)
    assert found is not None
    schema = source.complete_schema(schema_from_ddl("id INT, body STRING, at TIMESTAMP"))
    arrival = Arrival("visits", 1, found.window, datetime.now(UTC))
    rows = source.read(arrival, spark=spark, schema=schema, ctx=ctx).selectExpr(
        "id", "body", "unix_seconds(at)", "_op", "_lsn", "_not_sent"
    )
    assert [tuple(row) for row in rows.orderBy("_lsn").collect()] == [
        (1, "b", 1767225600, "insert", 10, []),
        (1, None, 1767225601, "update", 11, ["body"]),
    ]
