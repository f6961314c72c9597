"""What one micro-batch does: the same judging, step and commit as a slice, once, however often it is repeated.

Guarantee:
    A micro-batch is one commit, named by the generation of the checkpoint and the number of the batch. Spark repeats
    the last batch after a crash with the same records; Delta then skips the commit. Rows that guards set aside are
    committed before it, by each attempt anew until it is published; so is the surplus of partitions above their quota
    (``skew``), once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.failpoints import failpoint
from lakewright.lake.schemas import fit_to_table
from lakewright.model.columns import DAY_COLUMN
from lakewright.model.identity import Identity
from lakewright.model.references import SameSlice
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, arrival_slice
from lakewright.model.streams import batch_number
from lakewright.pipelines.events import with_event_cell
from lakewright.pipelines.filtering import count_filters
from lakewright.pipelines.inputs import InputFrame, judged_input, open_input, rows_for_limits
from lakewright.pipelines.make import call_step, check_result, publish_once, set_aside
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.streams.changes import apply_to_images, new_images
from lakewright.pipelines.streams.joins import count_pairs
from lakewright.pipelines.streams.letters import withdraw_letters
from lakewright.pipelines.streams.sessions import deliver_sessions
from lakewright.pipelines.streams.skew import Standing, last_delivered, newer_at_work, refuse_skipped, within_quota
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BatchAttempt", "deliver", "do_batch"]

_NO_BUFFER = Standing()


@dataclass
class BatchAttempt(Attempt):
    """One micro-batch of a stream that holds its dataset's lease."""

    generation: int = 0
    batch: int = 0
    """Its place in the generation: Spark's number, unless batches of a skew buffer alone came before it."""
    drains: int = 0
    """How many of those there were, itself included."""
    drain: bool = False
    """Whether it is one of them."""

    def identity(self, **details: object) -> Identity:
        if self.drain:
            details["drain"] = True
        if self.origin is not None:
            details["origin"] = dict(self.origin)
        return super().identity(generation=self.generation, batch=self.batch, **details)

    @classmethod
    def of(cls, current: Attempt, generation: int, batch: int, *, drains: int = 0, drain: bool = False) -> BatchAttempt:
        return cls(
            shop=current.shop,
            dataset=current.dataset,
            slice=arrival_slice(batch_number(generation, batch)),
            lease=current.lease,
            grant=current.grant,
            step_id=current.step_id,
            number_of_attempt=current.number_of_attempt,
            origin=current.origin,
            generation=generation,
            batch=batch,
            drains=drains,
            drain=drain,
        )


def do_batch(current: Attempt, generation: int, rows: DataFrame, batch: int, standing: Standing = _NO_BUFFER) -> None:
    """Runs the jobs of one micro-batch, in its own session; ``batch`` is Spark's number."""
    attempt = BatchAttempt.of(current, generation, batch + standing.drains, drains=standing.drains)
    lake = attempt.shop.lake
    with lake.lend(rows.sparkSession), _consumed(attempt, rows):
        reached = last_delivered(lake, attempt.dataset.name, generation)
        if reached is not None and reached > attempt.batch:
            raise newer_at_work(attempt)  # only the last one is ever repeated: these records are others
        if reached == attempt.batch:
            pass  # what was set aside of it stays as it was judged then, whatever the rules say now
        elif not standing.in_use:
            deliver(attempt, rows)
        else:
            with within_quota(attempt, rows) as within:
                deliver(attempt, within)
    failpoint("batch_done")


@contextmanager
def _consumed(attempt: BatchAttempt, rows: DataFrame) -> Iterator[None]:
    """Runs the job that takes a micro-batch through the state of its guards: once, and also where all is skipped.

    The state of a micro-batch is that of the last one and its rows; without it the next one could not begin.
    """
    if not attempt.dataset.remembers:
        yield
        return
    rows.persist()
    try:
        if not count_pairs(attempt, rows):
            rows.write.format("noop").mode("overwrite").save()
        yield
    finally:
        rows.unpersist()


