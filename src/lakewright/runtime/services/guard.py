"""The guard: a small process that throws services away when the process that they were started for has ended.

Guarantee:
    It lives in a session of its own, so that whatever ends a test run (a finished run, Ctrl-C, SIGKILL of the
    process or of its whole group) leaves it alone; within a second it stops the services and removes their folder.
    It asks the system for the process instead of being told, so it works where parents cannot be inherited (macOS).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from lakewright.errors import LakewrightError
from lakewright.runtime.services import processes
from lakewright.runtime.services.accounts import MYSELF
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State

__all__ = ["ensure", "throw_away", "watch"]

_GLANCE_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0


def ensure(folder: Path, holder: Process) -> None:
    """Start the guard of a folder unless it is there; with the services' lock held, and before any service."""
    place = Place(folder / "guard")
    place.make()
    known = place.load()
    if known is not None and known.process is not None and processes.is_running(known.process):
        return
    words = [sys.executable, "-c", f"import sys; from {__name__} import watch; watch(*sys.argv[1:])"]
    command = [*words, str(folder), str(holder.pid), holder.started]
    process = processes.spawn(command, folder=Path("/"), log=place.log, account=MYSELF, environ=os.environ)
    place.save(State(process=process))


def watch(folder: str, pid: str, started: str) -> None:
    """The guard's own process: wait until the holder has ended, or has thrown everything away itself."""
    holder, place = Process(int(pid), started), Path(folder)
    while processes.is_running(holder) and place.exists():
        time.sleep(_GLANCE_SECONDS)
    throw_away(place)


def throw_away(folder: Path) -> None:
    """Stop the services of a folder and remove it; what was being made when its command was killed may still write."""
    from lakewright.runtime.services.lifecycle import down

    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists():
        try:
            down(folder, delete=True)
            shutil.rmtree(folder)
        except (OSError, LakewrightError):
            if time.monotonic() > deadline:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            time.sleep(_GLANCE_SECONDS)
