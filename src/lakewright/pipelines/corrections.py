"""Corrections in a run: the input of a step with them, and what keeps them in step with their source.

Guarantee:
    A step reads each record of a source once: corrected where somebody corrected it, else as it arrived. The receipt
    of a commit of corrections means that the dead letters of those records are gone as well; until then the next run
    settles it. A file that is replaced takes the dead letters and corrections of its old version with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.failpoints import failpoint
from lakewright.lake.corrections import (
    CORRECTION_PARTITIONS,
    OCCURRENCE_COLUMN,
    PART_COLUMN,
    apply_corrections,
    arrival_key,
    as_arrived,
    corrections_of,
    identity_columns,
    in_key,
    of_records,
    read_corrections,
    told_changes,
)
from lakewright.lake.lake import Lake
from lakewright.lake.letter_places import RECORD_ID, letter_columns, place_columns
from lakewright.lake.schemas import fit_to_table
from lakewright.lake.side_tables import DEAD_LETTERS
from lakewright.model.arrivals import Arrival
from lakewright.model.cell_spans import CellSpan
from lakewright.model.columns import (
    HASH_COLUMN,
    OFFSET_COLUMN,
)
from lakewright.model.findings import Finding
from lakewright.model.identity import Identity
from lakewright.model.references import Pinned, Reference
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, WHOLE, Slice
from lakewright.model.sql import text_literal
from lakewright.pipelines.dead_letter_life import all_letters, note_life, retire_replaced
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.harvest import receipt_of, unaccounted
from lakewright.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.pipelines.workshop import Attempt, Workshop

__all__ = [
    "as_out_rows",
    "corrected_input",
    "correction_identity",
    "correction_rows",
    "follow_arrival",
    "pinned_corrections",
    "settle_corrections",
    "withdrawn_arrivals",
]


def corrected_input(attempt: Attempt, given: Input, reference: Reference, frame: DataFrame) -> DataFrame:
    """An input with the corrections of its records in their place. Lazy; pins their version beside the input's."""
    shop, name = attempt.shop, corrections_of(given.dataset)
    source = shop.graph.datasets.get(given.dataset)
    if source is None or not source.is_source or given.dataset in shop.lake.borrowed:
        return frame
    version = pinned_corrections(shop.lake, shop.store, given.dataset)
    if version is not None and isinstance(reference, Pinned):
        first = shop.store.receipts.first(attempt.dataset.name, attempt.slice.id)
        version = version if first is None else first.inputs.get(name)
    corrections = None if version is None else read_corrections(shop.lake, given.dataset, version)
    if version is None or corrections is None:
        return frame
    attempt.inputs[name] = version
    if withdrawn := _withdrawn(shop.store, source, attempt.slice):
        there = f"{ARRIVAL_COLUMN} NOT IN ({', '.join(map(str, withdrawn))})"
        corrections = as_arrived(corrections, frame) if source.is_stream else corrections.where(there)
    return apply_corrections(frame, corrections)


def _withdrawn(store: Store, source: Dataset, slice_: Slice) -> list[int]:
    """The arrivals of a source that were taken back, of which corrections are still there: they do not count.

    A stream reads the same records again, under other numbers: that matters only to who reads by these.
    """
    return [] if source.is_stream and slice_.kind != "arrival" else withdrawn_arrivals(store, source.name)


def withdrawn_arrivals(store: Store, source: str) -> list[int]:
    """The arrivals of a source that do not count any longer, and of which there are corrections."""
    live = store.receipts.live_slices(source)
    keys = store.receipts.cells(corrections_of(source))
    numbers = [int(key[1:]) for key in keys if key is not None and key[0] == "@"]
    return sorted(number for number in numbers if f"arrival-{number}" not in live)


def pinned_corrections(lake: Lake, store: Store, source: str) -> int | None:
    """The newest version of a source's corrections up to which every commit is settled; None where there is none."""
    name = corrections_of(source)
    earliest, latest = lake.log(name).bounds()
    if earliest is None or latest is None:
        return None
    unknown = store.receipts.gaps(name, earliest, latest)
    if not unknown:
        return latest
    return unknown[0] - 1 if unknown[0] > earliest else None


def correction_rows(
    store: Store, source: Dataset, slice_: Slice, within: CellSpan | None, version: int | None
) -> tuple[int, int] | None:
    """By how many rows corrections change what a slice reads of a source, and how many of its rows are corrected.

    Those of its cells count, if it has any. None where that is unknown.
    """
    if version is None:
        return 0, 0
    if _withdrawn(store, source, slice_):
        return None
    found = store.receipts.cells(corrections_of(source.name), version)
    heads = {key: head.rows or 0 for key, head in found.items() if key}
    if slice_.kind == "arrival":
        key = arrival_key(slice_.number)
        return heads.get(key, 0), heads.get(in_key(key), 0)
    if within is None:
        cells = [key for key in heads if key[0] not in "+@"]
    elif any(heads.get(key) for cell in within.across for key in (cell, in_key(cell))):
        return None
    else:
        cells = [key for key in heads if within.within(key)]
    return sum(heads[cell] for cell in cells), sum(heads.get(in_key(cell), 0) for cell in cells)


