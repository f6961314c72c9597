"""The fixtures that users get, here used as they would: real services, started once for the run."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres


def test_each_database_is_fresh_and_the_server_is_ready_for_replication(postgres: Postgres) -> None:
    first, second = postgres.database(), postgres.database()
    assert first.name != second.name
    with first.connect() as connection:
        connection.execute("CREATE TABLE visits (id int)")
        shown = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("wal_level", "timezone")}
        assert shown == {"wal_level": ("logical",), "timezone": ("UTC",)}
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
    with second.connect() as connection:
        assert connection.execute("SELECT to_regclass('visits')").fetchone() == (None,)
    assert first.jdbc_url == f"jdbc:postgresql://127.0.0.1:{postgres.port}/{first.name}"


def test_nobody_gets_in_without_the_password(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.url.replace(postgres.password, "guess"), connect_timeout=5)
    with postgres.connect() as connection:
        kept = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolpassword IS NOT NULL").fetchall()
    assert kept
    assert all(password.startswith("SCRAM-SHA-256$") for (password,) in kept)


def test_a_topic_is_fresh_and_takes_transactions(kafka: Kafka) -> None:
    topic, other = kafka.topic(partitions=2), kafka.topic(settings={"cleanup.policy": "compact"})
    assert topic != other
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for word, finish in (("kept", producer.commit_transaction), ("taken back", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, word.encode(), partition=1)
        finish(30)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
         "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )  # fmt: skip
    assert len(consumer.list_topics(topic, 30).topics[topic].partitions) == 2
    consumer.subscribe([topic])
    read, ended = [], 0
    while ended < 2:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            read.append(message.value())
        else:
            ended += 1
    consumer.close()
    assert read == [b"kept"]
