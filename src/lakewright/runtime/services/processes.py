"""Processes that outlive the command that started them, and how a later command finds them again.

Guarantee:
    A `Process` is its number together with the time at which it began, so that a number that the system has
    given to another program in the meantime is never taken for ours: it is neither reported nor signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakewright.model.processes import PROC, process_started
from lakewright.runtime.services.accounts import Account

__all__ = ["Process", "end", "identify", "is_running", "send", "spawn", "this_process", "wait_until_gone", "working_in"]

_GLANCE_SECONDS = 0.05
# Our own children, kept so that their ends are noticed and no zombie stays behind.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine: its number, and when it began, as text that only it has."""

    pid: int
    started: str


def this_process() -> Process:
    """The running process."""
    return identify(os.getpid())


def spawn(
    command: Sequence[str | Path],
    *,
    folder: Path,
    log: Path,
    account: Account,
    environ: Mapping[str, str],
    inherit: Sequence[int] = (),
) -> Process:
    """Start a program that lives on when we end: its own session, no terminal, its words to ``log``.

    Of our open files it gets those in ``inherit``, and no other.
    """
    with log.open("ab") as record:
        child = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=record,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=inherit,
            **account.options,
        )
    _children[child.pid] = child
    return identify(child.pid)


def is_running(process: Process) -> bool:
    """Whether this very process still runs; one that has ended and only waits for its parent does not."""
    child = _children.get(process.pid)
    if child is not None and child.poll() is not None:
        del _children[process.pid]
        return False
    return process_started(process.pid) == process.started


def send(process: Process, number: signal.Signals) -> None:
    """Signal this process, and no other one that has got its number."""
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        except OSError:  # a kernel without it
            _send_by_number(process, number)
            return
        try:
            # The handle is bound to what has the number now: looked at after opening, it cannot change any more.
            if is_running(process):
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
    else:
        _send_by_number(process, number)


def wait_until_gone(processes: Sequence[Process], timeout_seconds: float) -> bool:
    """Wait for processes to end; whether they all did."""
    deadline = time.monotonic() + timeout_seconds
    while any(is_running(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(_GLANCE_SECONDS)
    return True


def end(process: Process, number: signal.Signals, timeout_seconds: float) -> None:
    """Ask a process to end and wait for it; one that does not is killed."""
    send(process, number)
    if not wait_until_gone([process], timeout_seconds):
        send(process, signal.SIGKILL)
        wait_until_gone([process], timeout_seconds)


def working_in(folder: Path, program: str) -> list[Process]:
    """The processes of ``program`` whose current folder is ``folder``; none where the system does not tell (macOS)."""
    home = folder.resolve()
    return [
        identify(int(entry.name))
        for entry in PROC.glob("[0-9]*")
        if _link(entry / "cwd") == home and (found := _link(entry / "exe")) is not None and found.name == program
    ]


def identify(pid: int) -> Process:
    """The process that has this number now."""
    return Process(pid, process_started(pid) or "ended")


def _send_by_number(process: Process, number: signal.Signals) -> None:
    if is_running(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def _link(entry: Path) -> Path | None:
    try:
        return entry.readlink()
    except OSError:  # it has ended, or belongs to somebody else
        return None
