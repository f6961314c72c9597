"""Checkpointer: a stream that is started again goes on where it was, and does not begin anew.

Problem:
    A topic has no partitions by day that would show what comes next. A stream that dies must know its position and
    its state, or it reads everything again, or loses what it had not written.
Guarantee:
    A stream never starts without a place for its progress, never silently from the beginning where that place cannot be
    read, and never twice on one place. ``delivery`` says what a crash between a write and its record means: the
    micro-batch is written again (``at least once``), not written at all (``at most once``), or written again under the
    same name, by which the target skips it (``exactly once``; a function that never looks at that name is refused).
    The name tells which checkpoint it is: where one was lost and the stream begins anew, nothing that it reads is taken
    for a repeat and skipped.
Consequences:
    - Exactly once is the target's work: ``write`` has to hand ``BatchId`` on, to Delta by ``**batch.options``. What it
      does with it, nobody but the target sees.
    - A micro-batch of a stream with state is held in memory while it is written: its state is kept once.
    - A short interval costs more records of progress, a long one repeats more after a crash: ``progress_report``.
    - A stream that begins anew because its checkpoint was lost writes again what it had written, since only the
      checkpoint knew: with ``if_missing="refuse"`` it does not start.
    - A checkpoint belongs to one query. Another grouping, key or number of shuffle partitions cannot use its state:
      give it the next ``version``, and a start (``starting_offsets``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.batch_identity import BatchId, ignores_batch
from lakewright.patterns.error_management.checkpoint_errors import explain_checkpoint_error
from lakewright.patterns.error_management.checkpoint_files import (
    check_checkpoint,
    copy_checkpoint,
    read_checkpoint,
    starting_offsets,
)
from lakewright.patterns.error_management.checkpoint_notes import (
    checkpoint_id,
    forget_id,
    name_checkpoint,
    read_note,
    write_note,
)
from lakewright.patterns.error_management.progress_report import progress_report
from lakewright.patterns.error_management.state_note import refuse_other_state
from lakewright.patterns.error_management.stateful_plans import is_stateful

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "BatchId",
    "CheckpointedStream",
    "Checkpointer",
    "Delivery",
    "OutputMode",
    "check_checkpoint",
    "checkpointed",
    "copy_checkpoint",
    "keep_progress",
    "progress_report",
    "read_checkpoint",
    "starting_offsets",
]

Delivery = Literal["at least once", "at most once", "exactly once"]
OutputMode = Literal["append", "update", "complete"]
IfMissing = Literal["begin", "refuse"]
_NAME = "Checkpointer"
_NEWEST = "lakewright_newest"
"""Beside Spark's own files: with delivery="at most once", the micro-batch that began last."""
_log = logging.getLogger("lakewright.checkpointer")


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Where a stream keeps its progress, and when.

    ``location`` is a folder in storage that outlives the job's machine; each ``version`` of the query has its own below
    it. ``name`` tells the stream from others that write to the same target. ``every`` is the time between two
    micro-batches; without it the stream reads what is there and ends. ``output_mode`` is Spark's: ``update`` hands over
    the windows that have changed, ``append`` those that are closed. ``asynchronous`` does not wait for the record of
    progress: faster, and more is repeated after a crash. ``if_missing`` says whether a stream may begin where there is
    no progress: ``refuse`` once it has run, so that a lost checkpoint is told.
    """

    location: str
    name: str
    version: int = 1
    delivery: Delivery = "at least once"
    every: str | None = None
    output_mode: OutputMode = "append"
    asynchronous: bool = False
    if_missing: IfMissing = "begin"

    def __post_init__(self) -> None:
        if not isinstance(self.location, str) or not self.location.strip():
            raise ConfigurationError(
                f"{_NAME}: 'location' is empty: a stream without a checkpoint begins anew at every start.",
                hint="Name a folder in storage that outlives the machine: 's3://lake/checkpoints/visits'.",
            )
        if not self.name or any(c in self.name for c in "'\"\\\n"):
            raise ConfigurationError(f"{_NAME}: {self.name!r} is no name for a stream.")
        if self.version < 1:
            raise ConfigurationError(f"{_NAME}: version is 1 or more, not {self.version}.")
        if self.delivery not in get_args(Delivery):
            raise ConfigurationError(
                f"{_NAME}: delivery is {', '.join(map(repr, get_args(Delivery)))}, not {self.delivery!r}."
            )
        if self.output_mode not in get_args(OutputMode):
            raise ConfigurationError(
                f"{_NAME}: output_mode is {', '.join(map(repr, get_args(OutputMode)))}, not {self.output_mode!r}."
            )
        if self.if_missing not in get_args(IfMissing):
            raise ConfigurationError(f"{_NAME}: if_missing is 'begin' or 'refuse', not {self.if_missing!r}.")
        if self.every is not None:
            parse_duration(self.every)

    @property
    def path(self) -> str:
        """The folder of this version."""
        return f"{self.location.rstrip('/')}/v{self.version}"

    @property
    def app_id(self) -> str:
        """What the names of all its micro-batches begin with."""
        return f"checkpoint:{self.name}:v{self.version}"


def checkpointed(df: DataFrame, checkpoint: Checkpointer) -> DataStreamWriter:
    """A writer of the stream, with its checkpoint and interval, refused where it could not be relied on.

    Choose the sink and start it; most want ``keep_progress``, which says what a crash means.
    """
    if not df.isStreaming:
        raise ConfigurationError(f"{_NAME}: this frame is not a stream; read it with spark.readStream.")
    if checkpoint.asynchronous and is_stateful(df):
        raise ConfigurationError(
            f"{_NAME}: progress cannot be kept asynchronously for a stream with state: after a crash the state would "
            "be ahead of the position.",
            hint="Leave asynchronous=True out.",
        )
    if check_checkpoint(df.sparkSession, checkpoint.path) is None and checkpoint.if_missing == "refuse":
        raise InputError(
            f"{_NAME}: there is no progress of {checkpoint.name} in {checkpoint.path}: it was lost, or lies elsewhere. "
            "Nothing was started.",
            hint='Bring the folder back from a copy, or correct the location. if_missing="begin" begins anew: what was '
            "written before is then written again.",
        )
    refuse_other_state(df, checkpoint.path)
    named = df.writeStream.queryName(checkpoint.name).outputMode(checkpoint.output_mode)
    writer = named.option("checkpointLocation", checkpoint.path)
    if checkpoint.asynchronous:
        writer = writer.option("asyncProgressTrackingEnabled", "true")
    if checkpoint.every is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{parse_duration(checkpoint.every).total_seconds()} seconds")


class CheckpointedStream:
    """A stream that was started: Spark's query, and what ends it told as what caused it."""

    def __init__(self, query: StreamingQuery, path: str, failures: list[Exception]) -> None:
        self.query = query
        self._path = path
        self._failures = failures

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended within the time; raises what ended it, if not by itself."""
        try:
            ended = self.query.awaitTermination() if seconds is None else self.query.awaitTermination(seconds)  # type: ignore[arg-type]
        except Exception as error:
            # Spark tells its own error about that of the function, without its words.
            cause = self._failures[-1] if self._failures else error
            raise explain_checkpoint_error(error, self._path) or cause from error
        return True if ended is None else bool(ended)

    def stop(self) -> None:
        """End it; a micro-batch under way is cut short, and repeated by the next start."""
        self.query.stop()


def keep_progress(
    df: DataFrame, write: Callable[[DataFrame, BatchId], None], *, checkpoint: Checkpointer
) -> CheckpointedStream:
    """Starts a stream that calls ``write`` with each micro-batch and what tells it.

    ``keep_progress(visits, lambda rows, batch: rows.write.format("delta").options(**batch.options).mode("append")``
    ``.save(path), checkpoint=Checkpointer("/lake/visits", "visits", delivery="exactly once")).wait()``
    """
    if checkpoint.asynchronous:
        raise ConfigurationError(
            f"{_NAME}: Spark keeps progress asynchronously for its own sinks only, not for a function.",
            hint="Use checkpointed(df, checkpoint) with a Kafka sink, or leave asynchronous=True out.",
        )
    if checkpoint.delivery == "exactly once" and ignores_batch(write):
        raise ConfigurationError(
            f"{_NAME}: the function that writes never looks at its second argument, which tells the micro-batch: "
            "what is repeated after a crash would be there twice, and not exactly once. Nothing was started.",
            hint='Hand it on, to Delta by .options(**batch.options); or say delivery="at least once".',
        )
    # Asked before the look at what has begun: an id that is given after it belongs to a stream that runs.
    noted = checkpoint_id(df.sparkSession, checkpoint.path)
    writer = checkpointed(df, checkpoint)
    if read_checkpoint(df.sparkSession, checkpoint.path) is None:
        _log.warning("%s begins anew: there is no progress in %s", checkpoint.name, checkpoint.path)
        forget_id(df.sparkSession, checkpoint.path, noted)
    at_most_once, stateful = checkpoint.delivery == "at most once", is_stateful(df)
    named: list[str] = []
    failures: list[Exception] = []  # over Connect the function runs elsewhere, and its error's words come back

    def batch(rows: DataFrame, number: int) -> None:
        try:
            with _taken_through_state(rows) if stateful else nullcontext():
                if not named:
                    if number == 0:  # by whom Spark lets run, so that a start that is refused gives no id
                        name_checkpoint(rows.sparkSession, checkpoint.path)
                    named.append(_named(rows.sparkSession, checkpoint))
                (app_id,) = named
                if at_most_once and not _begins(rows.sparkSession, checkpoint.path, app_id, number):
                    _log.warning("%s: micro-batch %d had begun before, and is not repeated", app_id, number)
                    return
                write(rows, BatchId(app_id, number))
        except Exception as error:
            failures.append(error)
            raise

    writer = writer.foreachBatch(batch)
    try:
        with _no_silent_stop(df):
            return CheckpointedStream(writer.start(), checkpoint.path, failures)
    except Exception as error:
        explained = explain_checkpoint_error(error, checkpoint.path)
        if explained is None:
            raise
        raise explained from error


def _named(spark: SparkSession, checkpoint: Checkpointer) -> str:
    """The name under which micro-batches are written."""
    return ":".join((checkpoint.app_id, checkpoint_id(spark, checkpoint.path))).rstrip(":")


@contextmanager
def _taken_through_state(rows: DataFrame) -> Iterator[None]:
    """Compute a micro-batch once, whatever is done with it: state is kept by the job that computes it, and where a
    target skips what it has, or nothing is written, there would be none, and the next micro-batch would fail.
    """
    rows.persist()
    try:
        rows.write.format("noop").mode("overwrite").save()
        yield
    finally:
        rows.unpersist()


@contextmanager
def _no_silent_stop(df: DataFrame) -> Iterator[None]:
    """Have Spark refuse a second stream on one checkpoint: by default it stops the first, without a word to anybody."""
    settings, name = df.sparkSession.conf, "spark.sql.streaming.stopActiveRunOnRestart"
    before = settings.get(name)
    settings.set(name, "false")
    try:
        yield
    finally:
        settings.set(name, before or "true")


def _begins(spark: SparkSession, path: str, app_id: str, number: int) -> bool:
    """Note that a micro-batch begins; False where it has begun before.

    One note for all: Spark repeats none but the last, and begins no other before that one is done.
    """
    place = f"{path}/{_NEWEST}"
    known, _, newest = read_note(spark, place).strip().rpartition(" ")
    if known == app_id and int(newest) >= number:
        return False
    write_note(spark, place, f"{app_id} {number}")
    return True
