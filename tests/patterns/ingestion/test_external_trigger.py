"""External Trigger without a project: reading notifications, and handling each event once, whatever fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.connectors.folder_events import FolderEvents
from lakewright.connectors.kafka_events import KafkaEvents
from lakewright.connectors.webhook_events import WebhookEvents
from lakewright.errors import ConfigurationError, InputError, InterruptedRun, LeaseHeldError, StoreError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.triggers import Event, Malformed, Message
from lakewright.patterns.ingestion.external_trigger import (
    EventFormat,
    ExternalTrigger,
    MemoryLedger,
    is_transient_start,
    read_event,
    start_on_event,
)

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def read(told: object, **options: object) -> Event | Malformed:
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    return read_event(body, place="p@1", now=NOW, **options)  # type: ignore[arg-type]


def event(event_id: str = "r1", type: str = "release", **more: object) -> Event:
    found = read({"id": event_id, "type": type, **more})
    assert isinstance(found, Event)
    return found


def stored(*keys: object, name: str = "ObjectCreated:Put") -> dict[str, object]:
    """A notification as object stores send it."""
    told = {"eventName": name, "eventTime": "2026-01-05T11:00:00.000Z"}
    return {"Records": [{**told, "s3": {"bucket": {"name": "b"}, "object": {"key": key}}} for key in keys]}


class Orchestrator:
    """Starts runs, as often as it is up."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked: list[str] = []
        self.runs: list[Event] = []

    def __call__(self, event: Event) -> str:
        self.asked.append(event.id)
        if self.failures:
            raise self.failures.pop(0)
        self.runs.append(event)
        return f"run-{event.id}"


def test_cloud_events_object_store_notifications_and_plain_json_are_read() -> None:
    told = {"specversion": "1.0", "id": "r1", "type": "release", "source": "/backend", "time": "2026-01-05T10:00:00Z"}
    found = read({**told, "data": {"files": ["a.json"]}}, trigger="t", version="7")
    assert isinstance(found, Event)
    assert (found.id, found.type, found.source, found.records) == ("r1", "release", "/backend", ("a.json",))
    assert (found.event_time, found.processing_time) == (datetime(2026, 1, 5, 10, tzinfo=UTC), NOW)
    assert (found.trigger_version, found.key) == ("7", "event:t:r1")
    assert Event.from_envelope(json.loads(json.dumps(found.envelope()))) == found

    found = read(stored("in/new+file%2B1.json", "in/sp%C3%A4t.json"))
    assert isinstance(found, Event)
    assert found.records == ("in/new file+1.json", "in/spät.json")
    assert (found.type, found.source) == ("ObjectCreated:Put", "s3://b")
    assert found.id == read(stored("in/new+file%2B1.json", "in/sp%C3%A4t.json")).id != read(stored("in/x.json")).id

    own = EventFormat(id="head.no", type="head.kind", time="head.at", files="body.file", url_encoded=True)
    head = {"no": 17, "kind": "new", "at": 1767607200000}
    found = read({"head": head, "body": {"file": "a+b.json"}}, format=own)
    assert isinstance(found, Event)
    assert (found.id, found.type, found.records) == ("17", "new", ("a b.json",))
    assert found.event_time == datetime(2026, 1, 5, 10, tzinfo=UTC)
    assert read({"type": "ping"}).id == "p@1", "an event without an id is told by its place"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (b'{"id": ', "not JSON"),
        (b"\xff\xfe\x00", "Unicode"),
        (b"[1]", "list, not an object"),
        (b'{"id": "\\ud800"}', "Unicode"),
        (b'{"id": NaN}', "cannot be kept|can be kept"),
        ({"id": ["x"]}, "neither text nor a number"),
        ({"id": "x" * 600}, "600 characters"),
        ({"time": "yesterday"}, "'yesterday', is no time"),
        ({"files": [1]}, "names no file at 'files'"),
        (stored("a.json", ""), r"Records\[1\] names no object key"),
        (stored(None), r"Records\[0\] names no object key"),
    ],
)
def test_a_malformed_notification_is_told_with_its_reason(told: object, reason: str) -> None:
    found = read(told)
    assert isinstance(found, Malformed)
    assert found.id == "p@1"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


def test_a_file_that_the_format_names_must_be_there() -> None:
    found = read({"id": "r1"}, format=EventFormat(files="data.key"))
    assert isinstance(found, Malformed)
    assert "no file at 'data.key'" in found.reason


@given(
    st.binary(max_size=40) | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(lambda x: str(x).encode())
)
def test_whatever_comes_is_an_event_or_malformed(body: bytes) -> None:
    found = read_event(body, place="p", now=NOW)
    assert isinstance(found, Event | Malformed)
    MemoryLedger().record("t", found, now=NOW)


@pytest.mark.shows("02.external-trigger", 2, 3, 6)
def test_an_event_is_filtered_or_starts_one_run_and_a_malformed_one_stops_nobody() -> None:
    ledger, start, letters = MemoryLedger(), Orchestrator(), []
    came = [
        event("r0", "holiday"),
        read(b'{"id": '),
        event("r1", files=["a.json", "b.json"]),
        event("r1", files=["a.json", "b.json"]),
        event("r2", source="test"),
    ]
    states = [
        start_on_event(
            one,
            {"devices": start},
            ledger=ledger,
            types=["rel*"],
            where=lambda event: event.source != "test",
            reject=letters.append,
        ).state
        for one in came
    ]
    assert states == ["filtered", "dead", "done", "done", "filtered"]
    assert [one.id for one in start.runs] == ["r1"]
    assert start.runs[0].records == ("a.json", "b.json")
    assert (ledger.count("filtered"), ledger.count("dead")) == (2, 1)
    assert letters == ["it is not JSON (Expecting value, character 7)"]
    broken = start_on_event(event("r3"), {}, ledger=ledger, where=lambda event: 1 / 0 > 1)
    assert (broken.state, broken.error) == ("dead", "'where' failed: ZeroDivisionError: division by zero")


