"""A topic as a source: each message once, by recorded offsets; what is lost is told, never skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from tests.pipelines.shop import ok

from lakewright.connectors.kafka import KafkaTopic, after
from lakewright.connectors.kafka_client import KafkaClient, TopicState
from lakewright.connectors.kafka_errors import in_words
from lakewright.connectors.kafka_options import spark_options
from lakewright.connectors.kafka_rewind import starts_of
from lakewright.connectors.kafka_windows import left_of, window_of
from lakewright.errors import ConfigurationError, InputError, TargetError, UnknownNameError
from lakewright.lake.delta_errors import is_transient
from lakewright.model.arrivals import Arrival, Window
from lakewright.model.connections import Connection, Connections
from lakewright.model.protocols import SourceContext
from lakewright.testing.kafka import Kafka

SCHEMA = "visit_id string, at timestamp"
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Follower:
    """A topic, and a source that follows it as a pipeline would."""

    spark: SparkSession
    kafka: Kafka
    topic: str
    options: Mapping[str, Any] = field(default_factory=dict)
    last: Window | None = None
    number: int = 0

    @property
    def source(self) -> KafkaTopic:
        return KafkaTopic("broker", self.topic, **self.options)

    @property
    def ctx(self) -> SourceContext:
        broker = Connection("broker", f"kafka://{self.kafka.bootstrap}")
        connections = Connections({"broker": broker})
        return SourceContext("visits", Path("/nowhere"), last_window=self.last, connections=connections)

    def send(self, partition: int, *values: bytes | str | None, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 0})
        for value in values:
            producer.produce(self.topic, value, partition=partition, **more)
        assert producer.flush(10) == 0

    def take(self) -> Arrival | None:
        found = self.source.look(self.ctx)
        if found is None:
            return None
        self.number += 1
        self.last = json.loads(json.dumps(found.window))
        return Arrival("visits", self.number, self.last, JANUARY)

    def read(self, arrival: Arrival | None, schema: str | None = SCHEMA) -> DataFrame:
        assert arrival is not None
        assert self.source.gone(arrival, self.ctx) == []
        struct = None if schema is None else self.spark.createDataFrame([], schema).schema
        return self.source.read(arrival, spark=self.spark, schema=struct, ctx=self.ctx)

    def offsets(self) -> dict[str, Any]:
        assert self.last is not None
        return dict(self.last["partitions"])  # type: ignore[arg-type]


@pytest.fixture
def follow(spark: SparkSession, kafka: Kafka) -> Iterator[Any]:
    def make(partitions: int = 2, settings: Mapping[str, str] | None = None, **options: Any) -> Follower:
        return Follower(spark, kafka, kafka.topic(partitions=partitions, settings=settings), options)

    return make


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=str)


def test_each_message_arrives_once_and_a_broken_one_keeps_its_text_and_its_place(follow):
    topic = follow(key="user", headers="meta", timestamp="sent_at")
    assert topic.take() is None
    topic.send(0, '{"visit_id": "a", "at": "2026-01-01T10:00:00.123456Z"}', key="u1", headers=[("h", "1"), ("h", "2")])
    topic.send(0, '{"visit_id": "cut', '{"visit_id": "b", "at": "no time"}', "[1]", '{"visit_id": 1}{}', key="u2")
    topic.send(1, None, key="u3")
    topic.send(1, b'{"visit_id": "\xe9"}', timestamp=1767225600000)
    first = topic.take()
    assert topic.offsets() == {"0": [0, 5], "1": [0, 2]}
    topic.send(1, '{"visit_id": "c"}')

    frame = topic.read(first)
    head = ["visit_id", "at", "user", "meta", "sent_at"]
    assert frame.columns == [*head, "_lw_raw", "_lw_topic", "_lw_partition", "_lw_offset"]
    assert rows(frame, "_lw_partition", "_lw_offset", "visit_id", "user", "_lw_raw") == [
        (0, 0, "a", "u1", None),
        (0, 1, None, "u2", '{"visit_id": "cut'),
        (0, 2, "b", "u2", '{"visit_id": "b", "at": "no time"}'),
        (0, 3, None, "u2", "[1]"),
        (0, 4, "1", "u2", '{"visit_id": 1}{}'),
        (1, 0, None, "u3", ""),
        (1, 1, "é", None, '{"visit_id": "é"}'),
    ]
    good = frame.where("visit_id = 'a'").first()
    assert (good["_lw_topic"], good["meta"], good["at"].microsecond) == (topic.topic, {"h": "2"}, 123456)
    assert rows(frame.where("_lw_partition = 1 AND _lw_offset = 1"), "sent_at", "meta") == [(datetime(2026, 1, 1), {})]

    second = topic.take()
    assert topic.offsets() == {"0": [5, 5], "1": [2, 3]}
    assert rows(topic.read(second), "visit_id", "_lw_offset") == [("c", 2)]
    assert topic.take() is None


def test_a_value_can_be_text_or_bytes_and_then_a_missing_one_is_null(follow):
    topic = follow(1, value="text", key="k", headers="h")
    topic.send(0, "héllo", None, b"\xff", key=b"\x00\xff", headers=[("a", b"\x01")])
    arrival = topic.take()
    assert rows(topic.read(arrival, None), "value", "_lw_raw") == [("héllo", None), (None, "ÿ"), (None, None)]
    declared = "k binary, body string, h array<struct<key: string, value: binary>>"
    kept = topic.read(arrival, declared)
    assert kept.columns[:3] == ["k", "body", "h"]
    row = kept.where("_lw_offset = 0").first()
    assert (bytes(row["k"]), row["h"][0]["key"], bytes(row["h"][0]["value"])) == (b"\x00\xff", "a", b"\x01")
    with pytest.raises(ConfigurationError, match="one column of the type string"):
        topic.read(arrival, "a string, b int")
    topic.options = {"value": "bytes", "key": "k"}
    assert [bytes(row[0]) for row in rows(topic.read(arrival, None).where("_lw_offset = 2"), "value")] == [b"\xff"]
    with pytest.raises(ConfigurationError, match="declared as int"):
        topic.read(arrival, "value binary, k int")


def test_only_committed_messages_arrive_and_an_open_transaction_is_waited_for(follow, kafka):
    topic = follow(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic.topic, "log_level": 0})
    producer.init_transactions()
    for value, end in (("{}", producer.abort_transaction), ('{"visit_id": "in"}', producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic.topic, value)
        producer.flush()
        end()
    producer.begin_transaction()
    producer.produce(topic.topic, '{"visit_id": "open"}')
    producer.flush()
    while (arrival := topic.take()) is None or topic.offsets()["0"][1] < 4:  # the commit's mark comes a moment later
        topic.last = None
    assert rows(topic.read(arrival), "visit_id", "_lw_offset") == [("in", 2)]
    assert topic.take() is None
    topic.options = {"isolation": "read_uncommitted"}
    assert rows(topic.read(topic.take()), "visit_id") == [("open",)]
    topic.options = {}
    assert topic.take() is None  # its position lies beyond what is committed: that is no loss
    producer.abort_transaction()


def test_an_arrival_is_bounded_and_where_it_begins_can_be_chosen(follow, kafka):
    topic = follow(max_records=4)
    topic.send(0, *["{}"] * 9, timestamp=1_000)
    topic.send(1, "{}", timestamp=9_000)
    assert [topic.take() is not None for _ in range(4)] == [True, True, True, False]
    assert topic.offsets() == {"0": [7, 9], "1": [1, 1]}

    at = topic.source.position_at(topic.ctx, datetime.fromtimestamp(5, UTC))
    assert at["partitions"] == {"0": [9, 9], "1": [0, 0]}
    assert topic.source.end(topic.ctx)["partitions"] == {"0": [9, 9], "1": [1, 1]}
    topic.last, topic.options = None, {"start": "1970-01-01T00:00:05"}
    topic.take()
    assert topic.offsets() == {"0": [9, 9], "1": [0, 1]}

    topic.last, topic.options = None, {"start": "latest"}
    empty = topic.take()
    assert topic.offsets() == {"0": [9, 9], "1": [1, 1]}
    assert topic.read(empty).isEmpty()
    assert topic.take() is None
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic.topic, 3)])[topic.topic].result(10)
    topic.send(2, '{"visit_id": "new partition"}')
    frame = topic.read(topic.take())
    assert rows(frame, "visit_id") == [("new partition",)]
    assert frame.where(after(at)).count() == 1


def test_records_that_were_deleted_before_they_were_read_are_told_and_never_skipped_silently(follow, kafka):
    topic = follow(1)
    topic.send(0, "{}", "{}")
    first = topic.take()
    topic.send(0, "{}", "{}", "{}")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(topic.topic, 0, 4)
    admin.delete_records([place])[place].result(10)
    with pytest.raises(InputError, match="partition 0, offsets 2 to 3") as lost:
        topic.take()
    assert 'if_lost="go on"' in str(lost.value)
    assert topic.source.gone(first, topic.ctx) == [
        "offsets 0 to 1 of partition 0 were deleted by the topic's retention"
    ]
    topic.options = {"if_lost": "go on"}
    found = topic.source.look(topic.ctx)
    assert (found.window["partitions"], found.window["lost"]) == ({"0": [4, 5]}, {"0": [2, 4]})
    assert "2 offsets before them are lost" in found.summary

    admin.delete_topics([topic.topic])[topic.topic].result(10)
    again = NewTopic(topic.topic, num_partitions=1, replication_factor=1)
    admin.create_topics([again])[topic.topic].result(10)
    topic.send(0, *["{}"] * 9)
    with pytest.raises(InputError, match="made anew"):
        topic.take()
    assert topic.source.gone(first, topic.ctx) == [f"the topic '{topic.topic}' was deleted and made anew"]
    with pytest.raises(InputError, match="made anew"):
        topic.source.stream(spark=topic.spark, schema=None, ctx=topic.ctx, start=topic.last)


def test_what_is_left_of_a_window_ends_where_that_ended_and_notes_all_that_is_lost():
    state = TopicState("visits", "id", {0: 6, 1: 0, 2: 9}, {0: 9, 1: 9, 2: 9})
    window = window_of(state, {0: (4, 8), 1: (2, 3), 2: (1, 5)}, {0: (2, 4)})
    left = {0: (6, 8), 1: (2, 3), 2: (5, 5)}, {0: (2, 6), 2: (1, 5)}
    assert left_of("visits", window, state, state.high) == left
    with pytest.raises(InputError, match="partition 0 of 'visits' ends at offset 7, but was already recorded up to 8"):
        left_of("visits", window, state, {**state.high, 0: 7})
    with pytest.raises(InputError, match="made anew"):
        left_of("visits", {**window, "topic_id": "another"}, state, state.high)


def test_what_is_wrong_is_told_in_words_and_soon(follow, kafka, monkeypatch):
    topic = follow(1)
    topic.topic += "x"
    with pytest.raises(InputError, match="no topic") as unknown:
        topic.take()
    assert f"Did you mean '{topic.topic[:-1]}'" in str(unknown.value)
    monkeypatch.setattr("lakewright.connectors.kafka_client._TIMEOUT_SECONDS", 0.5)
    dead = Connections({"broker": Connection("broker", "kafka://127.0.0.1:1")})
    with pytest.raises(TargetError, match=r"no Kafka broker answers at 127\.0\.0\.1:1") as down:
        topic.source.look(SourceContext("visits", Path("/nowhere"), connections=dead))
    assert is_transient(down.value)
    with pytest.raises(UnknownNameError):
        topic.source.look(SourceContext("visits", Path("/nowhere")))
    with pytest.raises(ConfigurationError, match="needs a schema"):
        topic.source.read(
            Arrival("visits", 1, {"partitions": {}}, JANUARY), spark=topic.spark, schema=None, ctx=topic.ctx
        )


@pytest.mark.parametrize(
    ("code", "words", "refused"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: Invalid username or password", True),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", True),
        (KafkaError._SSL, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?", False),
        (KafkaError._AUTHENTICATION, "SASL: Connection reset by peer", False),
        (KafkaError._TRANSPORT, "Connection refused", False),
    ],
)
def test_a_silent_broker_has_refused_a_login_only_where_it_said_so(code, words, refused):
    client = KafkaClient("visits", "127.0.0.1:1")
    client.driver_options()["error_cb"](KafkaError(code, words))
    silent = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    with pytest.raises(TargetError) as told, in_words(client.explain("visits", "Nothing was read.")):
        raise silent
    assert ("did not let us in" in str(told.value)) == refused
    assert is_transient(told.value) != refused


def test_the_options_of_a_connection_reach_spark_in_the_words_of_its_own_client():
    sasl = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "blog", "sasl.password": 'p"w'}
    java = spark_options("b:1", {"security.protocol": "SASL_SSL", **sasl, "ssl.ca.location": "/ca.pem"})
    assert java["kafka.security.protocol"] == "SASL_SSL"
    assert java["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="blog" password="p\\"w";')
    assert (java["kafka.ssl.truststore.type"], java["kafka.ssl.truststore.location"]) == ("PEM", "/ca.pem")
    assert not any("sasl.password" in name for name in java)
    with pytest.raises(ConfigurationError, match="cannot be translated"):
        spark_options("b:1", {"sasl.mechanism": "GSSAPI", "sasl.username": "blog"})


@pytest.mark.parametrize(
    "options",
    [{"value": "avro"}, {"if_lost": "skip"}, {"max_records": 0}, {"start": "soon"}, {"key": "k", "headers": "k"},
     {"key": "_lw_x"}, {"options": {"mode": "FAILFAST"}}],
)  # fmt: skip
def test_a_wrong_option_is_refused_when_the_file_is_loaded(options):
    with pytest.raises(ConfigurationError):
        KafkaTopic("broker", "visits", **options)


def test_a_stream_reads_the_same_columns_from_a_position_on(follow, tmp_path):
    topic = follow(key="user")
    topic.send(0, '{"visit_id": "old"}')
    begin = topic.source.end(topic.ctx)
    topic.send(0, '{"visit_id": "new"}', "cut", key="u")
    struct = topic.spark.createDataFrame([], SCHEMA).schema
    frame = topic.source.stream(spark=topic.spark, schema=struct, ctx=topic.ctx, start=begin, max_records=1)
    query = (
        frame.writeStream.format("memory").queryName("kafka_stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    taken = [json.loads(told.json)["sources"][0]["numInputRows"] for told in query.recentProgress]
    assert [rows for rows in taken if rows] == [1, 1], "a micro-batch holds no more than it may"
    found = topic.spark.table("kafka_stream")
    assert found.columns == topic.read(topic.take()).columns
    assert rows(found, "visit_id", "user", "_lw_raw", "_lw_offset") == [("new", "u", None, 1), (None, "u", "cut", 2)]


def test_a_stream_that_begins_at_the_end_reads_a_partition_that_is_added_later_from_its_beginning(
    follow, kafka, tmp_path
):
    topic = follow(1, start="latest")
    topic.send(0, '{"visit_id": "old"}')
    begin = topic.source.beginning(topic.ctx)
    struct = topic.spark.createDataFrame([], SCHEMA).schema

    kept = tmp_path / "kept"

    def read_on() -> list[str]:
        frame = topic.source.stream(spark=topic.spark, schema=struct, ctx=topic.ctx, start=begin).select("visit_id")
        query = (
            frame.writeStream.format("text").option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start(str(kept))
        )  # fmt: skip
        assert query.awaitTermination(60)
        return sorted(row[0] for row in topic.spark.read.text(str(kept)).collect())

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for partition in (1, 2):  # before the stream has read anything, and when it has
        admin.create_partitions([NewPartitions(topic.topic, partition + 1)])[topic.topic].result(10)
        topic.send(partition, f'{{"visit_id": "{partition}"}}')
        assert read_on() == ["1", "2"][:partition]


def test_a_stream_whose_records_vanish_after_its_start_was_checked_fails_and_skips_none(follow, kafka, tmp_path):
    topic = follow(1)
    topic.send(0, "{}", "{}", "{}")
    begin = topic.source.beginning(topic.ctx)
    struct = topic.spark.createDataFrame([], SCHEMA).schema
    frame = topic.source.stream(spark=topic.spark, schema=struct, ctx=topic.ctx, start=begin)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(topic.topic, 0, 2)
    admin.delete_records([place])[place].result(10)
    query = (
        frame.writeStream.format("memory").queryName("kafka_vanished")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    with pytest.raises(Exception, match="kafka_vanished"):
        query.awaitTermination(60)
    told = topic.source.explain(query.exception(), "visits")
    assert isinstance(told, InputError)
    assert "were deleted while they were being read" in told.message
    assert topic.spark.table("kafka_vanished").isEmpty()


@pytest.mark.parametrize("if_lost", ["fail", "go on"])
def test_a_stream_never_begins_after_records_that_are_lost_without_a_word(follow, kafka, if_lost):
    topic = follow(1, if_lost=if_lost)
    topic.send(0, "{}", "{}", "{}")
    begin = topic.source.beginning(topic.ctx)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(topic.topic, 0, 2)
    admin.delete_records([place])[place].result(10)
    with pytest.raises(InputError, match="partition 0, offsets 0 to 1"):
        topic.source.stream(spark=topic.spark, schema=None, ctx=topic.ctx, start=begin)
    # Where a stream goes on, and what is gone before that, is told apart.
    past = topic.source.past_lost(topic.ctx, None, begin, None)
    assert (past["partitions"], past["lost"], past["began"]) == ({"0": [2, 2]}, {"0": [0, 2]}, {"0": 0})
    assert topic.source.lost_words(past) == "partition 0, offsets 0 to 1"


@pytest.mark.parametrize(
    ("read", "starts"),
    [
        # Marks of a transaction, what was told as lost, rows that were given up: it was read, and may be gone.
        ({0: 9, 1: 9, 2: 9, 3: 9, 4: 9}, {0: 3, 1: 5, 2: 9, 3: 7, 4: 6}),
        # What was not read, or was taken back by a rollback, is not passed over, though it is gone.
        ({0: 4, 1: 2, 2: 3, 3: 0}, {0: 3, 1: 2, 2: 3, 3: 0, 4: 2}),
    ],
)
def test_a_stream_that_reads_again_begins_after_what_is_gone_only_where_it_had_been_read(
    spark: SparkSession, read: dict[int, int], starts: dict[int, int]
) -> None:
    places = "(0, 2, 7), (0, 3, 8), (1, 1, 7), (2, 2, 7), (4, 1, 7), (4, 6, 8)"
    found = spark.sql(f"SELECT * FROM VALUES {places} AS t(_lw_partition, _lw_offset, _lw_arrival)")
    low, began = {0: 0, 1: 5, 2: 12, 3: 7, 4: 4}, dict.fromkeys(range(4), 0)
    assert starts_of(found, 8, low=low, began=began, read=read) == {**starts, 4: 4}


PROJECT = """
    from lakewright import Pipeline
    from lakewright.connectors.kafka import KafkaTopic
    from lakewright.connectors.kafka_destination import KafkaMessages

    blog = Pipeline("blog", schedule="@daily", start="2026-01-01")
    blog.source("visits", KafkaTopic("broker", "{topic}", key="user_id"), schema="visit_id string, at timestamp",
                event_time="at")

    @blog.dataset(event_time="at", rows="preserve")
    def clean(visits):
        '''Visits that can be trusted.'''
        return visits.select("visit_id", "user_id", "at")

    @blog.dataset(event_time="at", into=KafkaMessages("broker", "{out}", key="user_id", ledger="{out}.ledger"))
    def sent(clean):
        '''The same, for those who listen.'''
        return clean
