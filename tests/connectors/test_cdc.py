"""Change data capture with a real PostgreSQL, Kafka and Debezium. Rules and refusals: test_cdc_rules.py."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakewright.connectors.cdc_changes import count_tombstones, unwrap_changes
from lakewright.connectors.cdc_connector import ChangeDataCapture
from lakewright.connectors.cdc_feed import CaptureFeed
from lakewright.connectors.cdc_settings import PLACEHOLDER
from lakewright.connectors.cdc_slot import drop_slot
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_records import read_ranges
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.model.secrets import Secret
from lakewright.testing.debezium import Debezium
from lakewright.testing.kafka import Kafka
from lakewright.testing.postgres import Postgres

VISITS = "id INT, page STRING, pages INT, body STRING"
KINDS = (
    "id INT, b BOOLEAN, i2 SMALLINT, i8 BIGINT, r FLOAT, d DOUBLE, nu DECIMAL(10,2), v STRING, u STRING, m STRING, "
    "j STRING, jb VARIANT, ts TIMESTAMP_NTZ, ts3 TIMESTAMP_NTZ, tz TIMESTAMP, da DATE, ti BIGINT, iv STRING, "
    "by BINARY, ia ARRAY<INT>, ta ARRAY<STRING>, na ARRAY<DECIMAL(10,2)>, tsa ARRAY<TIMESTAMP_NTZ>, daa ARRAY<DATE>"
)
WORTH = (
    "1, true, 2, 9007199254740993, 1.5, 'NaN', 12.34, 'é', '6f1c2d3e-0000-4000-8000-000000000001', 'ok', "
    """'{"a": 1}', '{"a": [1, 2]}', '2026-01-02 03:04:05.123456', '1969-12-31 23:59:59.999', """
    "'2026-01-02 03:04:05.123456+02', '1969-12-31', '03:04:05.5', '1 year 2 days', '\\x00ff', "
    "'{1,NULL}', '{a,NULL}', '{1.5}', '{2026-01-02 03:04:05}', '{2026-01-02}'"
)
"""A row of the table ``kinds``, as SQL."""


Feeds = Callable[..., CaptureFeed]


@pytest.fixture
def database(postgres: Postgres) -> Postgres:
    made = postgres.database()
    with made.connect() as connection:
        connection.execute(
            "CREATE TABLE visits (id int PRIMARY KEY, page text NOT NULL, pages int NOT NULL, body text)"
        )
        connection.execute("ALTER TABLE visits ALTER body SET STORAGE EXTERNAL")  # large values are not packed
    return made


@pytest.fixture
def feeds(database: Postgres, kafka: Kafka, debezium: Debezium, tmp_path: Path) -> Feeds:
    """Captures of a fresh database, by the name of their dataset."""

    def make(dataset: str, tables: list[str], *, at: Postgres = database, worker: str | None = None, **options: Any):
        (tmp_path / "password").write_text(at.password)
        url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
        found = [
            Connection("blog_db", url, Secret(f"secret://file/{tmp_path / 'password'}")),
            Connection("broker", f"kafka://{kafka.bootstrap}"),
            debezium.connection() if worker is None else Connection("cdc", worker),
        ]
        capture = ChangeDataCapture("blog_db", tables, **options)
        connections = Connections({one.name: one for one in found})
        return capture.feed(connections, project=database.name, dataset=dataset)

    return make


def wait_for(kafka: Kafka, topic: str, word: bytes, *, seconds: float = 30) -> None:
    """Read the topic until a message holds the word, which must be within so many seconds."""
    deadline = time.monotonic() + seconds
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
         "isolation.level": "read_committed", "topic.metadata.refresh.interval.ms": 500}
    )  # fmt: skip
    consumer.subscribe([topic])
    try:
        while True:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            assert message is not None, f"{word!r} did not come within {seconds} s"
            if message.error() is None and word in (message.value() or b""):
                return
    finally:
        consumer.close()


def messages_of(spark: SparkSession, kafka: Kafka, topic: str) -> DataFrame:
    client = KafkaClient("test", kafka.bootstrap)
    state = client.state(topic, "read_committed")
    ranges = {partition: (first, state.high[partition]) for partition, first in state.low.items()}
    options = {**client.spark_options(), "kafka.isolation.level": "read_committed"}
    return read_ranges(spark, topic, ranges, options)


def changes_of(spark: SparkSession, kafka: Kafka, topic: str, schema: str, **options: Any) -> list[Row]:
    messages = messages_of(spark, kafka, topic)
    return unwrap_changes(messages, schema=schema, **options).orderBy("_lw_offset").collect()


@pytest.mark.shows("02.change-data-capture", 1, 3, 8)
def test_every_change_comes_once_in_order_with_or_without_what_was_there_before(
    spark: SparkSession, database: Postgres, kafka: Kafka, debezium: Debezium, feeds: Feeds, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        connection.execute(
            "CREATE TABLE kinds (id int PRIMARY KEY, b boolean, i2 smallint, i8 bigint, r real, d double precision, "
            "nu numeric(10,2), v varchar(5), u uuid, m mood, j json, jb jsonb, ts timestamp, ts3 timestamp(3), "
            "tz timestamptz, da date, ti time, iv interval, by bytea, ia int[], ta text[], na numeric[], "
            "tsa timestamp[], daa date[])"
        )
        connection.execute(f"INSERT INTO kinds VALUES ({WORTH})".encode())
        connection.execute("INSERT INTO kinds (id, ts) VALUES (2, 'infinity')")
        connection.execute("INSERT INTO visits SELECT g, 'p' || g, g, repeat('x', 3000) FROM generate_series(1, 3) g")
    whole = feeds("whole", ["visits", "kinds"])
    later = feeds("later", ["visits"], snapshot=False)
    assert whole.preflight() == []
    assert [whole.register(), later.register(), whole.register()] == ["created", "created", "unchanged"]

    with database.connect() as connection:
        for statement in (
            "INSERT INTO visits VALUES (10, 'new', 1, NULL)",
            "UPDATE visits SET page = 'changed' WHERE id = 10",
            "DELETE FROM visits WHERE id = 10",
            "UPDATE visits SET page = 'kept the body' WHERE id = 1",
            "UPDATE visits SET id = 20 WHERE id = 2",
            "INSERT INTO visits VALUES (11, '__debezium_unavailable_value', 1, NULL)",
            "INSERT INTO visits VALUES (99, 'sentinel', 1, NULL)",
        ):
            connection.execute(statement.encode())
    for feed in (whole, later):
        wait_for(kafka, feed.topics["public.visits"], b"sentinel", seconds=30)
    _check_visits(spark, kafka, whole, later)
    _check_kinds(spark, kafka, whole)
    _check_password(kafka, debezium, database, whole)
    _check_stream(spark, kafka, database, whole, tmp_path)

    # Its life goes on: the figure to watch, a slot that somebody took away, and the end of both.
    slot = whole.slot()
    assert slot is not None
    assert slot.lag_bytes is not None
    assert slot.lag_bytes >= 0
    assert (whole.status().state, slot.reader) == ("running", "Debezium Streaming")
    (tmp_path / "password").write_text("changed since")
    assert whole.status()[0] == "waiting"
    assert "refuses the user or the password" in (whole.status().problem or "")
    (tmp_path / "password").write_text(database.password)
    later.reach.worker().stop(later.names.connector)
    with database.connect() as connection:
        assert drop_slot(connection, later.names.slot, who="test")
    with pytest.raises(TargetError, match="no longer has the log from which the capture would go on") as failed:
        later.register()
    assert "\tat " not in str(failed.value)
    assert (later.status().state, later.status().hint) == ("failed", failed.value.hint)
    assert later.decommission() == (True, False, True, None)
    assert later.register() == "created"  # from here on, not from a position that is worth nothing

    later.reach.worker().stop(later.names.connector)
    out_of_reach = feeds("later", ["visits"], worker="debezium://127.0.0.1:1").decommission()
    assert out_of_reach[:3] == (False, True, True)
    assert "decommission again later" in (out_of_reach.left or "")
    assert [later.decommission(), whole.decommission()] == [(True, False, False, None), (True, True, True, None)]
    assert (whole.status().state, whole.slot(), later.slot()) == ("absent", None, None)
    with database.connect() as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    assert not (debezium.password_folder / whole.names.connector).exists()


def _check_visits(spark: SparkSession, kafka: Kafka, whole: CaptureFeed, later: CaptureFeed) -> None:
    rows = changes_of(spark, kafka, whole.topics["public.visits"], VISITS, before=True)
    by_key: dict[int, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.id, []).append(row)
    assert {key: [row["_op"] for row in found] for key, found in by_key.items()} == {
        1: ["snapshot", "update"],
        2: ["snapshot", "delete"],
        3: ["snapshot"],
        10: ["insert", "update", "delete"],
        20: ["insert"],
        11: ["insert"],
        99: ["insert"],
    }
    for found in by_key.values():
        assert [row["_lsn"] for row in found] == sorted({row["_lsn"] for row in found})
    assert {row["_op"] for row in rows if row["_snapshot"]} == {"snapshot"}
    # Within 30 seconds of its commit each change was in the topic.
    sent = {row.offset: row.timestamp for row in messages_of(spark, kafka, whole.topics["public.visits"]).collect()}
    assert all(0 <= (sent[row["_lw_offset"]] - row["_committed_at"]).total_seconds() < 30 for row in rows)
    # What an update does not touch is not sent: told apart from NULL, and from a text that only looks like it.
    assert [(row.body, row["_not_sent"]) for row in by_key[1]] == [("x" * 3000, []), (None, ["body"])]
    assert (by_key[20][0].page, by_key[20][0]["_not_sent"]) == ("p2", ["body"])
    assert by_key[20][0]["_lsn"] == by_key[2][1]["_lsn"]
    assert (by_key[11][0].page, by_key[11][0]["_not_sent"]) == ("__debezium_unavailable_value", [])
    # Of a deleted row the key is known, and nothing is made up for the rest.
    gone = by_key[10][2]
    assert (gone.page, gone.pages, gone["_before"]) == (None, None, Row(id=10, page=None, pages=None, body=None))
    # Without a snapshot: all changes, and of what nobody changed nothing.
    seen = changes_of(spark, kafka, later.topics["public.visits"], VISITS)
    assert [(row.id, row["_op"], row["_lsn"]) for row in seen] == [
        (row.id, row["_op"], row["_lsn"]) for row in rows if row["_op"] != "snapshot"
    ]
    assert 3 not in {row.id for row in seen}


def _check_kinds(spark: SparkSession, kafka: Kafka, feed: CaptureFeed) -> None:
    [row, endless] = changes_of(spark, kafka, feed.topics["public.kinds"], KINDS)
    moment = datetime(2026, 1, 2, 3, 4, 5)
    assert row["_lw_raw"] is None
    found = {**row.asDict(), "d": str(row.d), "jb": str(row.jb), "tz": row.tz.replace(tzinfo=UTC)}
    expected: dict[str, Any] = {
        "id": 1, "b": True, "i2": 2, "i8": 9007199254740993, "r": 1.5, "d": "nan", "nu": Decimal("12.34"), "v": "é",
        "u": "6f1c2d3e-0000-4000-8000-000000000001", "m": "ok", "j": '{"a": 1}', "jb": '{"a":[1,2]}',
        "ts": moment.replace(microsecond=123456), "ts3": datetime(1969, 12, 31, 23, 59, 59, 999000),
        "tz": datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC), "da": date(1969, 12, 31), "ti": 11045500000,
        "iv": "P1Y0M2DT0H0M0S", "by": b"\x00\xff", "ia": [1, None], "ta": ["a", None], "na": [Decimal("1.50")],
        "tsa": [moment], "daa": [date(2026, 1, 2)],
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert (endless["_op"], endless.id) == (None, 2)  # a time that Spark has no value for: kept as text
    assert json.loads(endless["_lw_raw"])["after"]["id"] == 2


def _check_password(kafka: Kafka, debezium: Debezium, database: Postgres, feed: CaptureFeed) -> None:
    """It is in no answer of the worker, nor in its log or its topics."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ("", "/config", "/status", "/tasks"):
        with opener.open(f"{debezium.url}/connectors/{feed.names.connector}{path}", timeout=30) as answer:
            text = answer.read().decode()
        assert feed.names.connector in text
        assert database.password not in text
    service = debezium.password_folder.parent.parent
    assert database.password not in (service / "debezium.log").read_text()
    segments = list(service.with_name("kafka").glob("data/lakewright-debezium-*/*.log"))
    assert len(segments) > 2
    assert not any(database.password.encode() in segment.read_bytes() for segment in segments)


