"""The demo's continuous stream: a worker in a thread of its own, watched from beside it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lakewright.errors import StepFailed, TargetError
from lakewright.pipelines.accounts import Account, accounts_of
from lakewright.pipelines.progress import Listener
from lakewright.pipelines.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewright.pipelines.streams.worker import WorkerSummary

__all__ = ["ContinuousStream"]

_GLANCE_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0


class ContinuousStream:
    """What `lakewright run --continuous` does, for one stream of a project, until `stop`."""

    def __init__(self, folder: Path, dataset: str, spark: SparkSession, listener: Listener) -> None:
        self._project = Project(folder, spark=spark)  # of its own: the runs beside it have theirs
        self._dataset, self._listener = dataset, listener
        self._summary: WorkerSummary | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"stream of {dataset}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def rows(self) -> int:
        """How many records are in the table and accounted for."""
        receipts = self._project.store.receipts
        version = receipts.last_version(self._dataset)
        return 0 if version is None else receipts.rows_total(self._dataset, version) or 0

    @property
    def behind(self) -> int | None:
        """How many records of the source it has not read, by asking the source; None before its first micro-batch."""
        (state,) = self._project.streams([self._dataset])
        return state.behind

    def batches(self) -> list[Account]:
        """The account of each micro-batch so far, in order."""
        return accounts_of(self._project.store, self._dataset, is_source=True)

    def check(self) -> None:
        """Raise what has ended the stream, if it has ended."""
        if self._thread.is_alive():
            return
        failed = [] if self._summary is None else self._summary.failed
        raise self._error or (failed[0].error if failed else None) or StepFailed(f"The stream {self._dataset} ended.")

    def stop(self) -> None:
        """Ask it to stop as `lakewright cancel` does, and wait for the micro-batch under way."""
        runs, waited = self._project.store.runs, 0.0
        while self._thread.is_alive() and waited < _PATIENCE_SECONDS:
            for run in runs.unfinished():
                if run.options.get("continuous") and not run.cancel_requested:
                    runs.request_cancel(run.run_id)
            self._thread.join(_GLANCE_SECONDS)
            waited += _GLANCE_SECONDS
        if self._thread.is_alive():
            raise TargetError(f"The stream {self._dataset} did not stop within {_PATIENCE_SECONDS:.0f} s.")
        self._project.close()

    def _run(self) -> None:
        try:
            self._summary = self._project.run_continuous([self._dataset], listener=self._listener)
        except Exception as error:  # told to whoever watches, by `check`
            self._error = error
