"""Failpoints: named places between two commits at which a test can make the process die.

They are armed by the environment only, so nothing in a project or in code can switch one on:

- ``LAKEWRIGHT_FAILPOINT="name"`` acts at the first hit, ``"name:3"`` at the third.
- ``LAKEWRIGHT_FAILPOINT_ACTION``: ``kill`` (the default) ends the children first, so that the JVM
  writes nothing more, and then this process, all by SIGKILL; ``exit`` ends only this process, at once,
  and leaves the JVM to notice; ``raise`` raises `FailpointReached`; ``pause`` writes
  ``NAME.paused`` into ``LAKEWRIGHT_FAILPOINT_DIR`` and waits there for ``NAME.go``.

Guarantee:
    A failpoint that is not armed does nothing and costs nanoseconds: the environment is read when this
    module is imported, not at each hit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from lakewright.errors import ConfigurationError, LakewrightError

__all__ = ["EXIT_CODE", "FailpointReached", "arm", "failpoint"]

EXIT_CODE = 86
ACTIONS = ("kill", "raise", "exit", "pause")


class FailpointReached(LakewrightError):
    """The failure that a test asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Failpoint '{name}' was reached, as LAKEWRIGHT_FAILPOINT asks.")
        self.name = name


@dataclass(slots=True)
class _Armed:
    name: str
    hit: int
    action: str
    folder: Path | None
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def failpoint(name: str) -> None:
    """Do what the environment asks for at this place; nothing, unless it names it."""
    armed = _armed
    if armed is None or armed.name != name:
        return
    with armed.lock:
        armed.hits += 1
        if armed.hits != armed.hit:
            return
    _act(armed)


def arm(environ: Mapping[str, str] | None = None) -> None:
    """Read the environment again (or ``environ``): for a test that stays in one process."""
    global _armed
    _armed = _from_environment(os.environ if environ is None else environ)


def _from_environment(env: Mapping[str, str]) -> _Armed | None:
    text = env.get("LAKEWRIGHT_FAILPOINT", "")
    if not text:
        return None
    name, _, count = text.partition(":")
    action = env.get("LAKEWRIGHT_FAILPOINT_ACTION", "kill")
    folder = env.get("LAKEWRIGHT_FAILPOINT_DIR")
    if count and not (count.isdecimal() and int(count) > 0):
        raise ConfigurationError(f"LAKEWRIGHT_FAILPOINT={text}: the part after ':' should be a number from 1 on.")
    if action not in ACTIONS:
        raise ConfigurationError(f"LAKEWRIGHT_FAILPOINT_ACTION={action}: should be one of {', '.join(ACTIONS)}.")
    if action == "pause" and not folder:
        raise ConfigurationError("LAKEWRIGHT_FAILPOINT_ACTION=pause needs LAKEWRIGHT_FAILPOINT_DIR, a folder.")
    return _Armed(name, int(count or 1), action, Path(folder) if folder else None)


def _act(armed: _Armed) -> None:
    if armed.action == "raise":
        raise FailpointReached(armed.name)
    if armed.action == "exit":
        os._exit(EXIT_CODE)
    if armed.action == "kill":
        _kill_everything()
    assert armed.folder is not None
    _pause(armed.name, armed.folder)


def _pause(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.paused").write_text(str(os.getpid()))
    go = folder / f"{name}.go"
    while not go.exists():
        time.sleep(0.02)


def _kill_everything() -> NoReturn:
    for child in _descendants(os.getpid()):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself in the meantime
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the signal is on its way; nothing of ours may run before it arrives
        signal.pause()


def _descendants(root: int) -> list[int]:
    """All processes below ``root``, parents before their children: the JVM goes before its workers."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def _processes() -> list[tuple[int, int]]:
    """Every process with its parent: from /proc where there is one, else from ``ps``."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return [(int(pid), int(parent)) for pid, parent in map(str.split, listed.stdout.splitlines())]
    pairs = []
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # ended while we looked
            # the command's name, in brackets, may itself hold spaces and brackets
            pairs.append((int(entry.name), int(stat.rpartition(")")[2].split()[1])))
    return pairs


_armed = _from_environment(os.environ)
