"""The life of a connector, decided without Debezium: a worker that only remembers, and one that answers over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.connectors.test_cdc_rules import WELL

from lakewright.connectors import cdc_feed, cdc_rest
from lakewright.connectors.cdc_connector import ChangeDataCapture
from lakewright.connectors.cdc_feed import CaptureFeed, CaptureStatus
from lakewright.connectors.cdc_rest import ConnectWorker, RefusedError
from lakewright.connectors.cdc_slot import SlotState
from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.model.secrets import Secret
from lakewright.pipelines.streams.captures import look_at_capture


@dataclass
class Memory:
    """A worker that does at once what it is asked for."""

    password_folder: Path
    known: dict[str, str] | None = None
    states: tuple[str, ...] = ()
    trace: str = ""
    kept: list[Any] = field(default_factory=lambda: ["a position of long ago"])
    asked: list[str] = field(default_factory=list)
    refuses: str = ""
    after_restart: tuple[str, ...] = ("RUNNING", "RUNNING")

    def config(self, name: str) -> dict[str, str] | None:
        return None if self.known is None else {"name": name, **self.known}

    def status(self, name: str) -> dict[str, Any] | None:
        if self.known is None:
            return None
        parts = [{"state": state, "trace": self.trace} for state in self.states]
        return {"connector": parts[0], "tasks": parts[1:]}

    def create_stopped(self, name: str, settings: Mapping[str, str]) -> None:
        if self.refuses:
            raise RefusedError("refused", code=400, text=self.refuses)
        self.asked.append("created")
        self.known, self.states = dict(settings), ("STOPPED",)

    def offsets(self, name: str) -> list[Any]:
        return self.kept

    def forget_offsets(self, name: str) -> None:
        assert self.states == ("STOPPED",)
        self.kept = []

    def resume(self, name: str) -> None:
        self.asked.append("resumed")
        self.states = ("RUNNING", "RUNNING")

    def configure(self, name: str, settings: Mapping[str, str]) -> None:
        self.asked.append("configured")
        self.known, self.states = dict(settings), ("RUNNING", "RUNNING")

    def restart(self, name: str, *, only_failed: bool) -> None:
        self.asked.append("restarted what failed" if only_failed else "restarted all")
        self.states = self.after_restart


@dataclass
class Reach:
    """Nobody but that worker can be reached; the database has all that is needed."""

    memory: Memory
    connection: Connection
    database_name: str = "blog_db"

    def database(self) -> Connection:
        return self.connection

    def worker(self) -> Any:
        return self.memory

    def broker_problems(self) -> tuple[None, list[Any]]:
        return None, []

    def worker_problems(self, cluster: None, *, needs_folder: bool) -> tuple[Any, list[Any]]:
        return self.memory, []

    @contextmanager
    def asking(self) -> Iterator[Any]:
        yield None


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reach:
    monkeypatch.setattr(cdc_feed, "database_facts", lambda session, names, tables: WELL)
    monkeypatch.setattr(cdc_feed, "_NOTICE_SECONDS", 0)
    monkeypatch.setenv("BLOG_DB_PASSWORD", "the first word")
    url = "postgresql://writer@db.example.com/blog"
    connection = Connection("blog_db", url, Secret("secret://env/BLOG_DB_PASSWORD"))
    return Reach(Memory(tmp_path / "passwords"), connection)


def feed_at(reach: Reach, **options: Any) -> CaptureFeed:
    declared = ChangeDataCapture("blog_db", ["visits"], **options)
    plain = declared.feed(Connections(), project="blog", dataset="visits")
    return CaptureFeed(plain.dataset, plain.names, plain.options, reach)  # type: ignore[arg-type]


def test_to_register_again_changes_only_what_is_different(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, memory = feed_at(reach), reach.memory
    assert [feed.register(), feed.register()] == ["created", "unchanged"]
    assert memory.kept == []  # a position without its slot is forgotten
    assert [feed_at(reach, heartbeat_seconds=9).register(), feed.register()] == ["updated", "updated"]
    monkeypatch.setenv("BLOG_DB_PASSWORD", "the second word")
    assert [feed.register(), feed.register()] == ["restarted", "unchanged"]
    memory.states = ("PAUSED", "PAUSED")
    assert feed.register() == "restarted"
    assert memory.asked == [*("created", "resumed", "configured", "configured", "restarted all", "resumed")]
    assert (memory.password_folder / feed.names.connector).read_text() == "the second word"
    assert "second word" not in str(memory.known)


def test_a_connector_that_failed_is_started_again_or_told(reach: Reach) -> None:
    feed, memory = feed_at(reach), reach.memory
    feed.register()
    assert not feed.restart()
    memory.states = ("RUNNING", "FAILED")
    assert feed.register() == "restarted"
    memory.states, memory.after_restart = ("RUNNING", "FAILED"), ("RUNNING", "FAILED")
    memory.trace = 'x.y.Exception: It stops.\n\tat z\nCaused by: q.E: ERROR: publication "lw_blog" does not exist'
    with pytest.raises(TargetError, match=r"visits: the connector has failed\. The publication 'lw_blog' is gone"):
        feed.restart()
    assert feed.status()[:2] == ("failed", "The publication 'lw_blog' is gone.")
    assert memory.asked[-2:] == ["restarted what failed"] * 2


def test_what_the_worker_refuses_is_told_in_words_and_nothing_is_started(reach: Reach) -> None:
    reach.memory.refuses = "Connector configuration is invalid: FATAL: password authentication failed for user x"
    with pytest.raises(ConfigurationError, match=r"refuses the user or the password\. Nothing was started"):
        feed_at(reach).register()


def test_a_busy_worker_is_asked_again_and_a_stranger_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(409, {"message": "rebalancing"}), (200, [{"class": "c", "version": "3"}]), (404, {"message": "none"})]
    answers += [(200, {"hello": "there"}), (500, {"message": "It broke."}), (200, "no JSON")]  # type: ignore[list-item]

    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = answers.pop(0)
            text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: Any) -> None:
            """Nothing on the screen."""

    monkeypatch.setattr(cdc_rest, "_PAUSE_SECONDS", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Worker) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        worker = ConnectWorker("visits", f"http://127.0.0.1:{server.server_address[1]}")
        assert worker.plugins() == {"c": "3"}
        assert worker.config("lw_blog") is None
        with pytest.raises(TargetError, match="is no Kafka Connect worker"):
            worker.cluster()
        with pytest.raises(RefusedError, match=r"refuses \(500\): It broke"):
            worker.plugins()
        with pytest.raises(TargetError, match="no Kafka Connect worker answers"):
            worker.plugins()
        server.shutdown()


def test_what_the_database_keeps_and_what_is_wrong_are_told_whoever_does_not_answer() -> None:
    slot = SlotState("lw_blog", "pgoutput", "blog", 7, "Debezium", 4096, "reserved")

    def told(slot: Any, status: Any) -> tuple[int | None, str]:
        def answer(given: Any) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

        feed: Any = SimpleNamespace(slot=lambda: answer(slot), status=lambda: answer(status))
        return look_at_capture(feed)

    assert told(slot, CaptureStatus("running")) == (4096, "")
    assert told(slot, CaptureStatus("failed", "The publication is gone.")) == (4096, "The publication is gone.")
    assert told(slot, CaptureStatus("paused")) == (4096, "its connector is paused.")
    assert told(slot, TargetError("No worker answers.")) == (4096, "No worker answers.")
    assert told(TargetError("The database does not answer."), None) == (None, "The database does not answer.")
    assert told(None, CaptureStatus("absent")) == (None, "its connector is absent.")
    assert "'lw_blog' is lost" in told(replace(slot, wal_status="lost"), CaptureStatus("failed", "It stops."))[1]
