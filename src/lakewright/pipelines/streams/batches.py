"""What one micro-batch does: the same judging, step and commit as a slice, once, however often it is repeated.

Guarantee:
    A micro-batch is one commit, named by the generation of the checkpoint and the number of the batch. Spark repeats
    the last batch after a crash with the same records; Delta then skips the commit. Rows that guards set aside are
    committed before it, under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import TargetError
from lakewright.failpoints import failpoint
from lakewright.lake.schemas import fit_to_table
from lakewright.model.columns import DAY_COLUMN
from lakewright.model.identity import Identity
from lakewright.model.references import SameSlice
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, arrival_slice
from lakewright.model.streams import batch_number
from lakewright.pipelines.events import with_event_cell
from lakewright.pipelines.inputs import InputFrame, judged_input, open_input
from lakewright.pipelines.make import call_step, check_result, publish, set_aside
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.streams.changes import apply_to_images
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchAttempt", "do_batch"]


@dataclass
class BatchAttempt(Attempt):
    """One micro-batch of a stream that holds its dataset's lease."""

    generation: int = 0
    batch: int = 0

    def identity(self, **details: object) -> Identity:
        return super().identity(generation=self.generation, batch=self.batch, **details)

    @classmethod
    def of(cls, current: Attempt, generation: int, batch: int) -> BatchAttempt:
        return cls(
            shop=current.shop,
            dataset=current.dataset,
            slice=arrival_slice(batch_number(generation, batch)),
            lease=current.lease,
            grant=current.grant,
            step_id=current.step_id,
            number_of_attempt=current.number_of_attempt,
            generation=generation,
            batch=batch,
        )


def do_batch(current: Attempt, generation: int, rows: DataFrame, batch: int) -> None:
    """Runs the jobs of one micro-batch, in its own session."""
    attempt = BatchAttempt.of(current, generation, batch)
    with attempt.shop.lake.lend(rows.sparkSession):
        if attempt.dataset.is_source:
            _append(attempt, rows, partition_by=(DAY_COLUMN, EVENT_COLUMN))
        else:
            _make(attempt, rows)
    failpoint("batch_done")


def _make(attempt: BatchAttempt, rows: DataFrame) -> None:
    dataset, graph = attempt.dataset, attempt.shop.graph
    streamed = graph.streamed_input(dataset)
    assert streamed is not None
    if graph.reads_changes(dataset):
        apply_to_images(attempt, streamed, rows)
        return
    inputs = [_streamed(attempt, rows) if one is streamed else open_input(attempt, one) for one in dataset.inputs]
    set_aside(attempt, inputs)
    failpoint("set_aside")
    frame = check_result(attempt, call_step(attempt, inputs)[dataset.name])
    if dataset.writer is not None:
        table = attempt.shop.lake.open(
            dataset.name,
            attempt.identity(),
            properties=properties_of(attempt.shop.graph, dataset),
            still_mine=attempt.still_mine,
        )
        publish(attempt, table, frame, dataset.writer, dataset.layout, dataset.name)
        return
    marked = with_event_cell(frame, dataset, graph.cell_grid(dataset.name), end=None)
    _append(attempt, marked, partition_by=(EVENT_COLUMN,))


def _streamed(attempt: BatchAttempt, rows: DataFrame) -> InputFrame:
    given = attempt.shop.graph.streamed_input(attempt.dataset)
    assert given is not None
    # A share needs to know of how many: the micro-batch is counted, and only where a limit asks for it.
    counts = any(getattr(guard, "stop_above", None) is not None for guard in given.guards)
    return judged_input(attempt, given, SameSlice(), rows, rows.columns, rows.count() if counts else None, None)


def _append(attempt: BatchAttempt, rows: DataFrame, *, partition_by: tuple[str, ...]) -> None:
    from pyspark.sql import functions as F

    dataset, shop = attempt.dataset, attempt.shop
    table = shop.lake.open(
        dataset.name,
        attempt.identity(),
        properties=properties_of(shop.graph, dataset),
        still_mine=attempt.still_mine,
    )
    marked = rows.withColumn(ARRIVAL_COLUMN, F.expr(f"{attempt.slice.number}L"))
    if table.append(fit_to_table(marked, table, dataset=dataset.name), partition_by=partition_by) is not None:
        return
    if not table.exists():
        raise TargetError(f"{dataset.name}: the micro-batch {attempt.batch} left no commit.")
