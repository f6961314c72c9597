"""Making one slice of a step: pin, judge narrow, call the function, write once, read the receipt from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakewright.errors import (
    InputError,
    LakewrightError,
    LimitExceeded,
    SchemaChangeError,
    StepFailed,
    TargetError,
    first_words,
)
from lakewright.failpoints import failpoint
from lakewright.lake.delta_errors import explain_write_error, is_lost_answer
from lakewright.lake.schemas import fit_to_table, refuse_misfit
from lakewright.lake.side_tables import DEAD_LETTERS, dead_letter_rows, rows_per_rule, write_side_rows
from lakewright.lake.tables import AttemptTable
from lakewright.model.columns import business_columns
from lakewright.model.contracts import check_frame, refuse_nulls
from lakewright.model.protocols import WriteContext, Writer
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN
from lakewright.patterns.storage.horizontal_partitioner import (
    HorizontalPartitioner,
    explain_null_partition,
    partition_rows,
    refuse_too_many_partitions,
)
from lakewright.pipelines.decide import SliceState
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.envelopes import envelope_outputs, enveloped
from lakewright.pipelines.events import time_within
from lakewright.pipelines.fan_in_options import fan_in_outputs
from lakewright.pipelines.filtering import count_filters
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.inputs import InputFrame, open_input
from lakewright.pipelines.lateness import with_lateness
from lakewright.pipelines.marking import change_notices, partial_findings
from lakewright.pipelines.other_sides import set_others_aside
from lakewright.pipelines.outside import refuse_other_ledger
from lakewright.pipelines.partial import measured, partial_frames, stays_private
from lakewright.pipelines.private_columns import words_of_step
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.receipt_warnings import warnings_of
from lakewright.pipelines.recover import recover_attempt
from lakewright.pipelines.replicas import copied_rows, drop_lost_columns, prove_copy
from lakewright.pipelines.restoring import goes_back, record_restore_outside, restore_before
from lakewright.pipelines.rule_errors import explain_rule_error
from lakewright.pipelines.sessionizing import sessionized
from lakewright.pipelines.settle import complete_receipt, not_preserved, put_back
from lakewright.pipelines.taking_back import take_back
from lakewright.pipelines.time_limits import stopped_after
from lakewright.pipelines.workshop import Attempt, Made, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "call_step",
    "check_result",
    "lay_out",
    "make_slice",
    "publish",
    "publish_once",
    "refuse_other_layout",
    "set_aside",
]

_CUT_BY = {ARRIVAL_COLUMN: "what arrives", EVENT_COLUMN: "event time"}


def make_slice(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Runs the jobs that make one slice; whatever the moment of a kill, doing it again leaves the same rows."""
    if state.takes_back:
        return take_back(shop, dataset, state, attempt=attempt)
    private, reason = stays_private(shop, dataset, state.slice), f"{state.status}: {state.reason}"
    with shop.attempt(dataset, state.slice, attempt=attempt, reason=reason, rewrites=not private) as current:
        if (made := recover_attempt(current)) is not None:
            return made
        inputs = [open_input(current, given) for given in dataset.inputs]
        parts = measured(current, private=private)
        rejected = set_aside(current, inputs)
        failpoint("set_aside")
        count_filters(current, inputs)
        flagged = partial_frames(current, call_step(current, inputs), parts, private=private)
        with sessionized(current, flagged) as frames:
            receipts = [_write_private(current, name, frames[name]) for name in dataset.outputs if name in frames]
            failpoint("private_written")
            if private:
                return current.finish(tuple(receipts), notices=partial_findings(shop, dataset, receipts[-1]))
            commit = _write_public(current, frames[dataset.name])
            current.unsettled = True
        failpoint("published")
        counters = _account(current, inputs, rejected, commit)
        _check_preserved(current, counters, commit)
        counters = replace(counters, proof=prove_copy(current, inputs, commit))
        receipt = receipt_of(dataset.name, commit, counters=counters)
        receipts.append(complete_receipt(receipt, dataset, state.slice, shop))
        notices = change_notices(shop, dataset, receipts[-1], state.reason)
        notices += warnings_of(shop, dataset, receipts[-1]) + partial_findings(shop, dataset, receipts[-1])
        return current.finish(tuple(receipts), notices=notices)


