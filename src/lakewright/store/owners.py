"""Owner: the process that holds leases, and how another one tells that it is gone."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Owner", "is_alive", "this_process"]

_PROC = Path("/proc")


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
    started = _process_started(pid) or "unknown"
    return Owner(f"{host}:{pid}:{started}:{secrets.token_hex(4)}", host, pid, started)


def is_alive(host: str, pid: int, started: str) -> bool:
    """Whether a process still runs; one that cannot be seen from here counts as alive."""
    if host != socket.gethostname() or started == "unknown":
        return True
    if _namespace(started) != _namespace(_process_started(os.getpid()) or ""):
        return True  # another container or machine of the same name: its process numbers mean nothing here
    return _process_started(pid) == started


def _namespace(started: str) -> str:
    return started.rpartition("@")[2]


def _process_started(pid: int) -> str | None:
    """When a process began, as text that only it has; None where there is no such process."""
    if sys.platform == "linux":
        return _from_proc(pid)
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return f"{found.replace(' ', '_')}@" if found else None


def _from_proc(pid: int) -> str | None:
    try:
        # The name in brackets may hold anything, spaces and brackets too; what follows it is regular.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        namespace = (_PROC / "self" / "ns" / "pid").readlink().name.strip("pid:[]")
        # Outside containers that number is the same on every machine; this one no two kernels share.
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return None
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{ticks}@{namespace}.{boot}"