def _check_stream(spark: SparkSession, kafka: Kafka, database: Postgres, feed: CaptureFeed, folder: Path) -> None:
    """What is no change comes with its text or as a tombstone, and the stream goes on to the next change."""
    topic = feed.topics["public.visits"]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in (b'{"op":"c","after":{"id"', None):
        producer.produce(topic, value, b'{"id":5}')
    assert producer.flush(30) == 0
    client = KafkaClient("test", kafka.bootstrap)
    reader = spark.readStream.format("kafka").options(**client.spark_options()).option("subscribe", topic)
    messages = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed").load()
    changes = unwrap_changes(messages, schema=VISITS, tombstones="keep")
    writer = changes.writeStream.format("memory").queryName(feed.names.slot)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        query.processAllAvailable()
        with database.connect() as connection:
            connection.execute("INSERT INTO visits VALUES (100, 'after it', 1, NULL)")
        wait_for(kafka, topic, b"after it")
        query.processAllAvailable()
        assert query.exception() is None
        last = spark.table(feed.names.slot).orderBy(F.desc("_lw_offset")).limit(3).collect()
    finally:
        query.stop()
    assert [(row["_op"], row["_lw_raw"], row.id) for row in last] == [
        ("insert", None, 100),
        ("tombstone", None, None),
        (None, '{"op":"c","after":{"id"', None),
    ]