def set_aside(current: Attempt, inputs: list[InputFrame]) -> dict[str, int]:
    """Commit the rows that guards reject, by a narrow pass; then let the limits decide."""
    set_others_aside(current, inputs)
    guarded = [i for i in inputs if any(side.table == "dead_letters" for _, side in i.side)]
    if not guarded:
        return {}
    identity = current.identity().as_judge("dead_letters")
    rows: DataFrame | None = None
    for one in guarded:
        for judged, side in one.side:
            if side.table != "dead_letters":
                continue
            broken = judged.where(side.broken)
            found = dead_letter_rows(
                broken,
                reasons=side.reasons,
                identity=identity,
                input_name=one.given.dataset,
                keep=side.keep,
                error=side.error,
            )
            rows = found if rows is None else rows.unionByName(found)
    assert rows is not None
    beside = current.published_number()
    try:
        commit = write_side_rows(current.shop.lake, DEAD_LETTERS, rows, identity, beside=beside)
    except Exception as error:
        if (explained := explain_rule_error(current, inputs, error)) is None:
            raise
        raise explained from error
    if commit is None:
        raise TargetError(
            f"{current.dataset.name}, slice {current.slice.id}: a newer attempt is at work. Nothing was written."
        )
    rejected = rows_per_rule(current.shop.lake, DEAD_LETTERS, commit.version, number=identity.number)
    for one in guarded:
        _stop_above(current, one, rejected.get(one.given.dataset, {}), published=beside is not None)
    # The account is that of the driving input: the first that is guarded, also where others alone set rows aside.
    driving = next(one for one in inputs if one.given.guards)
    return rejected.get(driving.given.dataset, {})


def _stop_above(current: Attempt, one: InputFrame, rejected: Mapping[str, int], *, published: bool) -> None:
    total = sum(rejected.values())
    # Beside a slice that is published they are evidence; of one that never was they are open.
    look = f"lakewright dead-letters list {current.dataset.name} --slice {current.slice.id}"
    told = f"Nothing was published; the rows are in the dead letters: {look}{' --state evidence' if published else ''}"
    where = f"{current.dataset.name}, slice {current.slice.id}"
    rules = ", ".join(f"{rule} {count:,}" for rule, count in sorted(rejected.items(), key=lambda r: -r[1]))
    for _, side in one.side:
        # Where no receipt tells of how many (a log was cleaned) they are counted: a limit must not fall silent.
        rows = one.judged.count() if one.rows is None and side.stop_above is not None and total else one.rows
        share = total / rows if rows else None
        if side.stop_above is not None and share is not None and share > side.stop_above:
            raise LimitExceeded(
                f"{where}: {total:,} of {rows:,} rows ({share:.1%}) broke a rule, more than the limit of "
                f"{side.stop_above:.1%} ({rules}). {told}",
                dataset=current.dataset.name,
                slice_id=current.slice.id,
                share=share,
                rows=total,
            )
        if side.stop_above_rows is not None and total > side.stop_above_rows:
            raise LimitExceeded(
                f"{where}: {total:,} rows broke a rule, more than the limit of {side.stop_above_rows:,} ({rules}). "
                f"{told}",
                dataset=current.dataset.name,
                slice_id=current.slice.id,
                rows=total,
            )


def call_step(current: Attempt, inputs: list[InputFrame]) -> dict[str, DataFrame]:
    """Call the step and check what comes back."""
    from pyspark.sql import DataFrame  # the one class of both engines; a project file is read without Spark

    dataset = current.dataset
    if dataset.sql is not None:
        return enveloped(current, {dataset.name: _query(current, inputs)})
    if dataset.replica is not None:
        return {dataset.name: copied_rows(current, inputs)}
    assert dataset.function is not None
    arguments: dict[str, Any] = {i.given.parameter: i.frame for i in inputs}
    if dataset.takes_run:
        interval = current.slice.interval if current.slice.kind == "event" else None
        run = current.shop.run
        arguments["run"] = replace(run, attempt=current.number_of_attempt, interval=interval)
    try:
        with stopped_after(dataset.timeout):
            result = dataset.function(**arguments)
    except LakewrightError:
        raise
    except (Exception, SystemExit) as error:  # a step that asks the process to end has failed, whatever its code
        raise StepFailed(
            f"{dataset.place}: {dataset.name} failed on slice {current.slice.id}: "
            f"{words_of_step(current.shop.graph, dataset, error, named=True)}"
        ) from error
    frames = result if isinstance(result, dict) else {dataset.name: result}
    wanted = {dataset.name, *dataset.outputs} - envelope_outputs(dataset) - fan_in_outputs(dataset)
    wanted = {dataset.name} if dataset.sessions is not None else wanted
    if set(frames) != wanted:
        raise StepFailed(
            f"{dataset.place}: {dataset.name} returned {', '.join(sorted(map(str, frames))) or 'nothing'}, "
            f"but declares {', '.join(sorted(wanted))}."
        )
    for name, frame in frames.items():
        if not isinstance(frame, DataFrame):
            raise StepFailed(
                f"{dataset.place}: {dataset.name} returned {type(frame).__name__} for {name}, not a DataFrame.",
                hint="Does the function end with `return`?" if frame is None else None,
            )
    return enveloped(current, frames)


