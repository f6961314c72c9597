"""Owner: the process that holds leases, and how another one tells that it is gone."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from lakewright.model.processes import process_started, system_of

__all__ = ["Owner", "is_alive", "this_process"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One worker process; a process identifier alone would be used again, so the start time belongs to it."""

    owner_id: str
    host: str
    pid: int
    process_started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """The running process as an owner; each call is another owner."""
    host, pid = socket.gethostname(), os.getpid()
    started = process_started(pid) or "unknown"
    return Owner(f"{host}:{pid}:{started}:{secrets.token_hex(4)}", host, pid, started)


def is_alive(host: str, pid: int, started: str) -> bool:
    """Whether a process still runs; one that cannot be seen from here counts as alive."""
    if host != socket.gethostname() or started == "unknown":
        return True
    if system_of(started) != system_of(process_started(os.getpid()) or ""):
        return True  # another container or machine of the same name: its process numbers mean nothing here
    return process_started(pid) == started