@pytest.mark.shows("02.change-data-capture", 7)
def test_a_database_that_is_not_ready_is_told_by_all_that_is_missing(
    feeds: Feeds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lakewright.runtime.services import guard, up
    from lakewright.runtime.services import postgres as service
    from lakewright.runtime.services.processes import this_process

    monkeypatch.setattr(service, "SETTINGS", {**service.SETTINGS, "wal_level": "replica"})
    folder = tmp_path / "services"
    folder.mkdir()
    try:
        address = up(folder, ["postgres"], only_while=this_process())[0].address
        assert address is not None
        assert address.password_file is not None
        admin = Postgres.at(address.shown, address.password_file.read_text())
        with admin.connect() as connection:
            connection.execute("CREATE TABLE visits (id int)")
            connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{admin.password}'".encode())
        poor = Postgres(admin.host, admin.port, "guest", admin.password, admin.name)
        feed = feeds("poor", ["visits", "visit"], at=poor)
        names = [problem.name for problem in feed.preflight()]
        lacking = ["wal_level", "REPLICATION", f"publication {feed.names.publication}"]
        assert names == [*lacking, "table public.visits", "table public.visits", "table public.visit"]
        with pytest.raises(ConfigurationError, match=r"wal_level: is 'replica', and logical replication needs"):
            feeds("poor", ["visits"], at=admin).register()
        assert feed.status().state == "absent"
    finally:
        guard.throw_away(folder)


def test_a_message_that_is_no_change_is_kept_as_it_came_and_stops_nothing(spark: SparkSession) -> None:
    def event(op: str = "c", after: Any = None, **more: Any) -> bytes:
        source = {"lsn": 5, "txId": 7, "ts_ms": 1767225600000, "snapshot": "false"}
        return json.dumps({"before": None, "after": after, "source": source, "op": op, **more}).encode()

    good = {"id": 1, "at": 1767225600000, "nu": "1.5", "ia": [1]}
    values = [
        event(after=good),
        None,
        b'{"op":"c","after":{"id"',
        b"\xff\xfe",
        event(after=good) + b" and more",
        event(op="x", after=good),
        event(op="u"),
        event(op="d"),
        event(after=good, source={"txId": 7}),
        event(after={**good, "id": "one"}),
        event(after={**good, "nu": "1.555"}),
        event(after={**good, "ia": [1, "two"]}),
        event(after={**good, "at": "soon"}),
        event(op="t"),
        event(op="u", after={**good, "ia": list(PLACEHOLDER.encode())}),
        event(op="d", before=good),
    ]
    rows = [(b'{"id":1}', value, "t", 0, offset) for offset, value in enumerate(values)]
    messages = spark.createDataFrame(rows, "key binary, value binary, topic string, partition int, offset bigint")
    schema = "id INT, at TIMESTAMP, nu DECIMAL(9,2), ia ARRAY<INT>"
    changes = unwrap_changes(messages, schema=schema, millis=["at"], tombstones="keep", full_before=True).collect()
    told = {row["_lw_offset"]: row for row in changes}
    assert [told[n]["_op"] for n in range(2)] == ["insert", "tombstone"]
    first = told[0]
    assert (first.id, first.nu, first.ia) == (1, Decimal("1.50"), [1])
    assert first["at"] == first["_committed_at"] == datetime(2026, 1, 1)
    kept = range(2, 13)
    assert [told[n]["_op"] for n in kept] == [None] * len(kept)
    texts = [values[n].decode("latin-1") for n in kept if values[n] is not None]  # type: ignore[union-attr]
    assert [told[n]["_lw_raw"] for n in kept] == texts
    assert [(told[n]["_op"], told[n]["_lw_raw"]) for n in range(13, 16)] == [
        *(("truncate", None), ("update", None), ("delete", None))
    ]
    assert (told[14].ia, told[14]["_not_sent"]) == (None, ["ia"])
    assert told[15].ia == [1]
    assert count_tombstones(messages) == 1
    assert unwrap_changes(messages, schema=schema).where("_lw_offset = 1").isEmpty()
    with pytest.raises(ConfigurationError, match="_op, which the change itself brings"):
        unwrap_changes(messages, schema="_op STRING")
    with pytest.raises(ConfigurationError, match="'j' is declared as struct"):
        unwrap_changes(messages, schema="j STRUCT<a: INT>")
