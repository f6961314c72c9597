"""Transactional Writer: all of a run or nothing of it, on Delta, PostgreSQL and Kafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import live_files, table, version

from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_destination import KafkaMessages, write_messages
from lakewright.connectors.kafka_producer import Transaction
from lakewright.connectors.postgres_together import merge_together
from lakewright.connectors.postgres_write import copy_into
from lakewright.errors import ConfigurationError, DefinitionError, TargetError
from lakewright.model.connections import Connection
from lakewright.model.secrets import Secret
from lakewright.patterns.idempotency.merger import merge_changes
from lakewright.patterns.idempotency.transactional_writer import (
    Written,
    check_transaction_timeout,
    retry_conflicts,
    write_in_transaction,
)
from lakewright.patterns.ingestion.vacuum import vacuum_table
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres


@pytest.fixture
def path(lake_folder: Path) -> str:
    return str(lake_folder / "visits")


def failing(spark: SparkSession, url: str) -> DataFrame:
    """Two tasks: the second one fails as soon as the row of the first one is in the database, wherever that is."""

    def half(visit: int) -> int:
        if visit == 0:
            return visit
        import time

        import psycopg

        with psycopg.connect(url, autocommit=True) as session:
            for _ in range(3000):
                tables = "SELECT tablename FROM pg_tables WHERE tablename ~ '^(visits$|_lw_stage)'"
                for (name,) in session.execute(tables).fetchall():
                    if session.execute(f'SELECT 1 FROM "{name}" WHERE id = 0'.encode()).fetchall():
                        raise ValueError("the node was taken away")
                time.sleep(0.01)
        raise TimeoutError("the first task has sent nothing for half a minute")

    return spark.range(0, 2, 1, 2).select(F.udf(half, "long")("id").alias("id"))


# Ten rows in one task, a file each; the last row never comes.
VICTIM = """
import sys
from pathlib import Path

from lakewright.patterns.idempotency.transactional_writer import write_in_transaction
from lakewright.runtime.session import local_session
from lakewright.runtime.settings import Target

