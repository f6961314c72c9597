"""Launching: the processes that a scheduler starts, so that it needs no Spark itself, nor the project's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from lakewright.errors import ConfigurationError
from lakewright.pipelines.timetables import Timetable

__all__ = ["BUSY", "Child", "Launcher", "ProcessLauncher"]

BUSY = 75
"""The exit code of `lakewright work` where somebody else is at work: nothing was started, try again later."""
_LARGEST_LOG = 5_000_000


class Child(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None:
        """Its exit code, or None while it goes on."""

    def terminate(self) -> None:
        """Ask it to stop."""


class Launcher(Protocol):
    """How work is handed to other processes."""

    def work(
        self, pipeline: str, times: Sequence[datetime], seen: Mapping[str, int] | None, *, since: datetime | None
    ) -> Child:
        """Run a pipeline for these times, of which the first is due ``since`` then."""

    def follow(self, pipeline: str, run_id: str) -> Child:
        """Repeat a backfill of another pipeline in this one."""

    def listen(self, pipelines: Sequence[str], *, once: bool) -> Child:
        """Listen to the triggers of pipelines."""

    def timetables(self) -> list[Timetable]:
        """The timetables that the project's files declare now."""

    def fingerprint(self) -> object:
        """Something that changes with those files."""

    def last_words(self, name: str) -> str:
        """What the last process for a pipeline said at its end."""


class ProcessLauncher:
    """Starts `lakewright work` and `lakewright listen` for a project; what they say goes to a file for each pipeline.

    They outlive the scheduler: a killed one leaves them to end their runs.
    """

    def __init__(self, folder: Path, patterns: Sequence[str], *, target: str, logs: Path) -> None:
        self._folder = folder
        self._patterns = patterns
        self._target = target
        self._logs = logs

    def work(
        self, pipeline: str, times: Sequence[datetime], seen: Mapping[str, int] | None, *, since: datetime | None
    ) -> Child:
        words = [word for time in times for word in ("--time", time.isoformat())]
        words += [word for name, version in sorted((seen or {}).items()) for word in ("--seen", f"{name}={version}")]
        words += [] if since is None else ["--since", since.isoformat()]
        return self._start(pipeline, ["work", pipeline, *words])

    def follow(self, pipeline: str, run_id: str) -> Child:
        return self._start(pipeline, ["work", pipeline, "--backfill", run_id])

    def listen(self, pipelines: Sequence[str], *, once: bool) -> Child:
        return self._start("listen", ["listen", *pipelines, "--apart", *(["--once"] if once else [])])

    def timetables(self) -> list[Timetable]:
        answer = subprocess.run(self._command(["schedules", "--json"]), capture_output=True, text=True, check=False)
        try:
            told = json.loads(answer.stdout)
        except ValueError:
            problem = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
            raise ConfigurationError(f"The project's schedules cannot be read: {problem[0]}") from None
        if told["error"] is not None:
            raise ConfigurationError(told["error"]["message"], hint=told["error"]["hint"])
        return [Timetable.from_json(one["timetable"]) for one in told["schedules"]]

    def fingerprint(self) -> object:
        files = {file for pattern in self._patterns for file in self._folder.glob(pattern)}
        files |= {file for folder in {file.parent for file in files} for file in folder.glob("*.py")}
        files.add(self._folder / "lakewright.toml")
        return {str(file): _changed_at(file) for file in files}

    def last_words(self, name: str) -> str:
        try:
            lines = self._log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        errors = [line for line in lines[-20:] if line.startswith("error: ")]
        return (errors or lines)[-1] if lines else ""

    def _command(self, words: Sequence[str]) -> list[str]:
        shared = ["--project", str(self._folder), "--target", self._target]
        return [sys.executable, "-m", "lakewright", *words, *shared]

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _start(self, name: str, words: Sequence[str]) -> Child:
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._log(name)
        if log.exists() and log.stat().st_size > _LARGEST_LOG:
            os.replace(log, log.with_suffix(".1.log"))
        with log.open("ab") as file:
            # A session of its own: Ctrl-C in a terminal reaches the scheduler alone, which asks the others.
            return subprocess.Popen(
                self._command(words), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )


def _changed_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