def settle_corrections(shop: Workshop, source: str) -> None:
    """Runs a job where corrections were committed and have no receipt yet: tell them in the dead letters, then index.

    Of a record that did not parse, or had no usable time, the letter is the source's own: it goes here. One that a
    guard rejected goes with its slice when that is made again.
    """
    name = corrections_of(source)
    versions = unaccounted(shop.lake, shop.store, name)
    if not versions:
        return
    log = shop.lake.delta_log(name)
    receipts, arrivals = [], set[int]()
    for version in versions:
        commit = log.commit(version)
        changes = told_changes(log, version) if commit.data_change else {}
        arrivals |= {int(key[1:]) for key in changes if key is not None and key.startswith("@")}
        receipts.append(replace(receipt_of(name, commit), touched=changes))
    if arrivals and shop.lake.log(DEAD_LETTERS).exists():
        _withdraw_letters(shop, source)
        failpoint("letters_withdrawn")
        _recount(shop, source, sorted(arrivals))
    shop.store.receipts.add(receipts)


def _withdraw_letters(shop: Workshop, source: str) -> None:
    corrections = read_corrections(shop.lake, source)
    assert corrections is not None
    keys = identity_columns(corrections.columns)
    told = letter_columns(keys)
    records = corrections.where(f"{PART_COLUMN} = 'in'").selectExpr(*[f"{key} AS `{told[key]}`" for key in keys])
    same = " AND ".join(f"t.`{column}` <=> s.`{column}`" for column in told.values())
    of_source = f"t.dataset = {text_literal(source)} AND t.input = {text_literal(source)}"
    table = shop.lake.open(DEAD_LETTERS, correction_identity(shop, source, part="corrected"))
    table.merge(records.distinct(), on=f"{of_source} AND {same}", clauses="WHEN MATCHED THEN DELETE")


def _recount(shop: Workshop, source: str, arrivals: Sequence[int]) -> None:
    """Let the accounts of these arrivals tell how many of their records are still set aside."""
    slices = [f"arrival-{number}" for number in arrivals]
    listed = ", ".join(map(text_literal, slices))
    letters = shop.lake.read(DEAD_LETTERS, system_columns=True)
    mine = letters.where(f"dataset = {text_literal(source)} AND input = dataset AND slice IN ({listed})")
    left: dict[str, dict[str, int]] = {slice_id: {} for slice_id in slices}
    for row in mine.groupBy("slice", "rule").count().collect():
        left[row["slice"]][row["rule"]] = row["count"]
    for slice_id, rejected in left.items():
        receipt = shop.store.receipts.live(source, slice_id)
        if receipt is None or receipt.counters.read is None:  # the log alone does not tell what it had counted
            continue
        counters = receipt.counters
        corrected = counters.rejected_rows + (counters.corrected or 0) - sum(rejected.values())
        if corrected != (counters.corrected or 0):
            counters = replace(counters, rejected=rejected, corrected=corrected)
            shop.store.receipts.recount(source, receipt.version, counters)


def follow_arrival(shop: Workshop, dataset: Dataset, identity: Identity, version: int, arrival: Arrival | None) -> None:
    """Runs jobs after a commit of a source's arrival, where it replaced files or was repeated.

    Of a replaced file version the dead letters and corrections are retired. Of a repeated arrival the originals that
    corrections replace are looked up anew: its records may have other times now, or be readable.
    """
    slice_ = Slice.parse(identity.slice_id)
    corrected = shop.lake.log(corrections_of(dataset.name)).exists()
    files = [] if arrival is None else [(file.path, file.version) for _, file in arrival.supersedes]
    if files:
        which = " OR ".join(
            f"(file = {text_literal(path)} AND file_version = {text_literal(version)})" for path, version in files
        )
        retire_replaced(shop, dataset.name, which, note=f"its file was replaced by {slice_.id}")
        if corrected:
            _delete_corrections(shop, dataset.name, files)
    elif dataset.is_replaced:
        which = f"dataset = input AND slice <> {text_literal(slice_.id)}"
        retire_replaced(shop, dataset.name, which, note=f"everything was replaced by {slice_.id}")
        if corrected:
            table = shop.lake.open(corrections_of(dataset.name), correction_identity(shop, dataset.name))
            table.delete(f"NOT ({slice_.predicate()})")
    if corrected and shop.store.receipts.live(dataset.name, slice_.id) is not None:
        _look_up_originals(shop, dataset.name, slice_, version)
    settle_corrections(shop, dataset.name)


