"""Triggers of pipelines: an event is one run and one arrival, whatever dies in between; dead letters are replayed."""

from __future__ import annotations

import json
import signal
import time
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lakewright import ExternalTrigger, FolderEvents, KafkaEvents, Pipeline
from lakewright.connectors.webhook_events import SIGNATURE, TIMESTAMP, sign
from lakewright.errors import ConfigurationError, DefinitionError, InputError, LeaseHeldError, UnknownNameError
from lakewright.failpoints import FailpointReached, arm
from lakewright.pipelines.project import Project
from lakewright.pipelines.trigger_options import triggers_of
from tests.pipelines.shop import ok, rows_of
from tests.pipelines.topics import fresh_topic

DEVICES = """
    from lakewright import ExternalTrigger, FolderEvents, FullLoader, JsonFiles, KafkaEvents, Pipeline, WebhookEvents
    from pyspark.sql import functions as F

    released = ExternalTrigger(
        on={channel}, name="released", types=["ObjectCreated:*"], version="7", retry_for="5 seconds"
    )
    devices = Pipeline("devices", schedule=None, start="2026-01-01", triggers=[released])
    devices.source("raw_devices", JsonFiles("landing/devices"), schema="device string, at timestamp", event_time="at")

    @devices.dataset(layer="gold", event_time="day", rows="reduce")
    def daily_devices(raw_devices, run):
        told = "" if run.event is None else f"{run.reason} {run.event.trigger_version} {len(run.event.records)}"
        days = raw_devices.groupBy(F.to_date("at").alias("day")).agg(F.count("*").alias("devices"))
        return days.withColumn("told", F.lit(told))
"""
FOLDER = 'FolderEvents("inbox")'


def land(folder, name: str, *devices: str, day: int = 5) -> None:
    file = folder / "landing" / "devices" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f'{{"device": "{one}", "at": "2026-01-{day:02d}T10:00:00Z"}}\n' for one in devices))


def stored(*keys: str, at: str = "2026-01-06T08:00:00Z") -> bytes:
    told = {"eventName": "ObjectCreated:Put", "eventTime": at}
    return json.dumps({"Records": [{**told, "s3": {"object": {"key": key}}} for key in keys]}).encode()


def drop(folder, name: str, body: bytes) -> None:
    (folder / "inbox").mkdir(exist_ok=True)
    (folder / "inbox" / name).write_bytes(body)


def run_records(project: Project):
    return sorted(project.store.runs.latest(limit=100), key=lambda run: run.started_at)


