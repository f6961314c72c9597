"""Services listen on the loopback interface alone: what the system says of their sockets, not what they were told."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lakewright.runtime.services.contract import NotReadyError
from lakewright.runtime.services.kafka import KafkaService
from lakewright.runtime.services.ports import HOST
from lakewright.runtime.services.state import Place
from lakewright.testing.services import started

_LISTEN = "0A"
Listener = tuple[IPv4Address | IPv6Address, int]


def sockets() -> Iterator[tuple[str, IPv4Address | IPv6Address, int]]:
    """Every socket of this machine on which somebody listens: its inode, address and port."""
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    for table in tables:
        for line in table.read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == _LISTEN:
                text, _, port = cells[1].partition(":")
                words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
                address = IPv4Address(words[0]) if len(words) == 1 else IPv6Address(b"".join(words))
                mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
                yield cells[9], mapped or address, int(port, 16)


def listeners_beside(port: int) -> list[Listener]:
    """Where the process listens that listens on this port, there and elsewhere."""
    listening = list(sockets())
    known = {f"socket:[{inode}]": (address, at) for inode, address, at in listening}
    for process in Path("/proc").glob("[0-9]*"):
        held = [known[file] for file in opened_by(process) if file in known]
        if port in [at for _, at in held]:
            return held
    raise AssertionError(f"nobody listens on port {port}")


def opened_by(process: Path) -> Iterator[str]:
    """What a process has open; a file may be closed, and the process end, while one looks."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(descriptor.readlink())


@pytest.mark.skipif(sys.platform != "linux", reason="the sockets of a process are read from /proc")
@pytest.mark.parametrize("name", ["postgres", "kafka", "debezium", "connect", "spark-master", "spark-worker-1"])
def test_a_service_listens_on_the_loopback_interface_alone(request: pytest.FixtureRequest, name: str) -> None:
    if name == "spark-worker-1":
        started(request.config, "spark-master")
    if name == "connect":
        port = urlsplit(request.getfixturevalue("connect_url")).port
    else:
        port = started(request.config, name).port
    assert port is not None
    found = listeners_beside(port)
    assert [one for one in found if not one[0].is_loopback] == []
    assert port in [at for _, at in found]


@pytest.mark.skipif(sys.platform != "linux", reason="the sockets of a process are read from /proc")
def test_a_socket_for_everybody_would_be_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_to_all, socket.create_server((HOST, 0)) as ours:
        found = listeners_beside(ours.getsockname()[1])
        assert (IPv4Address("0.0.0.0"), open_to_all.getsockname()[1]) in found
        assert (IPv4Address(HOST), ours.getsockname()[1]) in found


def test_a_broker_of_another_cluster_on_our_port_is_not_taken_for_ours(request: pytest.FixtureRequest) -> None:
    place = Place(started(request.config, "kafka").data.parent)
    state = place.load()
    assert state is not None
    service = KafkaService()
    assert service.ask(place, state)
    other = replace(state, cluster_id="another")
    with pytest.raises(NotReadyError, match=rf"another Kafka \(cluster {state.cluster_id}\) answers on port"):
        service.ask(place, other)
