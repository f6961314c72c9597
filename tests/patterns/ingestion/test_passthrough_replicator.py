"""Passthrough Replicator: the copy is what the source is, and a proof says so."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.patterns.delta import table

from lakewright.connectors.kafka_replica import PLACE_HEADERS, replicate_topic
from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.model.contracts import Contract, ContractColumn
from lakewright.patterns.ingestion.mirror_folder import mirror_folder
from lakewright.patterns.ingestion.passthrough_replicator import replicate_text, replicate_unchanged
from lakewright.patterns.ingestion.replica_proof import Proof, compare_copies

LINES = [
    b'{"type": "phone",   "n": 12345678901234567890.10}',
    b'{"type": "phone", "unknown": {"a": [1, 2]}}\r',
    b"{not json at all",
    b"",
    b"caf\xe9 in Latin-1",
    b"  spaces around  ",
]


def bytes_of(folder: Path) -> list[bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(("_", "."))]
    return sorted(line for file in files for line in file.read_bytes().removesuffix(b"\n").split(b"\n"))


@pytest.mark.shows("02.passthrough-replicator", 1)
@pytest.mark.shows("02.passthrough-replicator", 2)
@pytest.mark.shows("02.passthrough-replicator", 6)
def test_lines_are_copied_as_bytes_and_files_with_their_names(spark, tmp_path):
    source, target = tmp_path / "in" / "date=2026-01-01", tmp_path / "out" / "date=2026-01-01"
    source.mkdir(parents=True)
    target.parent.mkdir()
    (source / "a.json").write_bytes(b"\n".join(LINES) + b"\n")
    (source / "b.json").write_bytes(LINES[0] + b"\n")
    for _ in range(2):  # a repeat replaces
        assert replicate_text(spark, str(source), str(target)).rows == 7
        assert bytes_of(target) == bytes_of(source)
    names = {file.name for file in target.rglob("*.json")}
    assert not names & {"a.json", "b.json"}, "text mode keeps no names: the page says so"
    mirrored = tmp_path / "mirror" / "date=2026-01-01"
    mirror_folder(source, mirrored)
    assert {f.name: f.read_bytes() for f in mirrored.iterdir()} == {f.name: f.read_bytes() for f in source.iterdir()}


@pytest.mark.shows("02.passthrough-replicator", 5)
@pytest.mark.shows("02.passthrough-replicator", 6)
def test_a_delta_table_is_copied_at_one_version_while_somebody_writes(spark, tmp_path):
    source, target = str(tmp_path / "source"), str(tmp_path / "target")

    def append(number: int) -> None:
        rows = spark.createDataFrame([(number, f"day{number % 2}")], "n int, day string")
        rows.write.format("delta").mode("append").partitionBy("day").option("delta.appendOnly", "true").save(source)

    append(0)
    writer = threading.Thread(target=lambda: [append(number) for number in range(1, 4)])
    writer.start()
    proof = replicate_unchanged(spark, source, target)
    writer.join()
    noted = spark.sql(f"DESCRIBE HISTORY delta.`{target}`").first()["userMetadata"]
    version = json.loads(noted)["replica_of"]
    assert table(spark, target) == sorted((n, f"day{n % 2}") for n in range(version + 1))
    assert proof.rows == version + 1
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target}`").first()
    assert detail["partitionColumns"] == ["day"]
    assert detail["properties"]["delta.appendOnly"] == "true"

    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES (delta.appendOnly = false)")
    for _ in range(2):
        assert replicate_unchanged(spark, source, target, version=1).rows == 2
        assert table(spark, target) == [(0, "day0"), (1, "day1")]
    assert replicate_unchanged(spark, source, target, version=3, where="day = 'day1'").rows == 2
    assert table(spark, target) == [(0, "day0"), (1, "day1"), (3, "day1")]
    with pytest.raises(InputError, match="there is no Delta table at"):
        replicate_unchanged(spark, str(tmp_path / "nothing"), target)


@pytest.mark.shows("02.passthrough-replicator", 8)
def test_what_a_contract_calls_private_is_not_copied(spark, tmp_path):
    contract = Contract("users", (ContractColumn("user_id", "string"), ContractColumn("ip", "string", tags=("pii",))))
    for replicate in (replicate_unchanged, replicate_text):
        with pytest.raises(ConfigurationError, match=r"tags the columns ip as pii.*Transformation Replicator"):
            replicate(spark, str(tmp_path / "in"), str(tmp_path / "out"), contract=contract)
    assert not (tmp_path / "out").exists()


def test_copies_that_differ_are_told_apart():
    with pytest.raises(TargetError, match="has 2 rows and the copy 1"):
        compare_copies(Proof(2, "a"), Proof(1, "a"), what="replica")
    with pytest.raises(TargetError, match=r"as many rows as the source \(2\), but other ones"):
        compare_copies(Proof(2, "a"), Proof(2, "b"), what="replica")


def messages(kafka, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "test", "enable.auto.commit": False})
    try:
        place = TopicPartition(topic, partition, 0)
        _, end = reader.get_watermark_offsets(place)
        reader.assign([place])
        found = [message for _ in range(end) for message in reader.consume(1, timeout=10)]
        return [(m.key(), m.value(), m.headers() or []) for m in found]
    finally:
        reader.close()


@pytest.mark.shows("02.passthrough-replicator", 3)
@pytest.mark.shows("02.passthrough-replicator", 4)
@pytest.mark.shows("02.passthrough-replicator", 7)
def test_a_topic_is_copied_with_its_order_and_a_repeat_can_be_told(spark, kafka, tmp_path):
    source, target, narrow = kafka.topic(partitions=2), kafka.topic(partitions=3), kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for number in range(6):
        producer.produce(
            source,
            None if number == 2 else f"value {number}",
            key=None if number % 3 == 0 else f"key {number}",
            partition=number % 2,
            headers=[("trace", b"\xff\x00"), ("trace", b"2")] if number < 4 else None,
        )
    assert producer.flush(10) == 0
    connections = Connections({"broker": Connection("broker", f"kafka://{kafka.bootstrap}")})

    def replicate(to: str) -> None:
        query = replicate_topic(
            spark,
            connections,
            source=("broker", source),
            target=("broker", to),
            checkpoint=str(tmp_path / "checkpoint"),
            max_messages=4,
        )
        query.awaitTermination()

    with pytest.raises(ConfigurationError, match=r"has 1 partitions and .* 2: the order"):
        replicate(narrow)
    with pytest.raises(Exception, match="no topic"):
        replicate("nowhere")
    assert messages(kafka, narrow, 0) == []

    replicate(target)
    # As if the stream had died after it sent its last micro-batch, and before that was noted.
    noted = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in noted.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (noted / name).unlink()
    replicate(target)
    repeated = 0
    for partition in range(2):
        sent, first = [], set()
        for key, value, headers in messages(kafka, target, partition):
            place = dict(headers)[PLACE_HEADERS[1]]
            repeated += place in first
            if place not in first:
                sent.append((key, value, [header for header in headers if header[0] not in PLACE_HEADERS]))
            first.add(place)
        assert sent == messages(kafka, source, partition)
    assert repeated > 0
