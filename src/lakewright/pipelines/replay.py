"""Replaying dead letters: records go into the corrections of their source, and the slices they touch are made again.

Guarantee:
    A corrected record takes the place of its original before the guards, in every slice that is made from then on,
    backfills included; it is there once however often it is replayed. What the replay does about each letter is noted
    first, then the corrections are committed, then slices are made: killed in between, the letter is still open, or
    the next run finds the slices stale.
Consequences:
    - Whoever has read the slices reads them again: they are listed before anything is changed.
    - An output that depends on the order in which rows came (a topic, a table that takes arrivals in turn) refuses a
      replay unless it is asked for out of order; then later arrivals are taken again after the corrected one.
    - A stream goes on from where it is: corrections do not reach what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError
from lakewright.failpoints import failpoint
from lakewright.lake.corrections import CORRECTION_PARTITIONS, corrections_of, identity_columns, matching
from lakewright.lake.schemas import fit_to_table
from lakewright.model.columns import ARRIVAL_COLUMN, EVENT_COLUMN
from lakewright.pipelines.corrections import correction_identity, settle_corrections
from lakewright.pipelines.dead_letter_life import all_letters, note_life
from lakewright.pipelines.dead_letters import Selection, select_letters
from lakewright.pipelines.letter_policies import never_replayed, refuse_never_replayed
from lakewright.pipelines.replay_reach import Reach, follow
from lakewright.pipelines.replay_records import Edits, Records, find_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.progress import RunSummary
    from lakewright.pipelines.workshop import Workshop

__all__ = ["ReplaySummary", "count_still_open", "live_slices", "plan_replay", "write_corrections"]


@dataclass
class ReplaySummary:
    """What a replay did, or would do."""

    dataset: str
    records: int = 0
    """Letters that were chosen."""
    unusable: int = 0
    """Records among them that still cannot be read, or have no usable time."""
    unchanged: int = 0
    """Letters among them that are left as they are; ``notes`` say why."""
    touched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Input -> the event cells in which its records change."""
    slices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dataset -> its slices that are made again, those of its consumers too."""
    ordered: Mapping[str, str] = field(default_factory=dict)
    """Dataset -> why a replay would break the order of its rows."""
    notes: tuple[str, ...] = ()
    corrected: int = 0
    still_open: int = 0
    """Letters of this replay that are set aside again."""
    run: RunSummary | None = None
    reach: Reach = field(default_factory=Reach)


def plan_replay(shop: Workshop, selection: Selection, edits: Edits) -> tuple[ReplaySummary, list[Records]]:
    """Runs jobs that look which records a replay would correct and what that touches; changes nothing."""
    from pyspark.sql import functions as F

    assert selection.dataset is not None
    refuse_never_replayed(shop.graph[selection.dataset])
    _refuse_stream(shop, selection.dataset)
    summary = ReplaySummary(selection.dataset)
    letters = select_letters(shop, selection)
    if letters is None:
        return summary, []
    named = {*map(str.lower, selection.records), *(one.record for one in edits.records)}
    seen = F.collect_set(F.when(F.col("id").isin(sorted(named)), F.col("id"))).alias("named")
    parts = letters.groupBy("input", "slice").agg(F.count("*").alias("count"), seen).collect()
    summary.records = sum(row["count"] for row in parts)
    _refuse_borrowed(shop, selection.dataset, {row["input"] for row in parts})
    found: list[Records] = []
    reach = Reach()
    if unknown := sorted(named.difference(*(row["named"] for row in parts))):
        reach.notes.append(f"No letter that is meant is called {', '.join(unknown)}: what is given for it is left out.")
    for name in sorted({row["input"] for row in parts}):
        slices = sorted(row["slice"] for row in parts if row["input"] == name)
        source = shop.graph.datasets.get(name)
        if source is None or not source.is_source:
            _refuse_edits(selection.dataset, name, edits)
            reach.slices.setdefault(selection.dataset, set()).update(slices)
            continue
        theirs = letters.where(f"input = '{name}'")
        records = find_records(shop, source, theirs, slices, edits, job=selection.dataset)
        found.append(records)
        _count_failed(summary, reach, records)
        _reach_of(reach, records)
    follow(shop, reach)
    _refuse_reached(shop, selection.dataset, reach)
    summary.reach = reach
    summary.touched = {name: tuple(sorted(cells)) for name, cells in reach.cells.items()}
    summary.slices = {name: tuple(sorted(slices)) for name, slices in reach.slices.items() if slices}
    summary.ordered, summary.notes = dict(reach.ordered), tuple(reach.notes)
    return summary, found


def _refuse_stream(shop: Workshop, name: str) -> None:
    dataset = shop.graph[name]
    if dataset.is_stream and not dataset.is_source:
        raise ConfigurationError(
            f"{name} is a stream that follows another dataset: it goes on from where it is, and a record that it set "
            "aside cannot be put back among those that it has read. Nothing was changed.",
            hint=f"Correct the step, and let it read again: `lakewright stream rewind {name} --all`; or give the "
            "records up: `lakewright dead-letters retire`.",
        )


def _refuse_reached(shop: Workshop, dataset: str, reach: Reach) -> None:
    """Refuse a replay that would make slices again of a dataset that says ``replay="never"``."""
    for name, slices in live_slices(shop, reach).items():
        if slices and never_replayed(shop.graph[name]):
            raise ConfigurationError(
                f"A replay of {dataset} would make slices of {name} again ({', '.join(sorted(slices)[:3])}"
                f'{", ..." if len(slices) > 3 else ""}), and {name} says replay="never". Nothing was changed.',
                hint=f"Give these letters up: `lakewright dead-letters retire {dataset}`; or leave replay out of "
                f"{name}, if its consumers can take corrected slices.",
            )


def _refuse_edits(dataset: str, name: str, edits: Edits) -> None:
    if edits:
        raise ConfigurationError(
            f"{dataset} had set aside rows of {name}, which is made by a step: nothing tells one of its rows for good, "
            "so it cannot be corrected there. Nothing was changed.",
            hint=f"Correct the records of its source; or correct the step, and replay {dataset} without --set and "
            "--edit.",
        )


def _refuse_borrowed(shop: Workshop, dataset: str, inputs: Set[str]) -> None:
    """Refuse to correct what another target takes: its lake is never written, and here corrections would not count."""
    if borrowed := sorted(inputs & shop.lake.borrowed):
        name = borrowed[0]
        raise ConfigurationError(
            f"{dataset} had set aside rows of {name}, which is read from {shop.lake.resolve(name)}: it belongs to "
            "another target. Nothing was changed.",
            hint="Correct the records there. After a fix of the code "
            f"`lakewright backfill --select {dataset} --from ...` judges them again here.",
        )


def _count_failed(summary: ReplaySummary, reach: Reach, records: Records) -> None:
    told = records.failed.selectExpr("'failed' AS what").union(
        records.unchanged.selectExpr("CASE WHEN usable IS NULL THEN 'lost' ELSE 'stays' END AS what")
    )
    counts = {row["what"]: row["count"] for row in told.groupBy("what").count().collect()}
    summary.unusable += counts.get("failed", 0)
    summary.unchanged += counts.get("lost", 0) + counts.get("stays", 0)
    if lost := counts.get("lost"):
        reach.notes.append(
            f"{lost:,} of the letters are of records that are no longer in {records.source}: they are left as they are."
        )
    if stays := counts.get("stays"):
        reach.notes.append(
            f"{stays:,} records of {records.source} were corrected before, and what is given now cannot be used: they "
            "stay as they were corrected."
        )


def _reach_of(reach: Reach, records: Records) -> None:
    cells = records.corrected.select(EVENT_COLUMN, ARRIVAL_COLUMN)
    if records.earlier is not None:
        cells = cells.union(records.earlier.select(EVENT_COLUMN, ARRIVAL_COLUMN))
    rows = cells.distinct().collect()
    reach.cells[records.source] = {row[EVENT_COLUMN] for row in rows}
    reach.arrivals[records.source] = {row[ARRIVAL_COLUMN] for row in rows}


def write_corrections(
    shop: Workshop, selection: Selection, summary: ReplaySummary, found: Sequence[Records], *, out_of_order: bool
) -> None:
    """Runs the jobs that note the replay and commit the corrections; refused where an order would be broken."""
    assert selection.dataset is not None
    if summary.ordered and not out_of_order:
        told = "; ".join(f"{name} {why}" for name, why in summary.ordered.items())
        raise InputError(
            f"A replay of {selection.dataset} would break an order: {told}. Nothing was changed.",
            hint="--out-of-order does it all the same: later arrivals are taken again after the corrected one, and a "
            "topic gets the slice again, behind what was sent since.",
        )
    letters = select_letters(shop, selection)
    assert letters is not None
    for records in found if summary.unchanged else ():
        letters = letters.join(records.unchanged.select("id").distinct(), "id", "left_anti")
    note_life(shop, _same_records(shop, letters), "replayed", note=None, of=selection.dataset)
    failpoint("replay_noted")
    for records in found:
        with _alone(shop, records.source):
            _commit(shop, records)
            failpoint("corrected")
            settle_corrections(shop, records.source)
    failpoint("corrections_settled")


def _same_records(shop: Workshop, letters: DataFrame) -> DataFrame:
    """The letters, and those of other datasets about the same records: a correction counts for all of them."""
    every = all_letters(shop)
    assert every is not None
    chosen = letters.select("id").distinct()
    others = every.where("state NOT IN ('retired', 'evidence')").join(chosen, "id", "left_semi")
    return others.select(*letters.columns).unionByName(letters)


def _commit(shop: Workshop, records: Records) -> None:
    name = corrections_of(records.source)
    table = shop.lake.open(name, correction_identity(shop, records.source))
    # What an earlier release, or another schema, left out of the rows is kept there as NULL.
    rows = records.corrected
    if table.exists():
        rows = table.read().where("false").unionByName(rows, allowMissingColumns=True)
        rows = fit_to_table(rows, table, dataset=name)
    keys = identity_columns(rows.columns)
    clauses = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    table.merge(rows, on=matching(keys), clauses=clauses, partition_by=CORRECTION_PARTITIONS)


@contextmanager
def _alone(shop: Workshop, source: str) -> Iterator[None]:
    grant = shop.store.leases.acquire(
        f"corrections:{source}", "*", owner_id=shop.owner_id, run_id=shop.run.run_id, now=shop.now()
    )
    try:
        yield
    finally:
        shop.store.leases.release(grant.dataset, grant.slice_id, grant.number)


def count_still_open(shop: Workshop, dataset: str, run_id: str) -> int:
    """Runs a job that counts the letters of a replay that are set aside again."""
    letters = all_letters(shop)
    if letters is None:
        return 0
    replayed = f"exists(history, one -> one.by_run = '{run_id}')"
    return letters.where(f"dataset = '{dataset}' AND state = 'open' AND {replayed}").count()


def live_slices(shop: Workshop, reach: Reach) -> dict[str, frozenset[str]]:
    """Dataset -> the slices that are there and have to be made again; what is missing is found by the run itself."""
    live = {name: shop.store.receipts.live_slices(name).keys() for name in reach.slices}
    return {name: frozenset(slices & live[name]) for name, slices in reach.slices.items()}
