"""The real command in a process of its own. For tests only.

With ``master``, the address of the test run's Spark Connect server (fixture ``connect_url``), such a process costs
seconds; without, it starts a JVM of its own, which costs half a minute beside two busy workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["LAKEWRIGHT", "environment", "killed"]

LAKEWRIGHT = ("-m", "lakewright")


def environment(master: str | None = None, **more: str) -> dict[str, str]:
    """What the process sees: the environment of the tests, and where it finds Spark."""
    return {**os.environ, **({} if master is None else {"LAKEWRIGHT_MASTER": master}), **more}


def killed(folder: Path, *words: str, failpoint: str, master: str | None = None) -> None:
    """Let Python run ``words`` and die at a failpoint, by SIGKILL; a JVM of its own dies with it."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(master, LAKEWRIGHT_FAILPOINT=failpoint),
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == -9, f"not killed: {done.stdout} {done.stderr}"
