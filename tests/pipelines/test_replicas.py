"""Replicas in a pipeline: copies elsewhere that follow their original slice by slice, each with its proof."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from lakewright import JsonFiles, KafkaTopic, PassthroughReplicator, Pipeline, TopicCopy, TransformationReplicator
from lakewright.connectors import folder_copy, topic_copy
from lakewright.connectors.folder_ledger import recorded
from lakewright.connectors.kafka_client import KafkaClient
from lakewright.connectors.kafka_producer import Message
from lakewright.connectors.kafka_reading import read_messages
from lakewright.connectors.kafka_replica import PLACE_HEADERS
from lakewright.errors import ConfigurationError, DefinitionError
from lakewright.failpoints import arm
from lakewright.model.connections import Connections
from lakewright.model.contracts import Contract, ContractColumn
from lakewright.model.identity import Identity
from lakewright.model.protocols import SourceContext
from lakewright.patterns.ingestion.replica_proof import Proof
from tests.patterns.delta import table
from tests.pipelines.shop import land, made, ok, order
from tests.pipelines.topics import fresh_topic

CONTRACT = """
name: orders
columns:
  - {name: order_id, type: string}
  - {name: at, type: timestamp}
  - {name: customer, type: int, tags: [%s]}
  - {name: amount, type: int}
event_time: at
"""
PIPELINE = """
    from pathlib import Path
    from lakewright import JsonFiles, PassthroughReplicator, Pipeline, TransformationReplicator, load_contract

    shop = Pipeline("shop", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), contract=load_contract(Path(__file__).parent / "orders.yaml"))

    @shop.dataset(event_time="at")
    def clean(orders):
        return orders.select("order_id", "at", "amount")

    shop.replicate("clean_copy", "clean", PassthroughReplicator(), to="../staging/clean", event_time="at")
    shop.replicate("orders_copy", "orders", {how}, to="../staging/orders")
"""
SAFE = "TransformationReplicator()"


def files(how: str = SAFE, tag: str = "pii") -> dict[str, str]:
    return {"pipelines/shop.py": PIPELINE.replace("{how}", how), "pipelines/orders.yaml": CONTRACT % tag}


def columns(spark, path) -> list[str]:
    return [name for name in spark.read.format("delta").load(str(path)).columns if not name.startswith("_lw_")]


@pytest.mark.shows("02.passthrough-replicator", 6)
@pytest.mark.shows("02.transformation-replicator", 3)
@pytest.mark.shows("02.transformation-replicator", 7)
def test_a_replica_follows_its_original_and_what_is_tagged_later_leaves_it(project, spark, failing, monkeypatch):
    shop = project(files())
    staging = shop.folder.parent / "staging"
    land(shop.folder, "a.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-02T10:00:00Z", 7)])
    ok(shop.run(at="2026-01-03"))
    assert columns(spark, staging / "orders") == ["order_id", "at", "amount"]
    assert [row[2] for row in table(spark, staging / "clean")] == [5, 7]
    receipt = shop.store.receipts.live("clean_copy", "2026-01-01")
    assert receipt.counters.proof.startswith("1 rows, checksum ")
    assert not ok(shop.run(at="2026-01-03")).outcomes

    land(shop.folder, "b.json", [order("late", "2026-01-01T11:00:00Z", 1)])
    again = made(ok(shop.run(at="2026-01-03")))
    assert {one for one in again if one[0].endswith("copy")} == {
        ("clean_copy", "2026-01-01"),
        ("orders_copy", "arrival-2"),
    }
    assert sorted(row[2] for row in table(spark, staging / "clean")) == [1, 5, 7]

    # Whatever changes rows on the way is found, and the slice is as it was.
    before = table(spark, staging / "clean")
    land(shop.folder, "c.json", [order("more", "2026-01-02T11:00:00Z", 3)])
    proofs = iter([Proof(2, "one"), Proof(2, "another")])
    module = "lakewright.patterns.ingestion.passthrough_replicator.prove_rows"
    monkeypatch.setattr(module, lambda frame, names: next(proofs))
    (error,) = shop.run(["clean", "orders", "clean_copy"], at="2026-01-03").errors
    assert "as many rows as the source (2), but other ones. The slice was put back" in str(error)
    assert table(spark, staging / "clean") == before
    monkeypatch.undo()

    # As if it was killed between the commit and its proof: what was not proven is copied once more.
    failing("published")
    with monkeypatch.context() as patch:
        patch.setattr(type(shop.store), "finish_step", lambda *given, **named: None)
        assert shop.run(["clean_copy"], at="2026-01-03").state == "failed"
    arm({})
    assert ("clean_copy", "2026-01-02") in made(ok(shop.run(at="2026-01-03")))
    assert shop.store.receipts.live("clean_copy", "2026-01-02").counters.proof.startswith("2 rows, checksum ")
    assert len(table(spark, staging / "clean")) == 4

    tagged = (CONTRACT % "pii").replace("amount, type: int", "amount, type: int, tags: [pii]")
    (shop.folder / "pipelines" / "orders.yaml").write_text(tagged)
    changed = project()
    land(shop.folder, "d.json", [order("new", "2026-01-02T12:00:00Z", 9)])
    assert ("orders_copy", "arrival-4") in made(ok(changed.run(["orders", "orders_copy"], at="2026-01-03")))
    assert columns(spark, staging / "orders") == ["order_id", "at"]
    assert len(table(spark, staging / "orders")) == 5


@pytest.mark.shows("02.passthrough-replicator", 8)
def test_a_project_that_would_copy_what_is_private_is_refused_when_it_is_loaded(project):
    with pytest.raises(DefinitionError, match="tags the columns customer as pii"):
        project(files("PassthroughReplicator()")).graph  # noqa: B018
    with pytest.raises(DefinitionError, match="is no replicator"):
        project(files("'as it is'")).graph  # noqa: B018


FILES = """
    from lakewright import JsonFiles, PassthroughReplicator, Pipeline

    raw = Pipeline("raw", start="2026-01-01")
    raw.replicate("raw_copy", JsonFiles("landing/orders"), PassthroughReplicator(), to="../staging/raw")
