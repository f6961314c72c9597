"""Runs Lakewright in a process of its own, for the DAGs beside this file. Airflow itself needs neither it nor Spark.

Each task is one run of Lakewright, which has the name of Airflow's run: a retry goes on where the last try ended, and
a task that is cleared after it succeeded makes again what it made. Exit codes become states:

    0    success; skipped where nothing was to be made; failed where it has not said how it ended
    1    failed; tried again
    2    failed for good: the project or the settings are wrong
    3    failed for good: a guard refused the data, and nothing was published
    4    asked again in a minute: what it waits for is not ready; no worker is held meanwhile
    130  failed; tried again: it was interrupted
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

POINTLESS = (2, 3)
"""Exit codes after which another try would end the same way."""
NOT_READY = 4
A_MINUTE = timedelta(minutes=1)
REASONS = {"scheduled": "scheduled", "asset_triggered": "scheduled", "backfill": "backfill", "manual": "manual"}


class LakewrightRun(BaseOperator):
    """Runs ``lakewright run`` for datasets of a project.

    ``python`` is an interpreter that has Lakewright, ``project`` the project's folder on the worker. ``whole`` says
    that the task is all of its pipeline. A scheduled run that begins later than ``grace`` after its time is passed
    over.
    """

    template_fields: Sequence[str] = ("python", "project", "target", "select")
    ui_color = "#d7e8f5"

    def __init__(
        self,
        *,
        python: str,
        project: str,
        target: str,
        select: Sequence[str],
        whole: bool = True,
        side_outputs: Mapping[str, str] | None = None,
        grace: timedelta | None = None,
        wait: timedelta = timedelta(minutes=10),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.python = python
        self.project = project
        self.target = target
        self.select = select
        self.whole = whole
        self.side_outputs = dict(side_outputs or {})
        self.grace = grace
        self.wait = wait
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Run it, with what it says in the task's log, and end as it ended."""
        self._pass_over_what_is_late(context)
        code, told, last_words = self._call(self.command(context))
        made = told.get("made", {})
        if told.get("message"):
            self.log.info(told["message"])
        if code == 0 and not told:
            raise AirflowException(
                "`lakewright run` ended with 0 and did not say what it made: does a step end the process (os._exit)?"
            )
        if code == 0 and not made:
            raise AirflowSkipException(told.get("message") or "Nothing was to be made.")
        if code == 0:
            self._announce(context, told, made)
            return {"run_id": told["run_id"], "made": made}
        if code == NOT_READY:
            self.log.info("Not yet: %s", _said(told, last_words))
            raise AirflowRescheduleException(datetime.now(UTC) + A_MINUTE)
        raise self._failure(code, told, last_words)

    def on_kill(self) -> None:
        """Ask the run to stop: what it has committed stays, and the next try goes on from there."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def command(self, context: Any) -> list[str]:
        """What is typed for this try of the task."""
        run, task = context["dag_run"], context["ti"]
        name = f"{run.dag_id}/{run.run_id}" + ("" if self.whole else f"/{self.task_id}")
        # After a clear Airflow allows as many further tries as there are retries: a clear after try 3 raises it by 3.
        cleared_after = max(task.max_tries - (self.retries or 0), 0)
        reason = REASONS.get(run.run_type, "manual")
        if reason == "scheduled" and not self.whole:
            reason = "part"
        words = [self.python, "-m", "lakewright", "run", "--json", "--project", self.project, "--target", self.target]
        words += [word for one in self.select for word in ("--select", one)]
        words += ["--at", (run.logical_date or run.run_after).astimezone(UTC).isoformat()]
        words += [word for key, value in (run.conf or {}).items() for word in ("--param", f"{key}={value}")]
        words += ["--run-id", name, "--repeat", str(cleared_after), "--reason", reason]
        return [*words, "--wait", str(self.wait.total_seconds())]

    def _pass_over_what_is_late(self, context: Any) -> None:
        run, first = context["dag_run"], context["ti"].try_number == 1
        begun = run.start_date or datetime.now(UTC)
        if self.grace is not None and first and run.run_type == "scheduled" and begun - run.run_after > self.grace:
            raise AirflowSkipException(f"Passed over: it was due at {run.run_after}, and is started at {begun}.")

    def _call(self, words: Sequence[str]) -> tuple[int, dict[str, Any], list[str]]:
        self.log.info("Running: %s", " ".join(words))
        last_words: deque[str] = deque(maxlen=20)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
            try:
                process = subprocess.Popen(
                    words, stdout=answer, stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=_die_together
                )
            except OSError as error:
                raise self._missing(str(error)) from None
            self._process = process
            assert process.stderr is not None
            for line in process.stderr:
                self.log.info(line.rstrip())
                last_words.append(line.rstrip())
            code = process.wait()
            answer.seek(0)
            return code, _parsed(answer.read()), list(last_words)

    def _announce(self, context: Any, told: Mapping[str, Any], made: Mapping[str, Sequence[str]]) -> None:
        """Tell of the datasets that the run has made, in this try or before, and of no other."""
        task = context["ti"].task
        names = {asset: asset.uri.rpartition("/")[2] for asset in task.outlets}
        task.outlets = [asset for asset, name in names.items() if self.side_outputs.get(name, name) in made]
        for asset in task.outlets:
            slices = made[self.side_outputs.get(names[asset], names[asset])]
            context["outlet_events"][asset].extra = {"run_id": told["run_id"], "slices": list(slices)}

    def _failure(self, code: int, told: Mapping[str, Any], last_words: Sequence[str]) -> AirflowException:
        if any("No module named lakewright" in line for line in last_words):
            return self._missing("it has no module lakewright")
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        words = f"`lakewright run` {ended}: {_said(told, last_words)}"
        return (AirflowFailException if code in POINTLESS else AirflowException)(words)

    def _missing(self, why: str) -> AirflowFailException:
        return AirflowFailException(
            f"{self.python} cannot run Lakewright: {why}. Install it there (pip install lakewright), or name an "
            "interpreter that has it: lakewright export airflow --python PATH."
        )


def _said(told: Mapping[str, Any], last_words: Sequence[str]) -> str:
    error = told.get("error") or {}
    words = " ".join(text for text in (error.get("message"), error.get("hint")) if text)
    return words or (last_words or ["it said nothing"])[-1]


def _parsed(answer: str) -> dict[str, Any]:
    try:
        told = json.loads(answer)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _die_together() -> None:
    """On Linux, the run is asked to stop when the task's own process is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
