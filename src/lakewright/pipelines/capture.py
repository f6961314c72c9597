"""Capturing late rows that policy leaves out of a finished slice: kept, shown, and taken in by a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from lakewright.errors import TargetError
from lakewright.lake.corrections import identity_columns, of_records
from lakewright.lake.lake import Lake
from lakewright.lake.side_tables import LATE_ROWS, late_rows, write_side_rows
from lakewright.model.cell_spans import CellSpan
from lakewright.model.columns import ARRIVAL_COLUMN
from lakewright.model.references import AsOf, Lookback, SameSlice
from lakewright.model.sql import quoted
from lakewright.pipelines.decide import SliceState
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.inputs import event_time_of, open_input
from lakewright.pipelines.workshop import Attempt, Made, Workshop
from lakewright.store import HeldSlice, Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["capture_late_rows", "still_late"]

_MADE = "of string, cell string, made bigint, captures boolean"


def capture_late_rows(shop: Workshop, dataset: Dataset, state: SliceState) -> Made:
    """Runs a job that copies the rows which came after the slice was made to the late table; the slice is held."""
    with shop.attempt(dataset, state.slice, attempt=1, reason=f"held: {state.reason}", rewrites=False) as current:
        made = shop.store.receipts.live_slices(dataset.name)[state.slice.id]
        held = []
        found: list[DataFrame] = []
        for given in dataset.inputs:
            if not isinstance(shop.graph.reference(dataset, given), SameSlice | Lookback):
                continue
            # Of a look-back only what lies in the slice itself: what came before it is late for an earlier slice.
            opened = open_input(current, replace(given, reference=SameSlice()))
            since = made.inputs.get(given.dataset, -1)
            if ARRIVAL_COLUMN in opened.judged.columns:
                newer = [
                    slice_id.removeprefix("arrival-")
                    for slice_id, receipt in shop.store.receipts.live_slices(given.dataset).items()
                    if receipt.version > since
                ]
                rows = opened.judged.where(f"{ARRIVAL_COLUMN} IN ({', '.join(newer) or 'NULL'})")
                rows = _without_known(current, given, rows, since=since)
                identity = current.identity().as_part("late_rows")
                told = _told(shop, given)
                found.append(late_rows(rows, identity=identity, input_name=given.dataset, told=told))
            held.append(_held(current, given, opened.late))
        held += _held_references(current)
        if found:  # of all inputs in one commit: Delta would skip a second one of the same attempt
            rows = reduce(lambda one, other: one.unionByName(other), found)
            if write_side_rows(shop.lake, LATE_ROWS, rows, current.identity().as_part("late_rows")) is None:
                raise TargetError(
                    f"{dataset.name}, slice {state.slice.id}: a newer attempt is at work. No late rows were captured."
                )
        shop.store.finish_step(
            current.step_id, "ok", grant=current.grant, receipts=(), now=shop.now(), held=tuple(held)
        )
        return Made(())


def still_late(lake: Lake, store: Store, graph: Graph) -> DataFrame:
    """The late rows that nobody has taken in: those of a slice that was made again since are in it, or set aside anew.

    Where slices are those of event time they were captured after the slice was made. Elsewhere a guard set them aside
    while it was made: those of an attempt count that is published, and of a slice that never was those of the newest.
    Not of streams, whose micro-batches are not made again. The receipts tell it, by the numbers of the attempts, so
    that they come back where the slice is rolled back.
    """
    from pyspark.sql import functions as F

    made = [
        (name, slice_id, number, slicing.kind == "event")
        for name, slicing in graph.slicing.items()
        if slicing.kind == "event" or not (graph[name].is_stream or graph[name].is_source)
        for slice_id, number in store.receipts.live_numbers(name).items()
    ]
    rows = lake.read(LATE_ROWS, system_columns=True)
    since = F.broadcast(lake.session().createDataFrame(made, _MADE))
    same = (rows["dataset"] == since["of"]) & (rows["slice"] == since["cell"])
    unpublished = ~since["captures"] & (rows["number"] > since["made"])
    return rows.join(since, same & ((rows["number"] < since["made"]) | unpublished), "left_anti")


def _without_known(current: Attempt, given: Input, rows: DataFrame, *, since: int) -> DataFrame:
    """What was not there yet when the slice was made: a rewind brings the same records once more, as new arrivals."""
    shop, name = current.shop, given.dataset
    again = shop.store.receipts.since(name, since, current.inputs[name], kinds=("rewind", "restore"))
    if not again or since < 0 or not identity_columns(rows.columns):
        return rows
    # Where the files of then are gone, or its version, nobody can tell: kept twice is better than lost.
    try:
        if shop.lake.lost_files(name, since):
            return rows
        there = shop.lake.read(name, version=since, system_columns=True)
    except TargetError:
        return rows
    if grids := shop.graph.cell_grids(name):
        there = there.where(CellSpan.of(current.slice.interval, grids).overlapping())
    return of_records(rows, there, how="left_anti")


def _held_references(current: Attempt) -> Iterator[HeldSlice]:
    """Versions of a reference have no slice that they were late for; that they changed is noted all the same, or it
    would be captured anew by every run.
    """
    shop = current.shop
    for given in current.dataset.inputs:
        if given.dataset in current.inputs or not isinstance(shop.graph.reference(current.dataset, given), AsOf):
            continue
        if (version := pin(shop.lake, shop.store, given.dataset)) is not None:
            current.inputs[given.dataset] = version
            yield _held(current, given, None)


def _held(current: Attempt, given: Input, rows: int | None) -> HeldSlice:
    version, run_id = current.inputs[given.dataset], current.shop.run.run_id
    return HeldSlice(current.dataset.name, current.slice.id, given.dataset, version, rows, run_id)


def _told(shop: Workshop, given: Input) -> dict[str, Column]:
    """When a row happened; there is no watermark here, its slice was made before it came."""
    from pyspark.sql import functions as F

    column = event_time_of(shop.graph, given)
    return {} if column is None else {"event_time": F.expr(f"try_cast({quoted(column)} AS TIMESTAMP)")}