def _query(current: Attempt, inputs: list[InputFrame]) -> DataFrame:
    session = current.shop.lake.session()
    for one in inputs:
        # The child session belongs to this thread alone, so plain names cannot meet another step's.
        one.frame.createOrReplaceTempView(one.given.parameter)
    try:
        return session.sql(current.dataset.sql or "")
    except Exception as error:
        raise StepFailed(
            f"{current.dataset.place}: the SQL of {current.dataset.name} is wrong: {first_words(error)}"
        ) from error


def _write_private(current: Attempt, name: str, frame: DataFrame) -> Receipt:
    output = current.dataset.outputs[name]
    identity = current.identity().as_part(name)
    table = current.shop.lake.open(name, identity, still_mine=current.still_mine)
    commit = publish(current, table, frame, output.writer, output.layout, name)
    return receipt_of(name, commit)


def _write_public(current: Attempt, frame: DataFrame) -> Commit:
    dataset = current.dataset
    assert dataset.writer is not None
    frame = check_result(current, frame)
    table = current.shop.lake.open(
        dataset.name,
        current.identity(),
        properties=properties_of(current.shop.graph, dataset),
        still_mine=current.still_mine,
    )
    return publish(current, table, frame, dataset.writer, dataset.layout, dataset.name)


def check_result(current: Attempt, frame: DataFrame) -> DataFrame:
    """The frame that a step returned, refused where it breaks the dataset's contract."""
    dataset = current.dataset
    if dataset.contract is None:
        return frame
    taken = getattr(dataset.writer, "takes_columns", ())
    if wrong := check_frame(dataset.contract, frame.drop(*taken).schema):
        raise InputError(
            f"{dataset.place}: {dataset.name} breaks its contract: {'; '.join(wrong)}. Nothing was written.",
            hint="Correct the step, or the contract if the change is meant.",
        )
    # Of a row that was deleted at its source only the key is told.
    return frame if taken else refuse_nulls(dataset.contract, frame)


def publish(
    current: Attempt,
    table: AttemptTable,
    frame: DataFrame,
    writer: Writer,
    layout: HorizontalPartitioner | None,
    name: str,
) -> Commit:
    """Runs the job that writes a slice of a dataset; refused where a newer attempt has already written it."""
    commit = publish_once(current, table, frame, writer, layout, name)
    if commit is None:
        raise TargetError(
            f"{name}, slice {current.slice.id}: a newer attempt has already committed. Nothing was written."
        )
    return commit


def publish_once(
    current: Attempt,
    table: AttemptTable,
    frame: DataFrame,
    writer: Writer,
    layout: HorizontalPartitioner | None,
    name: str,
) -> Commit | None:
    """The same; None where it was written before."""
    frame, partitions = lay_out(current, frame, writer, layout, name)
    refuse_other_layout(current, table, partitions, name)
    outside = name in current.shop.lake.outside
    if goes_back(writer) and not outside and table.exists():
        refuse_misfit(frame, table, dataset=name)  # "nothing was written" has to be true of the restore as well
    back_to = restore_before(current, frame, writer, name)
    if outside:  # the destination sees to its own columns
        refuse_other_ledger(current.shop.lake, current.shop.store, name)
    else:
        if (refuse_columns := getattr(writer, "refuse_columns", None)) is not None:
            refuse_columns(frame.columns, name)  # before the table gains a column
        drop_lost_columns(current, table, frame)
        taken = getattr(writer, "takes_columns", ())
        fitted = fit_to_table(
            frame.drop(*taken), table, dataset=name, added_by_writer=getattr(writer, "adds_columns", ())
        )
        frame = frame if taken else fitted
    context = WriteContext(
        dataset=name,
        slice=current.slice,
        table=table,
        run=current.shop.run,
        partition_by=partitions,
        back_to=back_to,
    )
    try:
        commit = writer.publish(frame, context)
        if commit is not None and outside and goes_back(writer):
            record_restore_outside(current, name, commit)
        return commit
    except Exception as error:
        # A stream repeats its micro-batch by itself, and knows it by its checkpoint. What was written may have failed
        # behind its commit: the log of an object store is read by jobs, which a cancelled run interrupts.
        written = is_lost_answer(error) or getattr(table, "has_written", False)
        current.unsettled = written and not current.dataset.is_stream
        if isinstance(error, LakewrightError):
            raise
        explained = explain_null_partition(error) or explain_write_error(error, dataset=name, path=table.path)
        if explained is None:
            said = words_of_step(current.shop.graph, current.dataset, error)
            raise StepFailed(f"{current.dataset.place}: {name}, slice {current.slice.id} failed: {said}") from error
        raise explained from error