@pytest.mark.shows("02.external-trigger", 4)
def test_while_the_orchestrator_is_down_an_event_is_kept_and_tried_again() -> None:
    ledger, pauses, unfinished = MemoryLedger(), [], []
    down = [ConnectionError("refused"), LeaseHeldError("held", name="devices", owner="x"), TimeoutError("late")]

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        unfinished.append(ledger.records["trigger", "r1"].state)
        return False

    start = Orchestrator(*down)
    handled = start_on_event(event(), {"devices": start}, ledger=ledger, wait=wait)
    assert (handled.state, pauses, unfinished) == ("done", [1.0, 2.0, 4.0], ["failed"] * 3)
    assert ledger.records["trigger", "r1"].attempts == 4

    # Asked to stop meanwhile: not finished, so nobody acknowledges it; the next one goes on.
    start = Orchestrator(ConnectionError("refused"), InterruptedRun("SIGTERM"))
    for _ in range(2):
        handled = start_on_event(event("r2"), {"devices": start}, ledger=ledger, wait=lambda seconds: True)
        assert (handled.state, handled.finished) == ("failed", False)
    assert start_on_event(event("r2"), {"devices": start}, ledger=ledger).state == "done"
    assert len(start.runs) == 1

    # It stays down: a dead letter in the end, with the reason; what cannot pass is one at once.
    start, letters = Orchestrator(*[ConnectionError("refused")] * 99), []
    options = {"retry_for": "10 seconds", "wait": lambda seconds: pauses.append(seconds), "reject": letters.append}
    pauses.clear()
    assert start_on_event(event("r3"), {"devices": start}, ledger=ledger, **options).state == "dead"
    assert (pauses, letters) == ([1.0, 2.0, 4.0, 3.0], ["devices: refused"])
    start = Orchestrator(InputError("no such file"))
    assert start_on_event(event("r4"), {"devices": start}, ledger=ledger, **options).error == "devices: no such file"
    assert len(start.asked) == 1


@pytest.mark.shows("02.external-trigger", 5)
def test_of_two_pipelines_only_the_failed_one_is_started_again() -> None:
    ledger = MemoryLedger()
    good, flaky, broken = Orchestrator(), Orchestrator(*[ConnectionError("down")] * 2), Orchestrator(InputError("bad"))
    both = {"devices": good, "features": flaky}
    handled = start_on_event(event(), both, ledger=ledger, wait=lambda seconds: None)
    assert handled.runs == {"devices": "run-r1", "features": "run-r1"}
    assert (len(good.asked), len(flaky.asked)) == (1, 3)
    # One that cannot succeed does not keep the other from being tried again.
    flaky.failures = [ConnectionError("down")]
    handled = start_on_event(
        event("r2"), {"broken": broken, **both}, ledger=ledger, wait=lambda seconds: None, retry_for="1 minute"
    )
    assert (handled.state, handled.error) == ("dead", "broken: bad")
    assert handled.runs == {"devices": "run-r2", "features": "run-r2"}
    assert (len(good.asked), len(broken.asked)) == (2, 1)


@pytest.mark.shows("02.external-trigger", 4)
@pytest.mark.parametrize("place", ["event_recorded", "event_started"])
def test_a_listener_that_dies_half_way_loses_nothing(place: str) -> None:
    ledger, start = MemoryLedger(), Orchestrator()
    arm({"LAKEWRIGHT_FAILPOINT": place, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        with pytest.raises(FailpointReached):
            start_on_event(event(), {"devices": start}, ledger=ledger)
    finally:
        arm({})
    assert ledger.records["trigger", "r1"].state in ("received", "started")
    assert start_on_event(event(), {"devices": start}, ledger=ledger).state == "done"
    # Which run it was, the starter must know: the project's gives it an id made of the event's.
    assert {one.id for one in start.runs} == {"r1"}


def test_what_may_pass() -> None:
    locked = StoreError("The store is in use")
    locked.__cause__ = RuntimeError("(sqlite3.OperationalError) database is locked")
    assert is_transient_start(locked)
    assert not is_transient_start(InputError("bad"))


def test_wrong_options_are_refused() -> None:
    kafka = KafkaEvents("broker", "releases")
    assert ExternalTrigger(on=kafka).name == "kafka releases"
    assert ExternalTrigger(on=kafka, name="r").read(Message(b"{}", "p"), now=NOW).trigger == "r"  # type: ignore[union-attr]
    for wrong in (
        lambda: ExternalTrigger(on="releases"),  # type: ignore[arg-type]
        lambda: ExternalTrigger(on=kafka, types="release"),
        lambda: ExternalTrigger(on=kafka, retry_for="soon"),
        lambda: EventFormat(id=""),
        lambda: KafkaEvents("broker", ""),
        lambda: KafkaEvents("broker", "a", start="now"),  # type: ignore[arg-type]
        lambda: KafkaEvents("broker", "a", dead_letter_topic="a"),
        lambda: FolderEvents(""),
        lambda: FolderEvents("a", of="x"),  # type: ignore[arg-type]
        lambda: FolderEvents("a", of="files", after="delete"),
        lambda: WebhookEvents("x", secret="secret://env/HOOK"),
        lambda: WebhookEvents("/x", secret="hunter2"),
        lambda: WebhookEvents("/x", secret="secret://env/HOOK", port=99999),
        lambda: WebhookEvents("/x", secret="secret://env/HOOK", tolerance="a bit"),
    ):
        with pytest.raises(ConfigurationError):
            wrong()