"""


def test_a_project_takes_a_topic_sends_to_another_and_tells_where_a_bad_record_is(follow, project, kafka):
    topic, out = follow(), follow(1, key="user_id", headers="h")
    blog = project(
        {
            "lakewright.toml": f'name = "blog"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n',
            "pipelines/blog.py": PROJECT.replace("{topic}", topic.topic).replace("{out}", out.topic),
        }
    )
    topic.send(0, '{"visit_id": "a", "at": "2026-01-01T10:00:00Z"}', '{"visit_id": "cut', key="u1")
    topic.send(1, None, '{"visit_id": "b"}', key="u2")
    ok(blog.run(at="2026-01-02"))
    assert rows(blog.lake.read("clean"), "visit_id", "user_id") == [("a", "u1")]
    letters = blog.sql("SELECT topic, partition, offset, rule, raw, file, file_version, record FROM dead_letters")
    told = rows(letters.drop("record", "topic"), *letters.columns[1:7])
    assert told == [
        (0, 1, "unreadable record", '{"visit_id": "cut', f"{topic.topic}/0", "1"),
        (1, 0, "record without a value", "", f"{topic.topic}/1", "0"),
        (1, 1, "no usable event time", None, f"{topic.topic}/1", "1"),
    ]
    assert {row["topic"] for row in letters.collect()} == {topic.topic}
    assert '"user_id":"u2"' in letters.where("offset = 0").first()["record"]
    while (arrival := out.take()) is None:  # the mark of the commit comes a moment later
        pass
    sent = out.read(arrival, "visit_id string, at timestamp, user_id string, h map<string, string>").first()
    assert (sent["visit_id"], sent["user_id"], sent["at"].hour) == ("a", "u1", 10)
    assert (sent["h"]["lw-dataset"], sent["h"]["lw-slice"]) == ("sent", "2026-01-01")
    receipt = blog.store.receipts.live("sent", "2026-01-01")
    assert (receipt.version, receipt.rows, str(receipt.number)) == (1, 1, sent["h"]["lw-number"])
    receipt = blog.store.receipts.live("visits", "arrival-1")
    assert (receipt.counters.read, receipt.counters.corrupt) == (4, 1)


def test_a_table_of_dead_letters_that_knows_no_topics_gains_the_columns(spark, lake_folder):
    from lakewright.lake.lake import Lake
    from lakewright.lake.side_tables import DEAD_LETTERS, dead_letter_rows, write_side_rows
    from lakewright.model.identity import Identity

    lake = Lake(str(lake_folder), lambda: spark)

    def letters(number: int, columns: str) -> DataFrame:
        from pyspark.sql import functions as F

        frame = lake.session().sql(f"SELECT {columns}, 'x' AS _lw_raw")
        who = Identity("visits", f"arrival-{number}", number, "r", code="c", run_time="2026-01-01T00:00:00+00:00")
        return dead_letter_rows(frame, reasons=F.array(F.lit("bad")), identity=who, input_name="visits", keep=())

    old = letters(1, "'a.json' AS _lw_file, '1-1' AS _lw_file_version").drop("topic", "partition", "offset")
    assert write_side_rows(lake, DEAD_LETTERS, old, Identity("visits", "arrival-1", 1, "r", part="dead_letters"))
    new = letters(2, "'t' AS _lw_topic, 3 AS _lw_partition, 7L AS _lw_offset")
    assert write_side_rows(lake, DEAD_LETTERS, new, Identity("visits", "arrival-2", 2, "r", part="dead_letters"))
    kept = lake.read(DEAD_LETTERS, system_columns=True)
    assert rows(kept, "file", "file_version", "topic", "partition", "offset") == [
        ("a.json", "1-1", None, None, None),
        ("t/3", "7", "t", 3, 7),
    ]
