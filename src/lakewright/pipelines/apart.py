"""Listening without Spark: each run that an event starts is made by a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from threading import Event as Flag
from typing import TYPE_CHECKING

from lakewright.errors import InterruptedRun, LeaseHeldError, StepFailed
from lakewright.model.times import utc_now
from lakewright.model.triggers import Event
from lakewright.patterns.ingestion.external_trigger import Starter
from lakewright.pipelines.launching import BUSY
from lakewright.pipelines.listen import ListenSummary, listen
from lakewright.pipelines.progress import Listener
from lakewright.pipelines.triggers import run_id_of

if TYPE_CHECKING:
    from lakewright.pipelines.project import Project

__all__ = ["listen_apart"]


def listen_apart(project: Project, pipelines: Sequence[str], *, once: bool, listener: Listener) -> ListenSummary:
    """Listen, and run `lakewright work` for each event of interest."""

    def start(pipeline: str, stop: Flag) -> Starter:
        return lambda event: _run_apart(project, pipeline, event, stop)

    return listen(project, pipelines, once=once, listener=listener, now=utc_now, start=start)


def _run_apart(project: Project, pipeline: str, event: Event, stop: Flag) -> str:
    """Runs a process for an event and a pipeline; raises where its run did not succeed."""
    words = ["work", pipeline, "--event", event.id, "--trigger", event.trigger, "--json"]
    place = ["--project", str(project.folder), "--target", project.settings.target.name]
    child = subprocess.Popen(
        [sys.executable, "-m", "lakewright", *words, *place],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while child.poll() is None:
        if stop.wait(0.2):
            child.terminate()
            child.wait()
    run_id = run_id_of(event, pipeline)
    if child.returncode == 0:
        return run_id
    if child.returncode == InterruptedRun.exit_code or stop.is_set():
        raise InterruptedRun(f"The run {run_id} was interrupted.")
    if child.returncode == BUSY:
        raise LeaseHeldError(f"Somebody else is at work on '{pipeline}'.", name=pipeline, owner="another process")
    raise StepFailed(f"the run {run_id} did not succeed: {_told(child)}")


def _told(child: subprocess.Popen[str]) -> str:
    """What the process said of its end: one object, with the error."""
    assert child.stdout is not None
    try:
        return str(json.loads(child.stdout.read())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"its process ended with {child.returncode}"
