"""A stream's query: started at its checkpoint, watched until it ends, its failure told as what caused it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lakewright.connectors.read_errors import explain_read_error
from lakewright.errors import InputError, LakewrightError, StepFailed
from lakewright.lake.delta_errors import explain_write_error, has_other_columns
from lakewright.model.streams import Dropped, Generation, Progress
from lakewright.patterns.error_management.progress_report import has_run, keeping_millis, told_of_batch
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.private_columns import words_of_step
from lakewright.pipelines.streams.batches import BatchAttempt, do_batch
from lakewright.pipelines.streams.checkpoints import (
    explain_state_error,
    refuse_lost_checkpoint,
    refuse_state_of_others,
)
from lakewright.pipelines.streams.dropped import DroppedRows
from lakewright.pipelines.streams.frames import stream_frame
from lakewright.pipelines.streams.joins import progress_of_join
from lakewright.pipelines.streams.moving import checkpoint_in_force
from lakewright.pipelines.streams.row_wise import refuse_other_than_row_wise
from lakewright.pipelines.streams.server_side import is_remote, server_side, told_by_server, told_to_client
from lakewright.pipelines.streams.skew import Standing, standing_of
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Query", "progress_of"]

_CHANGED_BELOW = ("DELTA_SOURCE_IGNORE_DELETE", "DELTA_SOURCE_TABLE_IGNORE_CHANGES")


class Query:
    """One running query of one stream. Without ``every`` it ends when it has read what is there."""

    def __init__(self, current: Attempt, generation: Generation, *, every: timedelta | None = None) -> None:
        self._current = current
        self.generation = generation
        self._failures: list[Exception] = []
        self._dropped = DroppedRows(generation.progress)
        self.standing = standing_of(current.shop.lake, current.dataset, generation.number)
        with current.shop.lake.lend(current.shop.lake.session_apart(self.dataset.name)):
            self._query = self._start(every)

    @property
    def dataset(self) -> Dataset:
        return self._current.dataset

    def _start(self, every: timedelta | None) -> StreamingQuery:
        shop, number = self._current.shop, self.generation.number
        self._place = checkpoint_in_force(shop.lake, self.dataset.name, number)
        refuse_lost_checkpoint(shop, self.generation, self._place, self.standing)
        frame = stream_frame(shop, self.dataset, self.generation)
        refuse_state_of_others(frame, self.dataset, self._place)
        if shop.graph.follows_images(self.dataset):
            refuse_other_than_row_wise(BatchAttempt.of(self._current, number, 0))
        batch = _on_server(self._current, number, self.standing) if is_remote(frame) else self._batch
        writer = (
            frame.writeStream.queryName(f"lakewright {self.dataset.name}")
            .option("checkpointLocation", self._place)
            .foreachBatch(batch)
        )
        if every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every.total_seconds()} seconds").start()

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        try:
            do_batch(self._current, self.generation.number, rows, batch_id, self.standing)
        except Exception as error:
            # Spark tells its own error about ours; the runner needs the one that happened.
            self._failures.append(error)
            raise

    @property
    def running(self) -> bool:
        return bool(self._query.isActive)

    @property
    def idle(self) -> bool:
        """Whether it waits, having found nothing new at its last look."""
        status = self._query.status
        return not status["isTriggerActive"] and not status["isDataAvailable"]

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within the time."""
        try:
            return bool(self._query.awaitTermination(timeout=seconds))  # type: ignore[arg-type]
        except Exception:
            return True

    def stop(self, *, patience: float = 0.0) -> None:
        """End it, after the micro-batch under way if that ends in time; cut short, it is repeated by the next."""
        if patience and self._query.isActive and self._query.status["isTriggerActive"]:
            before = self._query.lastProgress
            for _ in range(int(patience / 0.1)):
                if not self._query.isActive or not self._query.status["isTriggerActive"]:
                    break
                if self._query.lastProgress != before:
                    break
                self._query.awaitTermination(timeout=0.1)  # type: ignore[arg-type]
        self._query.stop()

    def abandon(self) -> None:
        """End it after a failure of whoever watches it; what is gone with its Spark has ended already."""
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception:
            return

    def progress(self) -> Progress | None:
        """How far it is, as the last micro-batch told; None where it had none yet."""
        found = self._query.lastProgress
        if found is None:
            return None
        progress = progress_of(found)
        if progress is None:
            return None
        given = self._current.shop.graph.streamed_input(self.dataset)
        if given is not None and given.join is not None:
            told = [told_of_batch(one) for one in self._query.recentProgress]
            progress = progress_of_join(progress, told, self._sides(given.datasets), self.generation.progress)
        if not self.dataset.remembers:
            return progress
        self.note_dropped()
        total = self._dropped.total()
        return replace(progress, duplicates=total.duplicates, behind_watermark=total.behind_watermark)

    def note_dropped(self) -> None:
        """Look at what its guards dropped before Spark forgets it, which it does after a hundred micro-batches."""
        if self.dataset.remembers:
            self._dropped.look(told_of_batch(one) for one in self._query.recentProgress)

    def dropped(self) -> dict[int, Dropped] | None:
        """What its guards dropped of micro-batches that have ended, by place; None where they keep no state.

        Those that were settled before are not among them, but for the newest.
        """
        if not self.dataset.remembers:
            return None
        self.note_dropped()
        return {batch + self.standing.drains: one for batch, one in self._dropped.batches.items()}

    def settle(self, dropped: Mapping[int, Dropped] | None) -> None:
        """The micro-batches of which ``dropped`` tells have their receipts: only their total is needed from now on."""
        if dropped:
            self._dropped.settle(max(dropped) - self.standing.drains)

    def _sides(self, names: Sequence[str]) -> dict[str, str]:
        """Where the table of each side of a join lies -> its name."""
        return {self._current.shop.lake.resolve(name): name for name in names}

    def failure(self) -> Exception | None:
        """Why it ended, if not by itself."""
        error: Exception | None = self._query.exception()
        if error is None:
            return None
        if self._failures:
            error = self._failures[-1]
        if isinstance(error, LakewrightError):
            return error
        explained = explain_state_error(error, self.dataset, self._place)
        explained = explained or _explained(error, self._current)
        explained.__cause__ = explained.__cause__ or error  # by which a passing failure is told from a lasting one
        return explained


