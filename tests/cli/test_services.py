"""`lakewright services`, with both real services: one long story, because a start costs seconds.

A stream follows the broker of the story, so that it is killed under one.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.pipelines.shop import rows_of
from tests.pipelines.streaming import send, until, visit, visits_project

from lakewright.pipelines.streams.watched import StreamOutcome
from lakewright.runtime.services import guard
from lakewright.runtime.services.processes import this_process, wait_until_gone
from lakewright.runtime.services.state import Place
from lakewright.testing.kafka import Kafka

from .conftest import Lakewright

# A broker that is gone is noticed after a moment, not after a minute: this is about what happens then.
IMPATIENT = """
[connections.broker.options]
"spark.default.api.timeout.ms" = "1000"
"spark.request.timeout.ms" = "800"
"""

ROOM = 17_000_000  # more than a file of PostgreSQL's write-ahead log has


@pytest.fixture
def services(shop: Path) -> Iterator[Path]:
    """The folder of the project's services, which end with the test whatever happens to it."""
    folder = shop / ".lakewright" / "services"
    folder.mkdir(parents=True)
    guard.ensure(folder, this_process())
    yield folder
    guard.throw_away(folder)


def found(lakewright: Lakewright, *words: str) -> dict[str, dict[str, Any]]:
    result = lakewright("services", *words, "--json")
    assert result.exit_code == 0, result.stdout
    return {one["name"]: one for one in json.loads(result.stdout)["services"]}


