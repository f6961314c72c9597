"""Ports on the loopback interface: found free once, then kept."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from lakewright.errors import TargetError

__all__ = ["HOST", "accepts", "free_port", "is_free"]

HOST = "127.0.0.1"
# Below the range from which systems take the ports of outgoing connections, any of which could hold ours later.
_FIRST, _LAST = 20_000, 29_999


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: an old connection is no owner
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def accepts(port: int, timeout_seconds: float = 1) -> bool:
    """Whether somebody listens there; cheaper than a client's first request."""
    try:
        socket.create_connection((HOST, port), timeout=timeout_seconds).close()
    except OSError:
        return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port that is free now and not among ``taken``; any of ten thousand, so that projects do not meet."""
    for port in random.sample(range(_FIRST, _LAST + 1), 200):
        if port not in taken and is_free(port):
            return port
    raise TargetError(
        f"No free port was found between {_FIRST} and {_LAST}. Nothing was started.",
        hint="Name one that is free: lakewright services up --postgres-port PORT --kafka-port PORT",
    )
