"""The channels of triggers, on a real broker, in a real folder, by real HTTP requests."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.pipelines.topics import fresh_topic

from lakewright.connectors.files import JsonFiles
from lakewright.connectors.folder_events import FolderEvents
from lakewright.connectors.kafka_events import KafkaEvents
from lakewright.connectors.webhook_events import SIGNATURE, TIMESTAMP, WebhookEvents, sign
from lakewright.errors import InputError, StoreError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.model.protocols import SourceContext
from lakewright.model.times import utc_now
from lakewright.model.triggers import ChannelContext, Event, Malformed, Message
from lakewright.patterns.ingestion.external_trigger import ExternalTrigger, MemoryLedger, start_on_event
from lakewright.testing.kafka import Kafka


def context(url: str = "kafka://nowhere:1", **more: object) -> ChannelContext:
    connections = Connections({"broker": Connection("broker", url)})
    return ChannelContext("releases", Path("/nowhere"), connections, **more)  # type: ignore[arg-type]


def send(kafka: Kafka, topic: str, *bodies: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for body in bodies:
        producer.produce(topic, body)
    assert producer.flush(10) == 0


@pytest.mark.shows("02.external-trigger", 4, 6)
def test_a_kafka_event_is_acknowledged_when_it_is_finished_and_a_dead_one_is_in_its_topic(kafka: Kafka) -> None:
    topic, dead = fresh_topic(kafka, partitions=2), fresh_topic(kafka)
    channel = KafkaEvents("broker", topic, dead_letter_topic=dead)
    ctx = context(f"kafka://{kafka.bootstrap}", once=True)
    ledger, started, trigger = MemoryLedger(), [], ExternalTrigger(on=channel, name="releases")

    def start(event: Event) -> str:
        started.append(event.id)
        if len(started) == 1:
            raise ConnectionError("the orchestrator is down")
        return f"run-{event.id}"

    def handle(wait: bool) -> list[str]:
        """What a listener does with all that is there; it stops at the first event that is not finished."""
        opened, states = channel.open(ctx), []
        while (message := opened.take(0.1)) is not None:
            found = trigger.read(message, now=utc_now())
            handled = start_on_event(
                found,
                {"devices": start},
                ledger=ledger,
                trigger=trigger.name,
                wait=lambda seconds: wait,
                reject=lambda reason, message=message, found=found: opened.reject(message.body, found.id, reason),
            )
            states.append(handled.state)
            if not handled.finished:
                break
            opened.done(message)
        opened.close()
        return states

    assert handle(True) == []
    send(kafka, topic, b'{"id": "r1", "type": "release"}')
    assert handle(True) == ["failed"], "the orchestrator is down, and the listener is asked to stop"
    assert handle(False) == ["done"], "the event was not acknowledged, so it came again"
    assert handle(False) == [], "now it was"
    send(kafka, topic, b'{"id": ', b"", b'{"id": "r1", "type": "release"}', b'{"id": "r2"}')
    assert sorted(handle(False)) == ["dead", "dead", "done", "done"]
    assert started == ["r1", "r1", "r2"]

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "look"})
    consumer.assign([TopicPartition(dead, 0, 0)])
    letters = [letter for letter in consumer.consume(2, timeout=20) if letter.error() is None]
    consumer.close()
    assert {letter.value() or b"" for letter in letters} == {b'{"id": ', b""}
    assert all(b"it is not JSON" in dict(letter.headers())["lakewright-error"] for letter in letters)
    # A group that begins at the end hears of what comes after it began, also while nobody listens.
    late = replace(channel, start="latest", group="late", dead_letter_topic=None)
    opened = late.open(ctx)
    assert opened.take(0.1) is None
    opened.close()
    send(kafka, topic, b'{"id": "r3"}')
    opened = late.open(ctx)
    message = opened.take(0.1)
    assert message is not None
    assert message.body == b'{"id": "r3"}'
    opened.close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_partition_that_is_added_later_is_heard_from_its_beginning(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    topic = fresh_topic(kafka)
    channel, ctx = KafkaEvents("broker", topic, start="latest"), context(f"kafka://{kafka.bootstrap}")
    send(kafka, topic, b'{"id": "r0"}')
    monkeypatch.setattr("lakewright.connectors.kafka_events._PARTITIONS_SECONDS", 0.0)
    opened = channel.open(ctx)
    assert opened.take(0.1) is None
    if not listens:
        opened.close()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    producer.produce(topic, b'{"id": "r1"}', partition=1)
    assert producer.flush(10) == 0
    if not listens:
        opened = channel.open(ctx)
    message = opened.take(10)
    assert message is not None
    assert message.body == b'{"id": "r1"}'
    opened.done(message)
    opened.close()
    opened = channel.open(replace(ctx, once=True))
    assert opened.take(10) is None
    opened.close()


def test_a_broker_or_topic_that_is_not_there_is_told_at_once(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no topic 'nope'"):
        KafkaEvents("broker", "nope").open(context(f"kafka://{kafka.bootstrap}"))
    monkeypatch.setattr("lakewright.connectors.kafka_client._TIMEOUT_SECONDS", 0.5)
    with pytest.raises(TargetError, match=r"'releases': no Kafka broker answers at 127\.0\.0\.1:1"):
        KafkaEvents("broker", "nope").open(context("kafka://127.0.0.1:1"))


def test_each_file_of_a_folder_is_an_event_once_per_version(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    with pytest.raises(InputError, match="no folder"):
        FolderEvents("inbox").open(ChannelContext("t", tmp_path))
    inbox.mkdir()
    (inbox / "b.json").write_text('{"id": "r2"}')
    (inbox / "a.json").write_text('{"id": "r1"}')
    (inbox / ".c.json").write_text("still being written")
    finished: set[str] = set()
    ctx = ChannelContext("t", tmp_path, once=True, places=lambda: finished)
    opened = FolderEvents("inbox", after="delete").open(ctx)
    first = opened.take(0)
    assert first is not None
    assert first.body == b'{"id": "r1"}'
    opened.done(first)
    assert not (inbox / "a.json").exists()
    again = FolderEvents("inbox").open(ctx)
    second = again.take(0)
    assert second is not None
    assert second.body == b'{"id": "r2"}'
    again.done(second)
    assert again.take(0) is None
    finished.add(second.place)
    assert FolderEvents("inbox").open(ctx).take(0) is None, "finished by an earlier listener"
    (inbox / "b.json").write_text('{"id": "r2", "more": 1}')
    arrived = FolderEvents("inbox", of="files").open(ctx).take(0)
    assert arrived is not None
    found = ExternalTrigger(on=FolderEvents("inbox", of="files")).read(arrived, now=utc_now())
    assert isinstance(found, Event)
    assert (found.type, found.records) == ("file", (str(inbox / "b.json"),))


def test_a_webhook_answers_202_when_the_event_is_kept_and_refuses_what_is_not_signed(monkeypatch) -> None:
    monkeypatch.setenv("HOOK", "s3cret-key")
    said: list[str] = []
    kept: list[Event | Malformed] = []
    channel = WebhookEvents("/releases", secret="secret://env/HOOK", port=0, max_bytes=200)
    trigger = ExternalTrigger(on=channel)

    def receive(message: Message) -> Event | Malformed:
        found = trigger.read(message, now=utc_now())
        if found.id == "full":
            raise StoreError("The disk is full.")
        kept.append(found)
        return found

    opened = channel.open(ChannelContext("t", Path("/nowhere"), receive=receive, say=said.append))
    url = said[0].removeprefix("listening at ")
    assert url.endswith("/releases")

    def post(body: bytes, *, at: float | None = None, key: str = "s3cret-key", to: str = url, signed: bool = True):
        stamp = int(time.time() if at is None else at)
        headers = {TIMESTAMP: str(stamp), SIGNATURE: sign(body, secret=key, timestamp=stamp)} if signed else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(to, body, headers), timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    body = json.dumps({"id": "r1", "type": "release"}).encode()
    assert post(body, key="wrong") == 401
    assert post(body, signed=False) == 401
    assert post(body, at=time.time() - 600) == 401, "a request that was recorded and is sent again later"
    assert kept == []
    assert (post(body), [one.id for one in kept]) == (202, ["r1"])
    assert post(b'{"id": ') == 400
    assert isinstance(kept[-1], Malformed)
    assert post(b'{"id": "full"}') == 503
    assert post(b"x" * 300) == 413
    assert post(body, to=f"{url}/other") == 404
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(url, timeout=10)
    taken = opened.take(0.1)
    assert taken is not None
    assert (taken.body, opened.take(0.01)) == (body, None)
    with pytest.raises(TargetError, match="cannot listen at"):
        replace(channel, port=int(url.split(":")[2].split("/")[0])).open(ChannelContext("t", Path("/nowhere")))
    opened.close()
    assert channel.open(ChannelContext("t", Path("/nowhere"), once=True)).take(0.1) is None


def test_only_files_of_the_source_are_taken_whatever_an_event_names(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    (landing / "a").mkdir(parents=True)
    for file in (landing / "a" / "1.json", landing / "2.json", landing / "3.csv", tmp_path / "secret.json"):
        file.write_text("{}")
    source, ctx = JsonFiles("landing", pattern="*.json"), SourceContext("visits", tmp_path)
    names = ["a/1.json", str(landing / "2.json"), "../secret.json", "landing/../secret.json", "3.csv", "landing", ""]
    found = source.look_for(names, ctx)
    assert found is not None
    assert [file.path for file in found.files] == ["2.json", "a/1.json"]
    assert source.look_for(["landing/2.json"], ctx) is not None
    assert source.look_for(["../secret.json", "2.json.tmp"], ctx) is None
    taken = {file.path: (file.version, 1) for file in found.files}
    assert source.look_for(names, replace(ctx, known_files=taken)) is None, "what was taken is not taken twice"
