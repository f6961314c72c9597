"""Taking an arrival: record what is new before reading it, then keep every row of it in bronze.

A row that does not parse, or whose event time cannot be used, stays in bronze with an empty event cell and is
told in the dead letters by the same run; nothing is diverted on the way in.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from lakewright.connectors.read_errors import explain_read_error
from lakewright.errors import ConfigurationError, LakewrightError, StepFailed, TargetError, first_words
from lakewright.failpoints import failpoint
from lakewright.lake.delta_errors import explain_write_error, is_lost_answer, root_message
from lakewright.lake.schemas import fit_to_table
from lakewright.lake.windows import store_window
from lakewright.model.arrivals import Arrival
from lakewright.model.columns import FILE_COLUMN, VERSION_COLUMN
from lakewright.model.outside import CopiesSource
from lakewright.model.protocols import Found, LoadContext, SourceContext
from lakewright.model.receipts import Commit, Counters, Receipt
from lakewright.model.slices import ARRIVAL_COLUMN, EVENT_COLUMN, Slice
from lakewright.model.sql import text_literal
from lakewright.pipelines.corrections import follow_arrival
from lakewright.pipelines.decide import SliceState
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.events import with_event_cell
from lakewright.pipelines.gone import what_is_there
from lakewright.pipelines.harvest import receipt_of
from lakewright.pipelines.outside import refuse_other_ledger
from lakewright.pipelines.private_columns import words_of_step
from lakewright.pipelines.properties import properties_of
from lakewright.pipelines.recover import recover_attempt
from lakewright.pipelines.settle import counters_of_arrival, set_unusable_aside
from lakewright.pipelines.triggers import named_files, takes_named_files
from lakewright.pipelines.wishes import newest_load
from lakewright.pipelines.workshop import Attempt, Made, Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["load_warning", "look_for_new", "record_arrivals", "source_context", "take_arrival"]


def source_context(shop: Workshop, dataset: Dataset) -> SourceContext:
    last = shop.store.arrivals.last(dataset.name)
    return SourceContext(
        dataset=dataset.name,
        project=shop.project,
        known_files=shop.store.arrivals.known_files(dataset.name),
        last_window=None if last is None else last.window,
        waiting=tuple(arrival.window for arrival in shop.store.arrivals.pending(dataset.name)),
        connections=shop.connections,
        run_time=shop.run.time,
        project_name=shop.project_name,
    )


def look_for_new(shop: Workshop, dataset: Dataset) -> Sequence[Found]:
    """What the source has that no arrival holds, an arrival each; reads nothing."""
    assert dataset.source is not None
    context = source_context(shop, dataset)
    if takes_named_files(dataset, shop.run.event):
        return named_files(dataset, shop.run.event, context)
    if dataset.load is not None:
        return dataset.load.look(dataset.source, context)
    found = dataset.source.look(context)
    return () if found is None else (found,)


def load_warning(shop: Workshop, dataset: Dataset) -> str | None:
    """What speaks against how a source is loaded."""
    warning = getattr(dataset.load, "warning", None)
    told: str | None = None if warning is None else warning(dataset.event_time)
    of_source = getattr(dataset.source, "warning", None)
    if told is None and of_source is not None and (last := shop.store.arrivals.last(dataset.name)) is not None:
        told = of_source(last.window, overlaps=getattr(dataset.load, "overlap", None) is not None)
    return None if told is None else f"{dataset.name}: {told}"


def record_arrivals(shop: Workshop, dataset: Dataset) -> None:
    """Close the windows over what is new, under the source's lease, before a row of them is read."""
    grant = shop.store.leases.acquire(
        f"source:{dataset.name}", "*", owner_id=shop.owner_id, run_id=shop.run.run_id, now=shop.now()
    )
    try:
        windows = look_for_new(shop, dataset)
        if not windows:
            return
        waiting = shop.store.arrivals.pending(dataset.name) if dataset.is_replaced else []
        event = shop.run.event if len(windows) == 1 else None
        with shop.store.transaction() as conn:
            for arrival in waiting:  # it would be replaced as soon as it was read: it is given up
                shop.store.arrivals.commit(dataset.name, arrival.number, conn=conn)
            for found in windows:
                shop.store.arrivals.record(
                    dataset.name,
                    window=found.window,
                    files=found.files,
                    supersedes=found.supersedes,
                    key=None if event is None else event.key,
                    run_id=shop.run.run_id,
                    now=shop.now(),
                    conn=conn,
                )
        failpoint("recorded")
    finally:
        shop.store.leases.release(grant.dataset, grant.slice_id, grant.number)


def take_arrival(shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1) -> Made:
    """Runs the job that puts every record of one arrival into bronze, replacing an earlier try of the same."""
    arrival = shop.store.arrivals.get(dataset.name, state.slice.number)
    if arrival is None:
        raise ConfigurationError(f"{dataset.name} has no arrival {state.slice.number}.")
    with shop.attempt(dataset, state.slice, attempt=attempt, reason=f"{state.status}: {state.reason}") as current:
        if (made := recover_attempt(current)) is not None:
            return made
        if dataset.into is not None:
            # A trial keeps everything in its own lake: what goes past it is left where it is.
            copied = (_copy(current, arrival),) if dataset.name in shop.lake.outside else ()
            return current.finish(copied, arrival=arrival.number)
        context = source_context(shop, dataset)
        arrival = what_is_there(current, arrival, context)
        frame = _read(current, arrival, context)
        if dataset.load is not None:
            dataset.load.judge(frame, _load_context(current))
        commit = _write(current, arrival, frame)
        current.unsettled = True
        failpoint("published")
        follow_arrival(shop, dataset, current.identity(), commit.version, arrival)
        rejected = set_unusable_aside(shop, dataset, current.identity(), commit)
        counters = counters_of_arrival(commit, rejected)
        return current.finish((receipt_of(dataset.name, commit, counters=counters),), arrival=arrival.number)