path, state = sys.argv[1:]
one_row_a_file = {"spark.sql.files.maxRecordsPerFile": "1"}
spark = local_session(Target.at(Path(state), master="local[1]", fast_start=True, spark=one_row_a_file))
waits = "java_method('java.lang.Thread', 'sleep', 600000L)"
rows = spark.range(10, 20, 1, 1).selectExpr(f"if(id < 19, id, CAST({waits} AS BIGINT)) AS id")
write_in_transaction(rows, path, run=("visits", 3))
"""


def killed_while_it_writes(path: str, state: Path, orphans: Callable[[], set[Path]]) -> None:
    """Kill a writer and its JVM, by SIGKILL, when some of its files are there and its commit is not."""
    with (state / "said.txt").open("wb") as said:
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, path, str(state)], start_new_session=True, stdout=said, stderr=said
        )
    try:
        deadline = time.monotonic() + 120
        while len(orphans()) < 9:
            assert victim.poll() is None, (state / "said.txt").read_text()
            assert time.monotonic() < deadline, "it wrote nothing for two minutes"
            time.sleep(0.1)
    finally:
        if victim.poll() is None:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()


@pytest.mark.shows("04.transactional-writer", 3, 5)
def test_a_delta_write_that_is_killed_before_its_commit_leaves_orphans_and_a_repeat_of_a_run_is_a_no_op(
    spark: SparkSession, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    visits = spark.range(0, 2)
    write_in_transaction(visits, path, run=("visits", 1))
    write_in_transaction(visits, path, run=("visits", 2))
    assert write_in_transaction(visits, path, run=("visits", 2)).version is None
    assert caplog.messages == [], "a repeat is nothing to tell of"
    assert write_in_transaction(visits, path, run=("visits", 1)).version is None, "a zombie of an older run"
    (warned,) = caplog.messages
    assert "number 1 of 'visits' was skipped" in warned
    assert "has number 2 of it" in warned
    assert len(table(spark, path)) == 4
    for _ in range(2):  # the same micro-batch without an identity
        write_in_transaction(visits, path)
    assert len(table(spark, path)) == 8
    before = version(path)

    def orphans() -> set[Path]:
        return {file for file in Path(path).glob("*.parquet") if file.name not in live_files(path)}

    killed_while_it_writes(path, tmp_path, orphans)
    assert (version(path), len(table(spark, path))) == (before, 8)
    left = orphans()
    assert len(left) >= 9, "what was written stays, unseen"
    assert write_in_transaction(spark.range(10, 20), path, run=("visits", 3)).rows == 10, "the repeat of the dead run"
    long_ago = time.time() - 30 * 86_400
    for file in left:
        os.utime(file, (long_ago, long_ago))
    vacuum_table(spark, path)
    assert not any(file.exists() for file in left)
    assert len(table(spark, path)) == 18


def merged(frame: DataFrame, path: str, tries: int) -> None:
    retry_conflicts(lambda: merge_changes(frame, path, keys=["k"], sequence="n"), what=path, tries=tries)


def replaced(frame: DataFrame, path: str, tries: int) -> None:
    write_in_transaction(frame, path, where="k = 'a'", tries=tries)


@pytest.mark.shows("04.transactional-writer", 7)
@pytest.mark.parametrize("write", [merged, replaced])
def test_of_two_writers_of_the_same_rows_one_tries_again_or_fails_in_words(
    spark: SparkSession, path: str, tmp_path: Path, write: Callable[[DataFrame, str, int], None]
) -> None:
    spark.createDataFrame([("a", 0)], "k string, n int").write.format("delta").save(path)
    go, begun = tmp_path / "go", tmp_path / "begun"
    waits, tells = str(go), str(begun)

    def slowly(n: int) -> int:
        open(tells, "w").close()
        while not os.path.exists(waits):
            time.sleep(0.01)
        return n

    slow = spark.createDataFrame([("a", 1)], "k string, n int").withColumn("n", F.udf(slowly, "int")("n"))
    seen: dict[str, BaseException] = {}

    def writing(tries: int) -> None:
        try:
            write(slow, path, tries)
        except BaseException as error:
            seen["error"] = error

    for tries, left in ((1, 5), (2, 1)):
        seen.clear()
        go.unlink(missing_ok=True)
        begun.unlink(missing_ok=True)
        one = threading.Thread(target=writing, args=(tries,))
        one.start()
        while not begun.exists():
            assert one.is_alive()
        # It has read the table and not written yet: now the other one is faster.
        write(spark.createDataFrame([("a", 5)], "k string, n int"), path, 1)
        go.touch()
        one.join(60)
        assert table(spark, path) == [("a", left)]
        if tries == 1:
            assert isinstance(seen["error"], TargetError)
            assert "another writer has changed the same rows" in str(seen["error"])
        else:
            assert seen == {}, "it was tried again, and succeeded"


def test_a_write_takes_the_place_of_the_rows_that_it_names_in_the_layout_that_it_is_given(
    spark: SparkSession, path: str
) -> None:
    schema = "visit string, day string"
    first = spark.createDataFrame([("v1", "2026-01-01"), ("v2", "2026-01-02"), ("v3", "2026-01-02")], schema)
    assert write_in_transaction(first, path, partition_by=["day"], run=("visits", 1)).rows == 3
    assert {tuple(cells.items()) for cells in live_files(path).values()} == {
        (("day", "2026-01-01"),), (("day", "2026-01-02"),),
    }  # fmt: skip
    again = spark.createDataFrame([("v4", "2026-01-02")], schema)
    slice_of_it: dict[str, Any] = {"where": "day = '2026-01-02'", "partition_by": ["day"], "run": ("visits", 2)}
    assert write_in_transaction(again, path, **slice_of_it) == Written(version=1, rows=1)
    assert table(spark, path) == [("v1", "2026-01-01"), ("v4", "2026-01-02")]
    assert write_in_transaction(again, path, **slice_of_it).version is None, "the same run replaces nothing again"
    assert version(path) == 1


@pytest.mark.shows("04.transactional-writer", 1, 2)
def test_two_files_of_changes_and_several_tasks_are_one_transaction_on_postgres(
    spark: SparkSession, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
    connection = Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD"))

    def ask(statement: str) -> list[tuple[Any, ...]]:
        with at.connect() as session:
            found = session.execute(statement.encode())
            return found.fetchall() if found.description else []

    ask("CREATE TABLE devices (type varchar(8) PRIMARY KEY, name text); INSERT INTO devices VALUES ('phone', 'P0')")
    schema = "type string, name string"
    first = spark.createDataFrame([("phone", "P1"), ("watch", "W1")], schema)
    too_long = spark.createDataFrame([("radio", "R1"), ("gramophone", "G1")], schema)
    with pytest.raises(TargetError, match="Nothing was written"):
        merge_together([first, too_long], connection, table="devices", keys=["type"])
    assert ask("SELECT * FROM devices") == [("phone", "P0")]
    assert merge_together([first, too_long.limit(1)], connection, table="devices", keys=["type"]) == 3
    assert ask("SELECT * FROM devices ORDER BY 1") == [("phone", "P1"), ("radio", "R1"), ("watch", "W1")]

    # A staging table has the types of its target, and not its CHECK: that is broken when the first file is merged.
    ask("ALTER TABLE devices ADD CONSTRAINT short CHECK (length(name) < 3)")
    before = ask("SELECT xmin::text, * FROM devices ORDER BY type")
    newer = spark.createDataFrame([("phone", "P2"), ("tv", "T1")], schema)
    broken = spark.createDataFrame([("radio", "R2"), ("watch", "W22")], schema)
    with pytest.raises(TargetError, match=r'violates check constraint "short".*Nothing was written'):
        merge_together([newer, broken], connection, table="devices", keys=["type"])
    assert ask("SELECT xmin::text, * FROM devices ORDER BY type") == before
    assert merge_together([newer, broken.limit(1)], connection, table="devices", keys=["type"]) == 3

    ask("CREATE TABLE visits (id bigint)")
    with pytest.raises(Exception, match="node was taken away"):
        copy_into(failing(spark, at.url), connection, table="visits")
    assert ask("SELECT * FROM visits") == []
    assert copy_into(spark.range(0, 2, 1, 2), connection, table="visits") == 2
    assert ask("SELECT * FROM visits ORDER BY 1") == [(0,), (1,)]
    assert ask("SELECT tablename FROM pg_tables WHERE tablename LIKE '\\_lw\\_stage%'") == []
    with pytest.raises(ConfigurationError, match="no changes"):
        merge_together([], connection, table="devices", keys=["type"])


def messages(kafka: Kafka, topic: str, isolation: str) -> list[bytes]:
    """Everything that such a reader sees, once all transactions are decided."""
    client = KafkaClient("test", kafka.bootstrap)
    while client.ends(topic, [0], "read_committed") != client.ends(topic, [0], "read_uncommitted"):
        pass
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "test", "isolation.level": isolation,
         "enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.shows("04.transactional-writer", 4)
def test_an_aborted_transaction_is_seen_by_dirty_readers_alone(
    spark: SparkSession, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    users = spark.createDataFrame([("a",), ("b",)], "user string").coalesce(1)

    def dies(self: Transaction) -> None:
        raise ConnectionError("the driver was cut off")

    with monkeypatch.context() as failing_commit:
        failing_commit.setattr(Transaction, "commit", dies)
        with pytest.raises(ConnectionError):
            write_messages(users, servers=kafka.bootstrap, topic=topic, key="user", value="user")
    assert messages(kafka, topic, "read_committed") == []
    assert messages(kafka, topic, "read_uncommitted") == [b"a", b"b"]
    assert write_messages(users, servers=kafka.bootstrap, topic=topic, key="user", value="user") == 2
    assert messages(kafka, topic, "read_committed") == [b"a", b"b"]


@pytest.mark.shows("04.transactional-writer", 6)
def test_a_transaction_that_is_shorter_than_its_batch_is_refused_at_start_up(project: Any) -> None:
    with pytest.raises(ConfigurationError, match="ends after 1 minute, but a batch may take 10 minutes"):
        check_transaction_timeout("alerts", "1 minute", longest="10 minutes")
    check_transaction_timeout("alerts", "10 minutes", longest="10 minutes")
    text = """
        from lakewright import JsonFiles, KafkaMessages, Pipeline

        shop = Pipeline("shop")
        shop.source("orders", JsonFiles("landing"), schema="id string")

        @shop.dataset(timeout="10 minutes", into=KafkaMessages("broker", "alerts", transaction_timeout="1 minute"))
        def alerts(orders):
            return orders
    """
    with pytest.raises(DefinitionError, match=r"alerts: a transaction ends after 1 minute.*timeout"):
        project({"pipelines/shop.py": text}).graph  # noqa: B018
    assert KafkaMessages("broker", "alerts", transaction_timeout="10 minutes")


def test_a_wrong_run_is_refused_before_spark_is_needed() -> None:
    frame: Any = None
    for run in (("", 1), ("visits", -1), ("visits", True)):
        with pytest.raises(ConfigurationError, match="a name and a number"):
            write_in_transaction(frame, "t", run=run)
    with pytest.raises(ConfigurationError, match="tries"):
        retry_conflicts(lambda: None, what="t", tries=0)
