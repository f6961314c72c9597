"""Keyed Idempotency: the same thing has the same key, whoever makes it and however often."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.pipelines.topics import COMPACTED, after_cleaning

from lakewright.connectors.kafka import KafkaTopic
from lakewright.connectors.kafka_append_time import check_append_time
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_destination import write_messages
from lakewright.connectors.postgres_write import merge_rows
from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.connections import Connection, Connections
from lakewright.model.protocols import SourceContext
from lakewright.model.secrets import Secret
from lakewright.patterns.idempotency.keyed_idempotency import (
    KeyedIdempotency,
    add_idempotent_key,
    container_name,
    hash_values,
    idempotent_key,
    key_by_first_append,
    split_by_key,
    write_container,
)
from lakewright.patterns.idempotency.merger import merge_changes
from lakewright.patterns.ingestion.compactor import keep_latest_per_key
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

VISITS = "user int, page string, visited string, appended timestamp"
FIRST = [
    (1, "/a", "10:00", datetime(2026, 1, 1, 10, 0, 1)),
    (1, "/b", "10:02", datetime(2026, 1, 1, 10, 2, 1)),
    (2, "/a", "10:01", datetime(2026, 1, 1, 10, 1, 1)),
]
LATE = (1, "/late", "09:55", datetime(2026, 1, 1, 10, 5, 0))


def sessions(visits: DataFrame, *, by: str = "appended") -> DataFrame:
    keyed = key_by_first_append(visits, group=["user"], append_time=by, then=["visited"], into="session")
    return keyed.groupBy("session", "user").agg(F.array_sort(F.collect_list("page")).alias("pages"))


def keys(frame: DataFrame) -> dict[int, str]:
    return {row["user"]: row["session"] for row in frame.collect()}


@pytest.mark.shows("04.keyed-idempotency", 1, 2, 3)
def test_sessions_keep_their_key_through_repeats_late_events_and_completion(
    spark: SparkSession, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    connection = Connection(
        "db", f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}", Secret("secret://env/PG_TEST_PASSWORD")
    )

    def ask(statement: str) -> list[tuple[Any, ...]]:
        with at.connect() as session:
            found = session.execute(statement.encode())
            return found.fetchall() if found.description else []

    def write(visits: DataFrame) -> list[tuple[Any, ...]]:
        merge_rows(sessions(visits), connection, table="sessions", keys=["session"])
        return ask('SELECT "user", session, pages FROM sessions ORDER BY 1, 2')

    ask('CREATE TABLE sessions (session text PRIMARY KEY, "user" int, pages text[])')
    partial, whole = spark.createDataFrame(FIRST, VISITS), spark.createDataFrame([*FIRST, LATE][::-1], VISITS)
    once = write(partial)
    assert write(partial.repartition(3)) == once, "the same keys, and as many rows"
    assert [row[0] for row in once] == [1, 2]
    # A late event comes between a failure and the restart: it belongs to the same session.
    done = write(whole)
    assert [row[:2] for row in done] == [row[:2] for row in once]
    assert done[0][2] == ["/a", "/b", "/late"]
    # The control: by event time the late one becomes the first, and the session is another one.
    by_event = [keys(sessions(frame, by="visited")) for frame in (partial, whole)]
    assert by_event[0][1] != by_event[1][1]
    assert by_event[0][2] == by_event[1][2]


@pytest.mark.shows("04.keyed-idempotency", 3)
def test_in_a_stream_a_partial_session_and_its_completion_are_one_row(spark: SparkSession, tmp_path: Path) -> None:
    landing, target = tmp_path / "visits", str(tmp_path / "sessions")
    landing.mkdir()
    for number, row in enumerate(([FIRST[0]], [FIRST[1], LATE])):
        lines = [f'{{"user":{u},"page":"{p}","appended":"{a.isoformat()}Z"}}' for u, p, _, a in row]
        (landing / f"{number}.json").write_text("\n".join(lines))
        os.utime(landing / f"{number}.json", (number + 1, number + 1))
    read = spark.readStream.schema("user int, page string, appended timestamp").option("maxFilesPerTrigger", 1)
    state = read.json(str(landing)).groupBy("user").agg(F.min("appended").alias("first"), F.count("*").alias("pages"))
    keyed = state.select(idempotent_key("user", "first").alias("session"), "user", "pages")

    def upsert(batch: DataFrame, number: int) -> None:
        merge_changes(batch, target, keys=["session"])

    query = keyed.writeStream.outputMode("update").foreachBatch(upsert)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    found = spark.read.format("delta").load(target).collect()
    assert [(row["user"], row["pages"]) for row in found] == [(1, 3)], "two micro-batches, one row"
    assert found[0]["session"] == hash_values([1, FIRST[0][3].replace(tzinfo=UTC)])


@pytest.mark.shows("04.keyed-idempotency", 4, 5)
def test_a_retried_batch_in_a_topic_has_equal_keys_and_producer_times_are_noticed(
    spark: SparkSession, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic(settings={**COMPACTED, "message.timestamp.type": "LogAppendTime"})
    keyed = sessions(spark.createDataFrame(FIRST, VISITS)).coalesce(1)
    for _ in range(2):  # the answer to the first was lost, so the batch is sent again
        write_messages(keyed, servers=kafka.bootstrap, topic=topic, key="session")
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
    held = read.option("subscribe", topic).option("startingOffsets", "earliest").load()
    held = held.selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value", "partition", "offset")
    sent = sorted(row["key"] for row in held.collect())
    expected = sorted(keys(keyed).values())
    assert sent == sorted(expected * 2), "duplicates, which can be told by their keys"
    folded = keep_latest_per_key(held)
    assert sorted(row["key"] for row in folded.collect()) == expected
    # The broker itself comes to the same: what was sent twice is there once, and a reader finds the same state.
    state = {row["key"]: row["value"] for row in folded.collect()}
    left = after_cleaning(kafka, topic)
    assert {key.decode(): value.decode() for key, value in left if value is not None} == state
    assert len(left) == len(expected)

    client = KafkaClient("visits", kafka.bootstrap)
    assert check_append_time(client, topic) is None
    by_producer = kafka.topic(settings={"message.timestamp.type": "CreateTime"})
    connections = Connections({"broker": Connection("broker", f"kafka://{kafka.bootstrap}")})
    ctx = SourceContext("visits", Path(), connections=connections)
    for look in (lambda source: source.look(ctx), lambda source: source.stream(spark=spark, schema=None, ctx=ctx)):
        with pytest.raises(ConfigurationError, match=r"message\.timestamp\.type=CreateTime"):
            look(KafkaTopic("broker", by_producer, value="text", producer_times="refuse"))
    caplog.set_level(logging.WARNING, logger="lakewright.kafka")
    assert KafkaTopic("broker", by_producer, producer_times="warn").look(ctx) is None
    assert "message.timestamp.type=CreateTime" in caplog.text
    assert KafkaTopic("broker", topic, producer_times="refuse").look(ctx) is not None
    with pytest.raises(ConfigurationError, match="producer_times"):
        KafkaTopic("broker", topic, producer_times="maybe")  # type: ignore[arg-type]


@pytest.mark.shows("04.keyed-idempotency", 6)
def test_a_container_is_named_by_the_execution_and_replaced_by_its_repeat(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    for rows in ([("v1",), ("v2",)], [("v3",)]):
        path = write_container(spark.createDataFrame(rows, "visit string"), str(folder), execution_time="2024-11-20")
    assert [one.name for one in folder.iterdir() if not one.name.startswith(".")] == ["execution=2024-11-20"]
    assert [row[0] for row in spark.read.parquet(path).collect()] == ["v3"]
    assert container_name(datetime(2024, 11, 20, 7), grid="hour", prefix="") == "2024-11-20T07"
    assert container_name("2024-11-01", grid="month") == "execution=2024-11"
    for shared in ({}, {"grid": "hour"}, {"grid": "month"}):
        with pytest.raises(ConfigurationError, match="two executions would share"):
            container_name("2024-11-01T07:31", **shared)
    with pytest.raises(ConfigurationError, match="two executions would share"):
        container_name("2024-11-20", grid="month")
    with pytest.raises(ConfigurationError, match="grid"):
        container_name("2024-11-20", grid="week")  # type: ignore[arg-type]


SMALL = {"decimal(18,8)": ["0E-8", "0.00000010", "-0.00000100", "1234567890.00000000"],
         "decimal(38,18)": ["0E-18", "1E-18", "0.000001000000000000"]}  # fmt: skip
VALUES = ['a"\\\x01\x1f\t/é\u2028\x7f😀', 5, True, date(2026, 1, 2), Decimal("1.50"), b"x\x00",
          datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)]  # fmt: skip


@pytest.mark.shows("04.keyed-idempotency", 8)
def test_the_key_is_the_same_in_every_process_time_zone_and_width_of_number(spark: SparkSession) -> None:
    code = (
        "from lakewright.patterns.idempotency.stable_hash import hash_values\n"
        "import datetime; from decimal import Decimal\n"
        f"print(hash_values({VALUES!r}), hash('seed'))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}, text=True,
            capture_output=True, check=True,
        ).stdout.split()
        for seed, zone in (("1", "UTC"), ("2", "America/New_York"))
    ]  # fmt: skip
    assert told[0][1] != told[1][1], "their seeds differ"
    assert told[0][0] == told[1][0]
    kinds = "s string, n int, b boolean, d date, m decimal(10,2), r binary, t timestamp"
    frame = spark.createDataFrame([tuple(VALUES)], kinds)
    frame = frame.union(frame.withColumn("n", F.col("n").cast("bigint"))).repartition(2)
    found = add_idempotent_key(frame, columns=frame.columns, into="key").select("key").collect()
    assert {row["key"] for row in found} == {told[0][0]}
    # Decimals are shown by Java, which writes small ones with a power of ten.
    for kind, texts in SMALL.items():
        values = [Decimal(text) for text in texts]
        small = spark.createDataFrame([(value,) for value in values], f"m {kind}").select(idempotent_key("m"))
        assert [row[0] for row in small.collect()] == [hash_values([value]) for value in values]
    # Neither a name nor where one value ends and the next begins can be mistaken.
    two = spark.createDataFrame([("ab", "c"), ("a", "bc")], "x string, y string")
    assert two.select(idempotent_key("x", "y")).distinct().count() == 2


@pytest.mark.shows("04.keyed-idempotency", 7)
def test_rows_without_a_part_of_their_key_are_set_aside_and_never_hashed(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("u1", 1), (None, 2), ("u3", None), (None, None)], "user string, visit int")
    split = split_by_key(frame, columns=["user", "visit"])
    assert [row["user"] for row in split.keyed.collect()] == ["u1"]
    assert [row["why"] for row in split.rejected.orderBy(F.size("why"), "visit").collect()] == [
        ["no key: visit is NULL"],
        ["no key: user is NULL"],
        ["no key: user is NULL", "no key: visit is NULL"],
    ]
    assert add_idempotent_key(frame, columns=["user", "visit"]).where("idempotent_key IS NOT NULL").count() == 1
    with pytest.raises(ConfigurationError, match="several ways"):
        add_idempotent_key(frame.selectExpr("CAST(visit AS double) AS price"), columns=["price"])
    nested = frame.selectExpr("named_struct('name', user, 'visit', visit) AS who", "array(visit) AS visits")
    by_name = split_by_key(nested, columns=["who.name", "who.visit"])
    whole = split.keyed.collect() + by_name.keyed.collect()
    assert {row["idempotent_key"] for row in whole} == {hash_values(["u1", 1])}, "a name is no part of a key"
    assert by_name.rejected.where("array_contains(why, 'no key: who.visit is NULL')").count() == 2
    for column, cure in (("who", "who.name, who.visit"), ("visits", "array_join")):
        with pytest.raises(ConfigurationError, match="in which a NULL would hide") as refused:
            add_idempotent_key(nested, columns=[column])
        assert cure in (refused.value.hint or "")
    context: Any = SimpleNamespace(record_columns=("id",))
    guarded = KeyedIdempotency(columns=["who.name"]).on_batch(nested, context)
    assert guarded.side.keep == ("who",)
    with pytest.raises(MissingColumnsError, match="Did you mean 'user'"):
        add_idempotent_key(frame, columns=["usr"])
    # In other letters it is the same column, to Spark and to Delta.
    for taken in ({"into": "visit"}, {"into": "Visit"}, {"reasons_column": "VISIT"}):
        with pytest.raises(ConfigurationError, match="already has a column 'visit'"):
            split_by_key(frame, columns=["user"], **taken)


def test_a_wrong_option_is_refused_before_spark_is_needed() -> None:
    for options in ({"columns": []}, {"columns": "user"}, {"columns": ["a"], "into": "A"},
                    {"columns": ["a"], "stop_above": 2}, {"columns": ["a"], "stop_above_rows": -1}):  # fmt: skip
        with pytest.raises(ConfigurationError, match="Keyed Idempotency"):
            KeyedIdempotency(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one"):
        idempotent_key()
    with pytest.raises(ConfigurationError, match="float"):
        hash_values([1.5])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="NaN"):
        hash_values([Decimal("NaN")])
