"""What follows a public commit before its receipt: the same for a run that goes well and for one that is recovered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.errors import TargetError, first_words
from lakewright.failpoints import failpoint
from lakewright.lake.corrections import read_corrections, without_corrected
from lakewright.lake.side_tables import DEAD_LETTERS, dead_letter_rows, rows_per_rule, write_side_rows
from lakewright.model.columns import RAW_COLUMN, business_columns
from lakewright.model.identity import Identity
from lakewright.model.receipts import Change, Commit, Counters, Receipt
from lakewright.model.slices import ANY_CELL, EVENT_COLUMN, Slice
from lakewright.model.sql import quoted, text_literal
from lakewright.model.times import cell_interval
from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
from lakewright.pipelines.definitions import Dataset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakewright.pipelines.workshop import Workshop

__all__ = [
    "BEHIND_WATERMARK",
    "NO_EVENT_TIME",
    "NO_VALUE",
    "UNREADABLE",
    "complete_receipt",
    "counters_of_arrival",
    "not_preserved",
    "put_back",
    "set_unusable_aside",
]

UNREADABLE = "unreadable record"
NO_EVENT_TIME = "no usable event time"
NO_VALUE = "record without a value"
"""A tombstone of a topic: nothing in it is wrong, but there is nothing to read."""
_GIVEN = "_lw_given"
_NOT_A_RECORD = "'the text is not one whole record of the declared columns'"
BEHIND_WATERMARK = "behind the watermark"
"""The rule of rows that the state of a guard dropped; they are counted, and in no table."""


def set_unusable_aside(
    shop: Workshop, dataset: Dataset, identity: Identity, commit: Commit, *, version: int | None = None
) -> dict[str, int]:
    """Tell the rows without a usable event time in the dead letters; the log says whether there are any.

    They are read as they are in the commit, or in a later ``version``.
    """
    from pyspark.sql import functions as F

    slice_ = Slice.parse(identity.slice_id)
    repeated = shop.store.receipts.live(dataset.name, slice_.id) is not None
    if None not in commit.touched and not repeated:
        return {}
    read_at = commit.version if version is None else version
    rows = shop.lake.read(dataset.name, version=read_at, system_columns=True).where(
        f"{slice_.predicate()} AND {EVENT_COLUMN} IS NULL"
    )
    if (corrections := read_corrections(shop.lake, dataset.name) if dataset.is_source else None) is not None:
        rows = without_corrected(rows, corrections)
    reason = F.lit(NO_EVENT_TIME)
    if RAW_COLUMN in rows.columns:  # a step that follows a stream has rows, not records
        raw = F.col(RAW_COLUMN)
        reason = F.when(raw == "", F.lit(NO_VALUE)).when(raw.isNotNull(), F.lit(UNREADABLE)).otherwise(reason)
    rows, error = _with_error(rows, dataset)
    side_identity, told = identity.as_part("dead_letters"), Identity.from_json(commit.metadata)
    letters = dead_letter_rows(
        rows,
        reasons=F.array(reason),
        # They count while the commit's receipt does, whoever tells them.
        identity=side_identity if told is None else replace(side_identity, number=told.number),
        input_name=dataset.name,
        keep=business_columns(rows.columns),
        error=error,
    )
    side = write_side_rows(shop.lake, DEAD_LETTERS, letters, side_identity, of_input=dataset.name, again=repeated)
    if side is None:
        raise TargetError(f"{dataset.name}, {slice_.id}: a newer attempt is at work.")
    failpoint("set_aside")
    return rows_per_rule(shop.lake, DEAD_LETTERS, side.version).get(dataset.name, {})


def _with_error(rows: DataFrame, dataset: Dataset) -> tuple[DataFrame, Column]:
    """What is wrong with records that cannot be used, in words; asked of those alone, once they are in bronze."""
    from pyspark.sql import functions as F

    no_time = "CAST(NULL AS STRING)"
    if dataset.event_time is not None:
        name, text = quoted(dataset.event_time), text_literal(dataset.event_time)
        why = text_literal(f" is no time from {dataset.start:%Y-%m-%d %H:%M} on, up to a day after it arrived")
        no_time = f"coalesce(concat({text}, ' = ', CAST({name} AS STRING), {why}), concat({text}, ' is missing'))"
    if RAW_COLUMN not in rows.columns:
        return rows, F.expr(no_time)
    # A field that is in the text, and not in its column, is one that does not fit it.
    given = rows.withColumn(_GIVEN, F.expr(f"from_json({RAW_COLUMN}, 'map<string, string>')"))
    lost = []
    for one in business_columns(rows.columns):
        told = text_literal(one)
        unfit = f"{quoted(one)} IS NULL AND try_element_at({_GIVEN}, {told}) IS NOT NULL"
        lost.append(f"CASE WHEN {unfit} THEN {told} END")
    fields = f"array_join(array({', '.join(lost)}), ', ')"
    unreadable = f"coalesce('these fields do not fit their columns: ' || nullif({fields}, ''), {_NOT_A_RECORD})"
    return given, F.expr(
        f"CASE WHEN {RAW_COLUMN} = '' THEN NULL WHEN {RAW_COLUMN} IS NOT NULL THEN {unreadable} ELSE {no_time} END"
    )


def counters_of_arrival(commit: Commit, rejected: Mapping[str, int]) -> Counters:
    """The account of an arrival: of the rows without a usable time, those that are not told are corrected."""
    unusable = commit.touched.get(None, Change()).added
    corrected = 0 if unusable is None else unusable - sum(rejected.values())
    return Counters(
        read=commit.rows,
        rejected=rejected,
        corrected=corrected or None,
        written=commit.rows,
        corrupt=rejected.get(UNREADABLE, 0),
    )


def complete_receipt(receipt: Receipt, dataset: Dataset, slice_: Slice, shop: Workshop) -> Receipt:
    """Add what follows from the declaration: touched cells of a merged table, and since when a history differs."""
    touched = receipt.touched
    if slice_.kind == "event" and dataset.writer is not None and not dataset.writer.replaces_slice:
        touched = {slice_.value: Change(added=None, removed=None)}
    valid_from = receipt.valid_from
    follows = shop.graph.slicing[dataset.name].follows
    if valid_from is None and dataset.valid_from is not None and slice_.kind == "arrival" and follows is not None:
        arrived = shop.store.receipts.live(follows, slice_.id)
        cells = [] if arrived is None else [c for c in arrived.touched if c is not None and c != ANY_CELL]
        valid_from = cell_interval(min(cells)).start if cells else None
    return replace(receipt, touched=touched, valid_from=valid_from)


def not_preserved(dataset: Dataset, counters: Counters) -> int | None:
    """How many rows a step that declares ``rows="preserve"`` should have made, where it made another number."""
    if dataset.rows != "preserve" or counters.read is None or counters.written is None:
        return None
    expected = counters.read - counters.rejected_rows - counters.filtered_rows - (counters.held or 0)
    some_go_uncounted = counters.duplicates is not None or not _counts_filters(dataset, counters)
    wrong = counters.written > expected if some_go_uncounted else counters.written != expected
    return expected if wrong else None


def _counts_filters(dataset: Dataset, counters: Counters) -> bool:
    """Whether every row that a filter removed of the input that the account is about was counted."""
    driving = next((given for given in dataset.inputs if given.guards), None)
    filters = driving is not None and any(isinstance(guard, FilterInterceptor) for guard in driving.guards)
    return not filters or (counters.filtered is not None and counters.filtered.rows is not None)


def put_back(shop: Workshop, dataset: Dataset, identity: Identity, commit: Commit) -> Commit | None:
    """Runs a job that replaces a slice by what it was before a commit that must not count."""
    table = shop.lake.open(dataset.name, identity.as_part("undo", "maintenance"))
    before = commit.version - 1
    where = Slice.parse(identity.slice_id).predicate()
    kept = table.spark.read.format("delta").option("versionAsOf", max(before, 0)).load(table.path)
    try:
        return table.replace(kept.where(where if before >= 0 else "false"), where=where, within=True)
    except Exception as error:
        why = first_words(error.__cause__ or error)
        raise TargetError(
            f"{dataset.name}, slice {identity.slice_id}: version {commit.version} holds rows that must not count, and "
            f"could not be put back: {why} No step reads that version until it is.",
            hint="`lakewright run` does that before anything else.",
        ) from error
