"""Processes of this machine, told apart for good: a number alone is given to another program after a while."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["PROC", "process_started", "system_of"]

PROC = Path("/proc")


def process_started(pid: int) -> str | None:
    """When a process began, as text that only it has; None where there is no such process, or it has ended.

    >>> process_started(os.getpid()) == process_started(os.getpid())
    True
    """
    if sys.platform == "linux":
        return _from_proc(pid)
    asked = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, began = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else f"{'_'.join(began.split())}@"


def system_of(started: str) -> str:
    """The container and the start of the machine within which a process number means something.

    >>> system_of("4711@4026531836.0b1c")
    '4026531836.0b1c'
    """
    return started.rpartition("@")[2]


def _from_proc(pid: int) -> str | None:
    try:
        # The name in brackets may hold anything, spaces and brackets too; what follows it is regular.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        namespace = (PROC / "self" / "ns" / "pid").readlink().name.strip("pid:[]")
        # Outside containers that number is the same on every machine; this one no two kernels share.
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return None
    state, ticks = fields[0], fields[19]
    # A killed program with many threads looks dead by its first one while the others still hold its ports and files.
    gone = state in "ZX" and not _has_other_threads(pid)
    return None if gone else f"{ticks}@{namespace}.{boot}"


def _has_other_threads(pid: int) -> bool:
    try:
        return len(os.listdir(PROC / str(pid) / "task")) > 1
    except OSError:
        return False