def _on_server(current: Attempt, generation: int, standing: Standing) -> Callable[[DataFrame, int], None]:
    """The micro-batch as a function that can be sent away: it knows nothing of this process."""
    attempt = server_side(current)

    def batch(rows: DataFrame, batch_id: int) -> None:
        with told_to_client():
            do_batch(attempt, generation, rows, batch_id, standing)

    return batch


def progress_of(told: Any) -> Progress | None:
    """The few figures that people ask for, of what Spark tells; None where no micro-batch has ended yet."""
    found = told_of_batch(told)
    last = int(found["batchId"]) if has_run(found) else int(found["batchId"]) - 1
    if last < 0:
        return None
    source = (found.get("sources") or [{}])[0]
    state = found.get("stateOperators") or []
    offsets = source.get("endOffset")
    return Progress(
        batch=last,
        offsets=offsets if isinstance(offsets, str) else json.dumps(offsets),
        rows_per_second=found.get("processedRowsPerSecond"),
        batch_seconds=(found.get("durationMs") or {}).get("triggerExecution", 0) / 1000,
        keeping_seconds=keeping_millis(found) / 1000,
        watermark=(found.get("eventTime") or {}).get("watermark"),
        state_rows=sum(one.get("numRowsTotal", 0) for one in state) if state else None,
        state_bytes=sum(one.get("memoryUsedBytes", 0) for one in state) if state else None,
    )


def _explained(error: Any, current: Attempt) -> Exception:
    dataset, path = current.dataset, current.shop.lake.resolve(current.dataset.name)
    text = str(error)
    explain = getattr(dataset.source, "explain", None)
    explained: LakewrightError | None = told_by_server(error)
    explained = explained or (explain(error, dataset.name) if explain is not None else None)
    explained = explained or explain_read_error(error) or explain_write_error(error, dataset=dataset.name, path=path)
    if explained is not None:
        return explained
    if has_other_columns(error):
        return InputError(
            f"{dataset.name}: a table that it reads has other columns since this query began. Nothing of the "
            "micro-batch was written.",
            hint="A new query reads on with the columns that were added. Where this is said again, a column was lost "
            f"or has another type: read all of it again by `lakewright stream rewind {dataset.name} --all`.",
        )
    if any(word in text for word in _CHANGED_BELOW):
        return InputError(
            f"{dataset.name} adds the rows of its input, of which some were deleted or changed: the input was rewound, "
            "or somebody wrote to it. Nothing was written.",
            hint=f"Read it again from the beginning: `lakewright stream rewind {dataset.name} --all`.",
        )
    said = words_of_step(current.shop.graph, dataset, error, named=True)
    return StepFailed(f"{dataset.place}: the stream {dataset.name} failed: {said}")