"""


def bytes_below(folder) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: content for name, content in found.items() if not name.startswith("_lakewright")}


def test_files_are_copied_as_they_are_and_a_copy_that_differs_or_dies_is_not_recorded(project, failing, monkeypatch):
    shop = project({"pipelines/raw.py": FILES})
    landing, staging = shop.folder / "landing" / "orders", shop.folder.parent / "staging" / "raw"
    land(shop.folder, "a.json", ["no JSON at all"])
    land(shop.folder, "date=2026-01-01/b.json", ['{"x": 1}'])
    (landing / "c.json").write_bytes(b"\xff\xfe no UTF-8, no line end")
    assert made(ok(shop.run())) == {("raw_copy", "arrival-1")}
    assert bytes_below(staging) == bytes_below(landing)
    proof = shop.store.receipts.live("raw_copy", "arrival-1").counters.proof
    assert proof.startswith(f"3 files, {sum(map(len, bytes_below(landing).values()))} bytes, checksum ")
    assert not ok(shop.run()).outcomes

    # Replaced under its name, and cut short when it was in its place: not recorded, and repeated.
    land(shop.folder, "a.json", ["another"])
    failing("folder.moved")
    assert shop.run().state == "failed"
    arm({})
    assert shop.store.receipts.live("raw_copy", "arrival-2") is None
    assert made(ok(shop.run())) == {("raw_copy", "arrival-2")}
    assert bytes_below(staging) == bytes_below(landing)

    before = bytes_below(staging)
    land(shop.folder, "d.json", ["more"])
    with monkeypatch.context() as patch:
        patch.setattr(folder_copy, "_checksum", lambda path: ("other", 5))
        (error,) = shop.run().errors
    assert "is not what was read from the source. Nothing was moved to its place" in str(error)
    assert bytes_below(staging) == before
    ok(shop.retry())
    assert bytes_below(staging) == bytes_below(landing)

    # A zombie moves nothing, and the proof is in the ledger too.
    zombie = Identity("raw_copy", "arrival-3", 0, "zombie")
    assert recorded(staging, zombie, lambda: pytest.fail("moved")) is None
    shop.rebuild_store()
    assert shop.store.receipts.live("raw_copy", "arrival-1").counters.proof == proof
    assert not ok(shop.run()).outcomes


def test_a_mirror_loses_what_its_source_loses_and_nothing_that_somebody_else_put_there(project, failing):
    mirror = FILES.replace("PassthroughReplicator()", 'PassthroughReplicator(deleted="delete")')
    shop = project({"pipelines/raw.py": mirror})
    landing, staging = shop.folder / "landing" / "orders", shop.folder.parent / "staging" / "raw"
    land(shop.folder, "a.json", ["one"])
    land(shop.folder, "date=2026-01-01/b.json", ["two"])
    assert made(ok(shop.run())) == {("raw_copy", "arrival-1")}
    assert bytes_below(staging) == bytes_below(landing)
    assert not ok(shop.run()).outcomes
    (staging / "notes.txt").write_bytes(b"not ours")

    (landing / "date=2026-01-01" / "b.json").unlink()
    land(shop.folder, "c.json", ["three"])
    failing("folder.moved")
    assert shop.run().state == "failed"
    arm({})
    assert made(ok(shop.run())) == {("raw_copy", "arrival-2")}
    assert bytes_below(staging) == {**bytes_below(landing), "notes.txt": b"not ours"}
    assert not (staging / "date=2026-01-01").exists()
    assert shop.store.receipts.live("raw_copy", "arrival-2").counters.proof.startswith("2 files, ")

    # An older state never takes the place of a newer one, and a source that is empty all at once deletes nothing.
    land(shop.folder, "d.json", ["four"])
    ok(shop.run())
    source, into = JsonFiles("landing/orders"), folder_copy.FolderCopy(str(staging), mirror=True)
    again = Identity("raw_copy", "arrival-2", 10**6, "again")
    opened = into.open("raw_copy", again, connections=Connections(), spark=None)
    older = shop.store.arrivals.get("raw_copy", 2)
    with pytest.raises(ConfigurationError, match="arrival-3 is in place, which is newer than arrival-2"):
        opened.copy_source(source, older, schema=None, ctx=SourceContext("raw_copy", shop.folder))
    before = bytes_below(staging)
    assert set(before) == {"a.json", "c.json", "d.json", "notes.txt"}
    for file in landing.glob("*.json"):
        file.unlink()
    (error,) = shop.run().errors
    assert "the source is empty now" in str(error)
    assert bytes_below(staging) == before


TOPICS = """
    from lakewright import KafkaTopic, PassthroughReplicator, Pipeline, TopicCopy

    raw = Pipeline("raw", start="2026-01-01")
    raw.replicate("visits_copy", KafkaTopic("broker", "{source}"), PassthroughReplicator(),
                  to=TopicCopy("broker", "{target}", ledger="{target}.ledger"))
