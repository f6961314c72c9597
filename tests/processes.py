"""The real command in a process of its own. For tests only.

With ``master``, the address of the test run's Spark Connect server (fixture ``connect_url``), such a process costs
seconds; without, it starts a JVM of its own, which costs half a minute beside two busy workers.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakewright import failpoints

__all__ = ["LAKEWRIGHT", "environment", "killed"]

LAKEWRIGHT = ("-m", "lakewright")
_SECONDS = 180
# To import what the command needs costs more than what most of these processes do: one process has done it for all.
_ALIKE = multiprocessing.get_context("forkserver")
_ALIKE.set_forkserver_preload(
    [
        "lakewright.cli.main",
        "lakewright.cli.run",
        "lakewright.pipelines.project",
        "pyspark.sql.connect.session",
        "delta.exceptions",
        "confluent_kafka",
        "psycopg",
        __name__,
    ]
)


def environment(master: str | None = None, **more: str) -> dict[str, str]:
    """What the process sees: the environment of the tests, and where it finds Spark."""
    return {**os.environ, **({} if master is None else {"LAKEWRIGHT_MASTER": master}), **more}


def killed(folder: Path, *words: str, failpoint: str, master: str | None = None) -> None:
    """Let Python run ``words`` and die at a failpoint, by SIGKILL; a JVM of its own dies with it."""
    environ = environment(master, LAKEWRIGHT_FAILPOINT=failpoint)
    if master is not None and words[:2] == LAKEWRIGHT:
        code, said = _forked(folder, words[2:], environ)
    else:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=_SECONDS,
            check=False,
        )  # fmt: skip
        code, said = done.returncode, f"{done.stdout} {done.stderr}"
    assert code == -9, f"not killed: {said}"


def _forked(folder: Path, words: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str]:
    """The command's exit code and what it said, in a process that has its imports already."""
    handle, name = tempfile.mkstemp(prefix="lakewright-said-")
    os.close(handle)
    said = Path(name)
    try:
        process = _ALIKE.Process(target=_command, args=(folder, words, environ, said))
        process.start()
        process.join(_SECONDS)
        if process.is_alive():
            process.kill()
        return process.exitcode, said.read_text(encoding="utf-8", errors="replace")
    finally:
        said.unlink()


def _command(folder: Path, words: Sequence[str], environ: Mapping[str, str], said: Path) -> None:
    from lakewright.cli.main import main

    file = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    failpoints.arm()  # what was imported before knew another environment
    sys.argv = ["lakewright", *words]
    main()
