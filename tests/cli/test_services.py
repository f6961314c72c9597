"""`lakewright services`, with both real services: one long story, because a start costs seconds."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lakewright.runtime.services import guard
from lakewright.runtime.services.processes import this_process, wait_until_gone
from lakewright.runtime.services.state import Place

from .conftest import Lakewright


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


def test_services_live_on_survive_kills_and_go_when_told(lakewright: Lakewright, services: Path) -> None:
    first = found(lakewright, "up")
    assert {one["state"] for one in first.values()} == {"running"}
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

    # Killed: told as such, started again on the same ports with the same data.
    known = [state.process for name in first if (state := Place(services / name).load()) is not None]
    for process in known:
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until_gone(known, 30)
    assert {one["state"] for one in found(lakewright, "status").values()} == {"died"}
    result = lakewright("services", "up")
    assert result.exit_code == 0
    assert "PostgreSQL had died" in result.stderr
    assert "Kafka had died" in result.stderr
    second = found(lakewright, "status")
    assert {name: one["port"] for name, one in second.items()} == {name: one["port"] for name, one in first.items()}
    assert kept_by(second) == ((7,), b"v7")

    # Stopped: the data stays, also when Kafka has to move to another port.
    assert "Kafka was stopped." in lakewright("services", "down").stderr
    assert {one["state"] for one in found(lakewright, "status").values()} == {"stopped"}
    assert lakewright("services", "down").stderr == "Nothing was running.\n"
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