@pytest.mark.shows("02.external-trigger", 1, 2, 3, 6, 7, 8)
def test_a_kafka_event_is_one_run_and_one_arrival_of_the_files_that_it_names(project, kafka):
    topic, dead = fresh_topic(kafka), fresh_topic(kafka)
    channel = f'KafkaEvents("broker", "{topic}", group="g-{topic}", dead_letter_topic="{dead}")'
    toml = f'name = "test"\n[connections.broker]\nurl = "kafka://{kafka.bootstrap}"\n'
    found = project({"lakewright.toml": toml, "pipelines/devices.py": DEVICES.replace("{channel}", channel)})
    for name, devices in (("new file+1.json", "ab"), ("b.json", "c"), ("other.json", "d")):
        land(found.folder, name, *devices)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})

    def send(*bodies: bytes) -> None:
        for body in bodies:
            producer.produce(topic, body)
        assert producer.flush(10) == 0

    # Line 8: no events, no runs.
    summary = found.listen(once=True)
    assert (summary.received, summary.runs, run_records(found)) == (0, [], [])

    both = stored("landing/devices/new+file%2B1.json", "b.json")
    send(b'{"id": "h1", "type": "holiday"}', both, both, b'{"id": ', stored(""))
    summary = found.listen(["devices"], once=True)
    assert (summary.received, summary.filtered, summary.done, summary.dead, summary.known) == (4, 1, 1, 2, 1)
    (run,) = run_records(found)
    assert (run.run_id, run.reason, run.state, summary.runs) == (run.run_id, "trigger", "ok", [run.run_id])
    envelope = run.options["event"]
    assert envelope["payload"] == json.loads(both)
    assert (envelope["trigger_version"], envelope["event_time"]) == ("7", "2026-01-06T08:00:00+00:00")
    assert envelope["processing_time"] == run.run_time.isoformat()
    (arrival,) = found.store.arrivals.all("raw_devices")
    assert [file.path for file in arrival.files] == ["b.json", "new file+1.json"]
    assert arrival.key == f"event:released:{envelope['id']}"
    assert [tuple(row)[1:] for row in rows_of(found, "daily_devices")] == [(3, "trigger 7 2")]
    assert found.store.events.counts()["released"] == {"received": 4, "filtered": 1, "done": 1, "dead": 2}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"g-{topic}"})
    assert consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 5
    consumer.assign([TopicPartition(dead, 0, 0)])
    letters = consumer.consume(2, timeout=20)
    consumer.close()
    errors = [dict(letter.headers())["lakewright-error"] for letter in letters]
    assert [letter.value() for letter in letters] == [b'{"id": ', stored("")]
    assert errors[1] == b"Records[0] names no object key"

    # What no event names waits for an ordinary run; an event for it then starts a run that takes nothing twice.
    ok(found.run())
    send(stored("other.json"))
    assert found.listen(once=True).done == 1
    assert [len(one.files) for one in found.store.arrivals.all("raw_devices")] == [2, 1]
    assert rows_of(found, "daily_devices", "devices")[0][0] == 4

    # Line 7: the file is not there yet; the dead letter is replayed, by a run that says so and loads that file.
    late = stored("landing/devices/sp%C3%A4t+1.json", at="2026-01-07T08:00:00Z")
    send(late)
    assert found.listen(once=True).dead == 1
    letter = found.store.events.latest(states=["dead"])[0]
    assert "'landing/devices/spät 1.json', which is in none of the folders landing/devices" in letter.error
    with pytest.raises(InputError, match="spät 1"):
        found.replay(letter.event_id)
    land(found.folder, "spät 1.json", "e", day=6)
    land(found.folder, "unnamed.json", "f", day=6)
    runs = found.replay(letter.event_id)
    record = found.store.runs.get(runs["devices"])
    assert (record.reason, record.options["event"]["records"]) == ("replay", ["landing/devices/spät 1.json"])
    assert [file.path for file in found.store.arrivals.last("raw_devices").files] == ["spät 1.json"]
    assert [row[0] for row in rows_of(found, "daily_devices", "devices")] == [1, 4]
    assert found.store.events.find(letter.event_id).state == "replayed"
    with pytest.raises(ConfigurationError, match="only dead letters are replayed"):
        found.replay(letter.event_id)
    broken = found.store.events.latest(states=["dead"])
    with pytest.raises(InputError, match="still cannot be read"):
        found.replay(broken[0].event_id)
    before = len(run_records(found))
    assert found.listen(once=True).received == 0
    assert len(run_records(found)) == before


@pytest.mark.shows("02.external-trigger", 3, 4)
def test_a_listener_that_dies_loses_no_event_and_starts_no_second_run(project, monkeypatch):
    found = project({"pipelines/devices.py": DEVICES.replace("{channel}", FOLDER)})
    land(found.folder, "a.json", "a")
    drop(found.folder, "1.json", stored("a.json"))
    for place in ("event_recorded", "recorded", "published", "event_started"):
        arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
        try:
            if place in ("recorded", "published"):  # within the run, whose failure does not pass
                assert found.listen(once=True).dead == 1
                event = found.store.events.latest()[0]
                found.store.events.move("released", event.event_id, "started", now=event.updated_at)
            else:
                with pytest.raises(FailpointReached):
                    found.listen(once=True)
        finally:
            arm({})
    (run,) = run_records(found)
    assert (run.state, run.attempt) == ("ok", 3)
    assert found.listen(once=True).done == 1
    assert [(one.run_id, one.attempt) for one in run_records(found)] == [(run.run_id, 3)]
    assert [one.number for one in found.store.arrivals.all("raw_devices")] == [1]
    assert [row[0] for row in rows_of(found, "daily_devices", "devices")] == [1]

    # Somebody else runs the pipeline: the event waits, and is started afterwards.
    really, refused = Project.run, []

    def busy(self, *words, **options):
        if len(refused) < 2:
            refused.append(self.store.events.unfinished("released")[0].state)
            raise LeaseHeldError("The pipeline 'devices' is running already.", name="devices", owner="x")
        return really(self, *words, **options)

    monkeypatch.setattr(Project, "run", busy)
    monkeypatch.setattr("lakewright.pipelines.listen._Post._wait", lambda self, seconds: False)
    land(found.folder, "b.json", "b", "c")
    drop(found.folder, "2.json", stored("b.json", at="2026-01-08T08:00:00Z"))
    summary = found.listen(once=True)
    monkeypatch.undo()
    assert (summary.done, refused) == (1, ["started", "started"])
    # The same event in another file is the same arrival (RUNS, scenario 8), and the daily dataset has followed.
    drop(found.folder, "3.json", stored("b.json", at="2026-01-08T08:00:00Z"))
    assert found.listen(once=True).known == 1
    assert len(found.store.arrivals.all("raw_devices")) == 2
    assert [row[0] for row in rows_of(found, "daily_devices", "devices")] == [3]