def deliver(attempt: BatchAttempt, rows: DataFrame) -> None:
    """Runs the jobs that bring rows into the dataset, in one commit."""
    if attempt.dataset.is_source:
        _append(attempt, _marked(attempt, rows), partition_by=(DAY_COLUMN, EVENT_COLUMN))
    elif attempt.dataset.sessions is not None:
        deliver_sessions(attempt, rows)
    else:
        _make(attempt, rows)


def _make(attempt: BatchAttempt, rows: DataFrame) -> None:
    dataset, graph = attempt.dataset, attempt.shop.graph
    streamed = graph.streamed_input(dataset)
    assert streamed is not None
    if graph.follows_images(dataset):
        apply_to_images(attempt, streamed, rows)
        return
    if graph.reads_changes(dataset):
        rows = new_images(rows)
    inputs = [_streamed(attempt, rows) if one is streamed else open_input(attempt, one) for one in dataset.inputs]
    if graph.reads_changes(dataset):  # a change that is read again is told once
        withdraw_letters(attempt, next(one for one in inputs if one.given is streamed))
    set_aside(attempt, inputs)
    failpoint("set_aside")
    count_filters(attempt, inputs)
    frame = check_result(attempt, call_step(attempt, inputs)[dataset.name])
    if dataset.writer is not None:
        table = attempt.shop.lake.open(
            dataset.name,
            attempt.identity(),
            properties=properties_of(attempt.shop.graph, dataset),
            still_mine=attempt.still_mine,
        )
        refuse_skipped(attempt, publish_once(attempt, table, frame, dataset.writer, dataset.layout, dataset.name))
        return
    marked = with_event_cell(frame, dataset, graph.cell_grid(dataset.name), end=None)
    _append(attempt, marked, partition_by=(EVENT_COLUMN,))


def _streamed(attempt: BatchAttempt, rows: DataFrame) -> InputFrame:
    given = attempt.shop.graph.streamed_input(attempt.dataset)
    assert given is not None
    number = rows_for_limits(given, rows)
    return judged_input(attempt, given, SameSlice(), rows, rows.columns, number, None, streamed=True)


def _marked(attempt: BatchAttempt, records: DataFrame) -> DataFrame:
    """The records of a source with their event cell, and the day on which they came.

    By this clock, also when the micro-batch is repeated: then either nothing of it is there, or it is skipped. Times up
    to a day ahead can be used, and up to the full hour after: within an hour Spark compiles the same code once.
    """
    from pyspark.sql import functions as F

    dataset, now = attempt.dataset, attempt.shop.now()
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=25)
    cells = with_event_cell(records, dataset, attempt.shop.graph.cell_grid(dataset.name), end=end)
    return cells.withColumn(DAY_COLUMN, F.lit(now.date()))


def _append(attempt: BatchAttempt, rows: DataFrame, *, partition_by: tuple[str, ...]) -> None:
    dataset, shop = attempt.dataset, attempt.shop
    table = shop.lake.open(
        dataset.name,
        attempt.identity(),
        properties=properties_of(shop.graph, dataset),
        still_mine=attempt.still_mine,
    )
    marked = rows.withColumn(ARRIVAL_COLUMN, _same_for_all(attempt.slice.number))
    fitted = fit_to_table(marked, table, dataset=dataset.name)
    refuse_skipped(attempt, table.append(fitted, partition_by=partition_by))


def _same_for_all(number: int) -> Column:
    """A number on every row that is no part of the code that Spark compiles.

    Spark writes a number into its generated code: one that changes with every micro-batch has it compiled anew each
    time, for 60 ms. An array is handed over as a value; the place in it is unknown to the optimizer, and always 0.
    """
    from pyspark.sql import functions as F

    return F.expr(f"array(CAST({number} AS BIGINT))[pmod(spark_partition_id(), 1)]")