def kept_by(services: dict[str, dict[str, Any]]) -> tuple[Any, bytes | None]:
    """What was written at the beginning: a row and a message."""
    with psycopg.connect(services["postgres"]["url"]) as connection:
        row = connection.execute("SELECT id FROM visits").fetchone()
    consumer = Consumer({"bootstrap.servers": services["kafka"]["url"], "group.id": "test"})
    consumer.assign([TopicPartition("visits", 0, 0)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    return row, message.value()


@contextmanager
def little_room() -> Iterator[None]:
    """What is started here can write no file beyond a size, as a full disk would have it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def logged(services: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: Path(one["log"]).stat().st_size for name, one in services.items()}


class Stream:
    """A continuous stream of visits from a broker, in a thread of its own."""

    def __init__(self, project: Any, kafka: Kafka) -> None:
        self.kafka, self.topic = kafka, kafka.topic()
        files = visits_project(kafka, self.topic)
        files["lakewright.toml"] += IMPATIENT
        self.shop, self.beside = project(files), project()
        self.said: list[str] = []
        self.ended: list[Any] = []
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self) -> None:
        self.ended.append(self.shop.run_continuous(listener=lambda told: self.said.append(str(told))))

    def send(self, *numbers: int) -> None:
        send(self.kafka, self.topic, [visit(number) for number in numbers])

    def wait_for(self, rows: int) -> None:
        until(lambda: self.ended != [] or sum(r.rows for r in self.beside.store.receipts.history("raw")) >= rows)

    def wait_for_words(self, words: str) -> None:
        until(lambda: self.ended != [] or any(words in one for one in self.said))

    def stop(self) -> StreamOutcome:
        for running in self.beside.store.runs.unfinished():
            self.beside.store.runs.request_cancel(running.run_id)
        self.thread.join(60)
        [summary] = self.ended
        [outcome] = summary.streams
        assert outcome.error is None
        return outcome

    def visits(self) -> list[str]:
        return sorted(row["id"] for row in rows_of(self.shop, "raw", "id"))


def test_services_live_on_survive_kills_and_go_when_told(lakewright: Lakewright, services: Path, project: Any) -> None:
    first = found(lakewright, "up")
    assert {one["state"] for one in first.values()} == {"running"}
    postgres, kafka = first["postgres"], first["kafka"]
    assert re.fullmatch(r"18\.\d+", postgres["version"])
    assert re.fullmatch(r"4\.\d+\.\d+", kafka["version"])
    assert postgres["jdbc_url"] == f"jdbc:postgresql://127.0.0.1:{postgres['port']}/postgres"
    assert postgres["url"].startswith(f"postgresql://postgres@127.0.0.1:{postgres['port']}/postgres?passfile=")
    assert (kafka["url"], kafka["jdbc_url"]) == (f"127.0.0.1:{kafka['port']}", None)
    with psycopg.connect(first["postgres"]["url"]) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 7 AS id")
    producer = Producer({"bootstrap.servers": first["kafka"]["url"]})
    producer.produce("visits", b"v7", partition=0)
    assert producer.flush(60) == 0

    # Up once more: quick, and the same processes.
    again = lakewright("services", "up")
    assert again.exit_code == 0
    assert again.stderr.startswith("PostgreSQL and Kafka answer. Done in ")
    assert {name: one["pid"] for name, one in found(lakewright, "status").items()} == {
        name: one["pid"] for name, one in first.items()
    }

    # Secrets are for those who ask.
    file = Path(first["postgres"]["password_file"])
    password = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    for words in (["status"], ["status", "--json"], ["up"], ["up", "--json"]):
        result = lakewright("services", *words)
        assert password not in result.stdout + result.stderr
    assert "postgresql://postgres:***@127.0.0.1:" in lakewright("services", "status").stdout
    assert f"postgresql://postgres:{password}@127.0.0.1:" in lakewright("services", "status", "--show-secrets").stdout
    assert found(lakewright, "status", "--show-secrets")["postgres"]["password"] == password

    # Killed under a stream: told as such, started again on the same ports with the same data.
    stream = Stream(project, Kafka(first["kafka"]["url"]))
    stream.send(1)
    stream.wait_for(1)
    stream.send(2, 3)  # which it may have read by then, or have begun to
    known = [state.process for name in first if (state := Place(services / name).load()) is not None]
    for process in known:
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until_gone(known, 30)
    assert {one["state"] for one in found(lakewright, "status").values()} == {"died"}
    stream.wait_for_words("no Kafka broker answers")
    before = logged(first)
    with little_room():
        result = lakewright("services", "up")
    assert result.exit_code == 0
    assert "PostgreSQL had died" in result.stderr
    assert "Kafka had died" in result.stderr
    second = found(lakewright, "status")
    assert all(size > before[name] > 0 for name, size in logged(second).items())
    assert {name: one["port"] for name, one in second.items()} == {name: one["port"] for name, one in first.items()}
    assert kept_by(second) == ((7,), b"v7")
    stream.send(4)
    stream.wait_for(4)
    outcome = stream.stop()
    assert outcome.restarts >= 1
    assert outcome.rows == 4
    assert stream.visits() == ["v1", "v2", "v3", "v4"]

    # A broker whose disk is full ends itself: whoever sends is told, and whoever looks is told why.
    broker = Place(services / "kafka").load()
    full = Producer({"bootstrap.servers": second["kafka"]["url"], "message.timeout.ms": 5000, "log_level": 0})
    refused_messages: list[Any] = []
    for _ in range(ROOM // 500_000 + 2):
        full.produce(
            "visits", os.urandom(500_000), partition=0, on_delivery=lambda error, _: refused_messages.append(error)
        )
    assert full.flush(60) == 0
    assert refused_messages[-1] is not None
    assert broker is not None
    assert broker.process is not None
    assert wait_until_gone([broker.process], 30)
    died = found(lakewright, "status")["kafka"]
    assert died["state"] == "died"
    assert "there is no room to write" in died["note"]
    assert "free some space on its disk" in died["note"]

    # Stopped: the data stays, also when Kafka has to move to another port.
    assert "PostgreSQL was stopped." in lakewright("services", "down").stderr
    assert {one["state"] for one in found(lakewright, "status").values()} == {"stopped"}
    assert lakewright("services", "down").stderr == "Nothing was running.\n"
    assert "database system is shut down" in Path(second["postgres"]["log"]).read_text()[-200:]
    with socket.create_server(("127.0.0.1", first["kafka"]["port"])):
        moved = lakewright("services", "up")
        assert f"Port {first['kafka']['port']} is in use by another program: Kafka moves to" in moved.stderr
        third = found(lakewright, "status")
        assert third["kafka"]["port"] != first["kafka"]["port"]
        assert kept_by(third) == ((7,), b"v7")

    # Deleted only by somebody who means it.
    refused = lakewright("services", "down", "--delete")
    assert refused.exit_code == 2
    assert "nobody is here to ask" in refused.stderr
    assert {one["state"] for one in found(lakewright, "status").values()} == {"running"}
    assert "Kafka was stopped." in lakewright("services", "down").stderr
    assert (Path(third["kafka"]["data"]) / ".kafka_cleanshutdown").exists()
    assert {one["state"] for one in found(lakewright, "down", "--delete", "--yes").values()} == {"absent"}
    assert not Path(first["postgres"]["data"]).exists()
    assert not (services / "kafka").exists()


def test_before_the_first_start_status_says_how(lakewright: Lakewright, shop: Path) -> None:
    result = lakewright("services", "status")
    assert result.exit_code == 0
    assert "lakewright services up" in result.stderr
    assert not (shop / ".lakewright").exists()


def test_an_unknown_service_ends_with_2_and_the_nearest_one(lakewright: Lakewright, shop: Path) -> None:
    result = lakewright("services", "up", "kafak")
    assert result.exit_code == 2
    assert "hint: Did you mean 'kafka'?" in result.stderr