def test_a_webhook_starts_a_run_and_data_files_start_their_own(project, monkeypatch):
    monkeypatch.setenv("HOOK", "s3cret-key")
    channel = 'WebhookEvents("/devices", secret="secret://env/HOOK", port=0)'
    more = (
        DEVICES.replace("{channel}", channel)
        + """
    landed = ExternalTrigger(on=FolderEvents("landing/users", of="files"), name="landed")
    users = Pipeline("users", schedule=None, triggers=[landed])
    users.source("raw_users", JsonFiles("landing/users"), schema="user string", load=FullLoader())
    """
    )
    found = project({"pipelines/devices.py": more})
    land(found.folder, "a.json", "a")
    (found.folder / "landing" / "users").mkdir()
    (found.folder / "landing" / "users" / "u.json").write_text('{"user": "x"}\n')
    with monkeypatch.context() as patch:
        patch.setattr(Project, "run", lambda self, *words, **more: pytest.fail("nothing came by the webhook"))
        assert found.listen(["devices"], once=True).received == 0
    seen = []

    def listener(note) -> None:
        text = getattr(note, "message", "")
        if "listening at" in text:
            post(text.partition("listening at ")[2], stored("a.json"))
        elif ": event " in text:
            seen.append(text)
            if len(seen) == 2:
                signal.raise_signal(signal.SIGTERM)

    def post(url: str, body: bytes) -> None:
        stamp = int(time.time())
        headers = {TIMESTAMP: str(stamp), SIGNATURE: sign(body, secret="s3cret-key", timestamp=stamp)}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
            assert answer.status == 202

    summary = found.listen(listener=listener)
    assert (summary.state, summary.received, summary.done) == ("interrupted", 2, 2)
    assert {run.pipeline: run.reason for run in run_records(found)} == {"devices": "trigger", "users": "trigger"}
    assert [len(found.store.arrivals.all(name)) for name in ("raw_devices", "raw_users")] == [1, 1]
    assert found.store.arrivals.last("raw_users").key.startswith("event:landed:u.json@")


def test_wrong_triggers_are_refused_when_the_file_is_loaded():
    kafka = KafkaEvents("broker", "releases")
    for wrong in (ExternalTrigger(on=kafka), ["x"], [ExternalTrigger(on=kafka), ExternalTrigger(on=kafka)]):
        with pytest.raises(DefinitionError, match="trigger"):
            Pipeline("devices", triggers=wrong)
    shared, other = ExternalTrigger(on=kafka, types=["a"]), ExternalTrigger(on=kafka, types=["b"])
    pipelines = [Pipeline(name, triggers=[shared]).settings for name in ("devices", "features")]
    assert triggers_of(pipelines) == [(shared, ("devices", "features"))]
    with pytest.raises(ConfigurationError, match="different triggers under the name 'kafka releases'"):
        triggers_of([*pipelines, Pipeline("third", triggers=[other]).settings])
    with pytest.raises(UnknownNameError, match="Did you mean 'devices'"):
        triggers_of(pipelines, ["device"])
    for plain in ([], ["plain"]):
        with pytest.raises(ConfigurationError, match=r"has (no|a) trigger"):
            triggers_of([Pipeline("plain").settings], plain)
    assert FolderEvents("inbox").name == "folder inbox"