def _delete_corrections(shop: Workshop, source: str, files: Sequence[tuple[str, str]]) -> None:
    replaced = " OR ".join(
        f"(_lw_file = {text_literal(path)} AND _lw_file_version = {text_literal(version)})" for path, version in files
    )
    shop.lake.open(corrections_of(source), correction_identity(shop, source)).delete(replaced)


def _look_up_originals(shop: Workshop, source: str, slice_: Slice, version: int) -> None:
    corrections = read_corrections(shop.lake, source)
    assert corrections is not None
    bronze = shop.lake.read(source, version=version, system_columns=True)
    arrived = bronze.where(slice_.predicate())
    counting = corrections.where(f"{PART_COLUMN} = 'in'")
    _give_up(shop, source, slice_, of_records(counting.where(slice_.predicate()), arrived, how="left_anti"))
    originals = of_records(arrived.where(f"{EVENT_COLUMN} IS NOT NULL"), counting, how="left_semi")
    rows = corrections.where("false").unionByName(as_out_rows(originals), allowMissingColumns=True)
    table = shop.lake.open(corrections_of(source), correction_identity(shop, source))
    where = f"{PART_COLUMN} = 'out' AND {slice_.predicate()}"
    fitted = fit_to_table(rows, table, dataset=corrections_of(source))
    table.replace(fitted, where=where, partition_by=CORRECTION_PARTITIONS, within=True)


def _give_up(shop: Workshop, source: str, slice_: Slice, orphans: DataFrame) -> None:
    """Runs a job that counts corrections whose records are read otherwise now, and others that withdraw them.

    Where columns tell a record (CSV, Parquet, Delta, a database) another schema gives it another hash. Its correction
    would count beside it: better it is set aside once more, and somebody is told. A topic that is compacted no longer
    holds the record at all.
    """
    from pyspark.sql import functions as F

    lost = orphans.count()
    if not lost:
        return
    keys = identity_columns(orphans.columns)
    gone = OFFSET_COLUMN in keys
    # Told first: after a kill it is told twice, but what was withdrawn is not found again.
    shop.store.findings.add([_given_up(source, slice_, lost, gone=gone)], run_id=shop.run.run_id, now=shop.now())
    content = "CAST(NULL AS BIGINT)" if gone else HASH_COLUMN
    told = [f"{text_literal(source)} AS input", *place_columns(keys), f"{content} AS record_hash"]
    ids = orphans.selectExpr(*told).select(F.expr(RECORD_ID).alias("id")).distinct()
    if (letters := all_letters(shop)) is not None:
        closed = letters.where(f"input = {text_literal(source)} AND state <> 'retired'").join(ids, "id", "left_semi")
        note = "was read again, and the topic no longer holds it" if gone else "was read by another schema"
        note_life(shop, closed, "retired", note=f"{slice_.id} {note}", of=source)
    table = shop.lake.open(corrections_of(source), correction_identity(shop, source))
    same = " AND ".join(f"t.{key} <=> s.{key}" for key in keys)
    table.merge(orphans.select(*keys).distinct(), on=same, clauses="WHEN MATCHED THEN DELETE")


def _given_up(source: str, slice_: Slice, lost: int, *, gone: bool) -> Finding:
    why = (
        f"{slice_.id} was read again, and the topic no longer holds their records. Nothing of them counts."
        if gone
        else f"{slice_.id} was read again by another schema, and their records are no longer told by the same columns. "
        "They count as they arrived."
    )
    return Finding(
        dataset=source,
        subject="corrections",
        message=f"{lost:,} corrections of {source} were given up: {why}",
        slice_id=slice_.id,
        cure="Without --sources a backfill begins at what was taken, and keeps corrections."
        if gone
        else "`lakewright dead-letters list` shows what is set aside of them: correct it once more.",
    )


def as_out_rows(originals: DataFrame) -> DataFrame:
    """What corrections tell of the originals that leave a cell; lazy."""
    keys = identity_columns(originals.columns)
    same = ", ".join(keys)
    return originals.selectExpr(
        *keys,
        ARRIVAL_COLUMN,
        EVENT_COLUMN,
        f"'out' AS {PART_COLUMN}",
        f"row_number() OVER (PARTITION BY {same} ORDER BY {EVENT_COLUMN}) AS {OCCURRENCE_COLUMN}",
    )


def correction_identity(shop: Workshop, source: str, *, part: str = "corrections") -> Identity:
    """Who writes corrections of a source, or what follows from them: each writer's number is above all before it."""
    return Identity(
        dataset=source,
        slice_id=WHOLE.id,
        number=shop.store.leases.draw(source),
        run_id=shop.run.run_id,
        part=part,
        code=shop.codes.get(source),
        run_time=shop.run.time.isoformat(),
    )