def lay_out(
    current: Attempt, frame: DataFrame, writer: Writer, layout: HorizontalPartitioner | None, name: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """Add the system columns that tell slices apart, and the partition columns of the layout."""
    from pyspark.sql import functions as F

    partitions: tuple[str, ...] = ()
    if layout is not None:
        frame = partition_rows(frame, layout=layout, what=name)
        try:
            refuse_too_many_partitions(frame, layout=layout, what=name)
        except Exception as error:
            explained = explain_null_partition(error)
            if explained is None:
                raise
            raise explained from error
        partitions = tuple(layout.by)
    if not writer.replaces_slice or current.slice.kind in ("whole", "key"):
        return frame, partitions
    if current.slice.kind == "arrival":
        marked = frame.withColumn(ARRIVAL_COLUMN, F.expr(f"{current.slice.number}L"))
        return marked, (ARRIVAL_COLUMN, *partitions)
    dataset = current.dataset
    if dataset.sessions is not None:  # a session lies in the slice that completed it, wherever its visits lie
        return frame.withColumn(EVENT_COLUMN, F.lit(current.slice.value)), (EVENT_COLUMN, *partitions)
    columns = frame.columns
    if dataset.event_time not in columns:
        raise InputError(
            f"{dataset.place}: {name} names event_time '{dataset.event_time}', but the step returns "
            f"{', '.join(columns)}. Nothing was written."
        )
    checked = frame.withColumn(dataset.event_time, time_within(frame, dataset.event_time, current.slice))
    return checked.withColumn(EVENT_COLUMN, F.lit(current.slice.value)), (EVENT_COLUMN, *partitions)


def refuse_other_layout(current: Attempt, table: AttemptTable, partitions: tuple[str, ...], name: str) -> None:
    """Refuse a layout that was declared anew since the table was made: Delta cannot change it by a write."""
    if not partitions or name in current.shop.lake.outside:
        return
    laid_out = table.log.partition_columns()
    if laid_out is None or laid_out == partitions:
        return
    now, then = (", ".join(business_columns(names)) or "no column" for names in (partitions, laid_out))
    cut, was_cut = (tuple(name for name in names if name in _CUT_BY) for names in (partitions, laid_out))
    if cut != was_cut:
        raise SchemaChangeError(
            f"{current.dataset.place}: {name} was {_cut(was_cut)} until now, and is {_cut(cut)}: what was made then "
            "would lie beside it, and count twice. Nothing was written.",
            hint="Give it a new name, under which it is made from its start on, or let it be cut as before.",
        )
    raise SchemaChangeError(
        f"{current.dataset.place}: {name} is laid out by {then}, and declares {now}. Nothing was written.",
        hint="Give the new layout a new name"
        + (f", or rewrite the table: `lakewright repartition {name}`." if name == current.dataset.name else "."),
    )


def _cut(columns: tuple[str, ...]) -> str:
    return f"cut by {' and '.join(map(_CUT_BY.__getitem__, columns))}" if columns else "not cut into slices"


def _account(current: Attempt, inputs: list[InputFrame], rejected: Mapping[str, int], commit: Commit) -> Counters:
    """The account of the step's driving input: the guarded one, else the first that is cut like the step."""
    filtered = current.identity().filtered
    removed = 0 if filtered is None else filtered.rows
    driving = next((i for i in inputs if i.given.guards), None) or next((i for i in inputs if i.same_slice), None)
    read = None if driving is None else driving.rows
    duplicates = None
    tells = driving is not None and driving.drops_duplicates and current.dataset.rows == "preserve"
    if tells and read is not None and removed is not None:
        duplicates = read - sum(rejected.values()) - removed - (commit.rows or 0)
    counters = Counters(
        read=read,
        rejected=dict(rejected),
        duplicates=duplicates,
        corrected=None if driving is None else driving.corrected,
        late=None if driving is None else driving.late,
        written=commit.rows,
        deleted=commit.metrics.get("numDeletedRows"),
        filtered=filtered,
        filtered_by_input=current.identity().filtered_by_input,
    )
    return with_lateness(counters, current.identity())


def _check_preserved(current: Attempt, counters: Counters, commit: Commit) -> None:
    expected = not_preserved(current.dataset, counters)
    if expected is None:
        return
    shop, name = current.shop, current.dataset.name
    undo = put_back(shop, current.dataset, current.identity(), commit)
    # Neither the wrong commit nor its undoing makes a reader stale.
    wrong = [c for c in (commit, undo) if c is not None]
    shop.store.receipts.add([receipt_of(name, one, kind="maintenance") for one in wrong])
    current.unsettled = False
    raise InputError(
        f'{current.dataset.place}: {name} declares rows="preserve", but made {commit.rows:,} rows of '
        f"{expected:,} in slice {current.slice.id}. The slice was put back as it was.",
        hint='A join that finds no match or several is the usual cause; declare rows="reduce" or "expand" '
        "if it is meant.",
    )