def _copy(current: Attempt, arrival: Arrival) -> Receipt:
    """Past the lake, by the target's own command."""
    dataset, shop = current.dataset, current.shop
    assert dataset.source is not None
    context = source_context(shop, dataset)
    arrival = what_is_there(current, arrival, context)
    refuse_other_ledger(shop.lake, shop.store, dataset.name)
    identity = current.identity(arrival=store_window(shop.lake, arrival))
    table = shop.lake.open(dataset.name, identity, still_mine=current.still_mine)
    assert isinstance(table, CopiesSource)
    commit = table.copy_source(dataset.source, arrival, schema=as_schema(shop, dataset), ctx=context)
    if commit is None:
        raise TargetError(f"{dataset.name}, {current.slice.id}: a newer attempt has already committed.")
    failpoint("published")
    return receipt_of(dataset.name, commit, counters=Counters(read=commit.rows, written=commit.rows))


def _read(current: Attempt, arrival: Arrival, context: SourceContext) -> DataFrame:
    from pyspark.sql import functions as F

    dataset, shop = current.dataset, current.shop
    assert dataset.source is not None
    schema = as_schema(shop, dataset)
    frame = dataset.source.read(arrival, spark=shop.lake.session(), schema=schema, ctx=context)
    end = arrival.recorded_at + timedelta(days=1)
    if dataset.load is not None:
        frame = dataset.load.prepare(frame, arrival, lambda: _held(current))
    marked = with_event_cell(frame, dataset, shop.graph.cell_grid(dataset.name), end=end)
    return marked.withColumn(ARRIVAL_COLUMN, F.lit(arrival.number).cast("long"))


def _held(current: Attempt) -> DataFrame | None:
    """What the dataset holds now, as the newest version tells it; None where it has no table yet."""
    lake, name = current.shop.lake, current.dataset.name
    version = lake.log(name).latest()
    return None if version is None else lake.read(name, version=version, system_columns=True)


def _load_context(current: Attempt) -> LoadContext:
    """What a loader is told of the load before: refused where a newer one is in place."""
    store, dataset = current.shop.store, current.dataset
    known = newest_load(store.receipts.live_slices(dataset.name))
    before = store.receipts.live(dataset.name, known[0]) if known else None
    if dataset.is_replaced and known and Slice.parse(known[0]).number > current.slice.number:
        raise ConfigurationError(
            f"{dataset.name}: {known[0]} is in place, which is newer than {current.slice.id}. Nothing was written.",
            hint=f"To go back to an earlier load: `lakewright rollback {dataset.name}`.",
        )
    return LoadContext(f"{dataset.name}, {current.slice.id}", None if before is None else before.rows)


def as_schema(shop: Workshop, dataset: Dataset) -> StructType | None:
    """The declared columns as a schema, with those that the source adds; DDL text is read by the session."""
    schema = dataset.schema
    complete = getattr(dataset.source, "complete_schema", lambda declared: declared)
    if schema is None or not isinstance(schema, str):
        return cast("StructType | None", complete(schema))
    try:
        return cast("StructType | None", complete(shop.lake.session().createDataFrame([], schema).schema))
    except Exception as error:
        raise ConfigurationError(
            f"{dataset.place}: the schema of {dataset.name} cannot be read: {first_words(error)}"
        ) from None


def _write(current: Attempt, arrival: Arrival, frame: DataFrame) -> Commit:
    dataset, shop = current.dataset, current.shop
    details = {"arrival": store_window(shop.lake, arrival)}
    table = shop.lake.open(
        dataset.name,
        current.identity(**details),
        properties=properties_of(shop.graph, dataset),
        still_mine=current.still_mine,
    )
    where = "true" if dataset.is_replaced else current.slice.predicate()
    for earlier, file in arrival.supersedes:
        where += (
            f" OR ({ARRIVAL_COLUMN} = {earlier} AND {FILE_COLUMN} = {text_literal(file.path)} "
            f"AND {VERSION_COLUMN} = {text_literal(file.version)})"
        )
    try:
        fitted = fit_to_table(frame, table, dataset=dataset.name)
        commit = table.replace(fitted, where=where, partition_by=(ARRIVAL_COLUMN, EVENT_COLUMN), within=True)
    except LakewrightError as error:
        current.unsettled = table.has_written
        explained = explain_read_error(error.__cause__) if error.__cause__ is not None else None
        if explained is None:
            raise
        raise explained from (explained.__cause__ or error)
    except Exception as error:
        current.unsettled = is_lost_answer(error) or table.has_written
        explained = explain_read_error(error) or explain_write_error(error, dataset=dataset.name, path=table.path)
        if explained is None:
            first = words_of_step(shop.graph, dataset, root_message(error)) or type(error).__name__
            raise StepFailed(f"{dataset.place}: {dataset.name}, {current.slice.id} failed: {first}") from error
        raise explained from (explained.__cause__ or error)  # a connector's cause tells whether it may pass
    if commit is None:
        raise TargetError(f"{dataset.name}, {current.slice.id}: a newer attempt has already committed.")
    return commit
