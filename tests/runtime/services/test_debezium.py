"""Debezium beside its Kafka: started with it, found again, killed, and stopped before it. One story: a start costs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from lakewright.connectors.cdc_rest import ConnectWorker
from lakewright.connectors.cdc_settings import CONNECTOR
from lakewright.errors import ConfigurationError
from lakewright.model.connections import ServiceConnection
from lakewright.runtime.connection_settings import connect_to_service
from lakewright.runtime.services import NAMES, down, names_here, processes, status, up


def test_it_lives_with_its_kafka_and_survives_a_kill(folder: Path) -> None:
    assert "debezium" not in NAMES  # by name only
    wanted = ServiceConnection("cdc", "debezium")
    with pytest.raises(ConfigurationError, match=r"never started here.* lakewright services up debezium"):
        connect_to_service(folder, wanted)
    first = {one.name: one for one in up(folder, ["debezium"])}
    assert list(first) == ["kafka", "debezium"]
    assert {one.state for one in first.values()} == {"running"}
    assert names_here(folder) == ["postgres", "kafka", "debezium"]

    worker = ConnectWorker.at(connect_to_service(folder, wanted), asked_by="test")
    assert CONNECTOR in worker.plugins()
    assert worker.password_folder == folder / "debezium" / "data" / "passwords"
    assert oct(worker.password_folder.stat().st_mode)[-3:] == "700"
    assert first["debezium"].version == worker.plugins()[CONNECTOR]
    if sys.platform == "linux":
        assert _addresses(first["debezium"].pid) == {f"127.0.0.1:{first['debezium'].port}"}

    assert first["debezium"].pid is not None
    os.kill(first["debezium"].pid, signal.SIGKILL)
    again = {one.name: one for one in up(folder, ["debezium"])}
    assert again["kafka"].pid == first["kafka"].pid
    assert again["debezium"].pid != first["debezium"].pid
    assert again["debezium"].port == first["debezium"].port
    told: list[str] = []
    assert [one.state for one in down(folder, say=told.append)] == ["absent", "stopped", "stopped"]
    assert told == ["Debezium was stopped.", "Kafka was stopped."]
    assert [one.state for one in status(folder, ["debezium"])] == ["stopped"]
    assert processes.working_in(folder / "debezium", "java") == []


def _addresses(pid: int | None) -> set[str]:
    """Where a process listens, from the system's own tables (IPv4 and IPv6)."""
    links = [os.readlink(handle) for handle in Path(f"/proc/{pid}/fd").iterdir() if handle.is_symlink()]
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in own:
                address, _, port = local.partition(":")
                host = address[-8:]  # of an IPv6 socket: the part that holds an IPv4 address
                found.add(".".join(str(int(host[at : at + 2], 16)) for at in (6, 4, 2, 0)) + f":{int(port, 16)}")
    return found