"""


def test_a_topic_is_copied_with_order_and_headers_and_proven_before_it_can_be_seen(
    project, kafka, failing, monkeypatch
):
    source, target, narrow = (fresh_topic(kafka, partitions=number) for number in (2, 3, 1))
    client = KafkaClient("test", kafka.bootstrap)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})

    def send(numbers: range) -> None:
        for number in numbers:
            key, value = None if number % 3 == 0 else f"key {number}", None if number == 2 else f"value {number}"
            headers = [("trace", b"\xff\x00"), ("trace", None)] if number < 4 else None
            producer.produce(source, value, key=key, partition=number % 2, headers=headers)
        assert producer.flush(10) == 0

    def seen(topic: str) -> list[tuple[object, ...]]:
        state = client.state(topic, "read_committed")
        ranges = {partition: (state.low[partition], state.high[partition]) for partition in state.high}
        found = [
            (m.partition(), m.offset(), m.key(), m.value(), [h for h in m.headers() or [] if not _is_ours(h[0])])
            for m in read_messages(client, topic, ranges, "read_committed")
        ]
        return [one[:1] + one[2:] for one in sorted(found, key=lambda one: one[:2])]

    def files(to: str) -> dict[str, str]:
        settings = f'name = "copies"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
        text = TOPICS.replace("{source}", source).replace("{target}", to)
        return {"lakewright.toml": settings, "pipelines/raw.py": text}

    send(range(6))
    (error,) = project(files(narrow), folder="narrow").run().errors
    assert "has 1 partitions and" in str(error)
    assert seen(narrow) == []

    shop = project(files(target))
    assert made(ok(shop.run())) == {("visits_copy", "arrival-1")}
    receipt = shop.store.receipts.live("visits_copy", "arrival-1")
    assert (receipt.rows, receipt.counters.read) == (6, 6)
    assert receipt.counters.proof.startswith("6 messages in order, checksum ")
    assert not ok(shop.run()).outcomes
    assert _settled(client, target, seen) == seen(source)

    # Whatever changes messages on the way is found before anybody can see them.
    send(range(6, 9))
    with monkeypatch.context() as patch:
        copied = topic_copy._copied
        patch.setattr(topic_copy, "_copied", lambda m, ours: _altered(copied(m, ours)))
        (error,) = shop.run().errors
    assert "Nothing was published" in str(error)
    # One that dies before its commit is not seen either: a kill after it is in test_outside_kills.
    failing("kafka.sent")
    assert shop.retry().state == "failed"
    arm({})
    ok(shop.retry())
    assert _settled(client, target, seen) == seen(source)


def _settled(client, topic, seen):
    """What readers of committed messages see, once no transaction is open any more."""
    places = client.state(topic, "read_committed").high
    while client.ends(topic, places, "read_committed") != client.ends(topic, places, "read_uncommitted"):
        pass
    return seen(topic)


def _is_ours(header: str) -> bool:
    return header.startswith("lw-") or header in PLACE_HEADERS


def _altered(message: Message) -> Message:
    return Message(message.key, b"something else", message.headers, message.partition)


def test_what_cannot_be_copied_as_it_is_is_refused_when_the_file_is_loaded():
    blog, files = Pipeline("blog", start="2026-01-01"), JsonFiles("landing/visits")
    private = Contract("visits", (ContractColumn("ip", "string", tags=("pii",)),))
    unchanged, copy = PassthroughReplicator(), TopicCopy("broker", "copy")
    for original, how, to, contract, word in (
        (files, TransformationReplicator(drop=["ip"]), "staging", None, "copied as they are, and"),
        (files, unchanged, "staging", private, "tags the columns ip as pii"),
        (files, unchanged, copy, None, "has no messages"),
        (files, unchanged, "", None, "is no place"),
        (KafkaTopic("broker", "visits"), unchanged, "staging", None, "to TopicCopy"),
        (KafkaTopic("broker", "copy"), unchanged, copy, None, "cannot be a copy of itself"),
        ("visits", unchanged, copy, None, "is copied to a folder"),
    ):
        with pytest.raises(DefinitionError, match=word):
            blog.replicate("visits_copy", original, how, to=to, contract=contract)
    mirror = PassthroughReplicator(deleted="delete")
    for original, to, word in (
        ("visits", "staging", "follows it by itself"),
        (KafkaTopic("broker", "visits"), copy, "a topic takes nothing back"),
        (JsonFiles("landing/visits", max_files=3), "staging", "max_files takes only a part"),
    ):
        with pytest.raises(DefinitionError, match=word):
            blog.replicate("visits_copy", original, mirror, to=to)
    with pytest.raises(ConfigurationError, match="'keep' or 'delete'"):
        PassthroughReplicator(deleted="yes")
    with pytest.raises(DefinitionError, match="Leave event_time out"):
        blog.replicate("visits_copy", files, unchanged, to="staging", event_time="at")
    with pytest.raises(DefinitionError, match="Leave contract out"):
        blog.replicate("visits_copy", "visits", unchanged, to="staging", contract=private)
