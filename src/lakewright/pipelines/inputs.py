"""The frames that a step is called with: pinned, cut to the slice, judged by the input's guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.lake.corrections import corrections_of, in_key
from lakewright.model.cell_spans import CellSpan
from lakewright.model.columns import ALIVE, DELETED_COLUMN, RECORD_COLUMNS, system_columns
from lakewright.model.protocols import FilterTally, GuardContext, LatenessGuard, SideRows
from lakewright.model.receipts import NO_TABLE
from lakewright.model.references import AsOf, Lookback, Pinned, Previous, Reference, SameSlice
from lakewright.model.slices import EVENT_COLUMN, WHOLE, Slice
from lakewright.model.times import Interval, parse_duration
from lakewright.pipelines.cell_rows import rows_within
from lakewright.pipelines.corrections import corrected_input, correction_rows
from lakewright.pipelines.definitions import Dataset, Input
from lakewright.pipelines.earlier import earlier_rows
from lakewright.pipelines.empty import no_rows
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.harvest import pin
from lakewright.pipelines.input_rows import rows_at
from lakewright.pipelines.lateness import judged_by_watermark
from lakewright.pipelines.workshop import Attempt, Workshop
from lakewright.store import ELSEWHERE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["InputFrame", "event_time_of", "judged_input", "open_input", "rows_for_limits", "stream_context"]


@dataclass(frozen=True, slots=True)
class InputFrame:
    """One input, ready for the step, and what its guards have to say."""

    given: Input
    frame: DataFrame
    """What the step sees: business columns, rows kept."""
    judged: DataFrame
    """The rows before the guards, system columns included."""
    side: tuple[tuple[DataFrame, SideRows], ...]
    """Per guard with side rows: the rows that it judges (those that the guards before it kept)."""
    drops_duplicates: bool
    rows: int | None
    """Rows before the guards, from the receipts; None is unknown."""
    late: int | None
    same_slice: bool
    tallies: tuple[FilterTally, ...] = ()
    """Per guard that counts what it removes: how."""
    corrected: int | None = None
    """Rows among those before the guards that were dead letters and were replayed."""


def open_input(attempt: Attempt, given: Input) -> InputFrame:
    """Pin an input and cut it to what the reference says. Lazy, but for a reference that must not be empty."""
    shop, dataset = attempt.shop, attempt.dataset
    reference = shop.graph.reference(dataset, given)
    if isinstance(reference, Previous) and pin(shop.lake, shop.store, given.dataset) is None:
        nothing = _nothing_before(attempt, reference)
        return InputFrame(given, nothing, nothing, (), False, None, None, False)
    if shop.sample == 0:
        nothing = no_rows(attempt, given)
        return judged_input(attempt, given, reference, nothing, nothing.columns, None, None)
    if _may_be_absent(attempt, given) and pin(shop.lake, shop.store, given.dataset) is None:
        attempt.inputs[given.dataset] = NO_TABLE
        nothing = _absent_rows(attempt, given)
        return judged_input(attempt, given, reference, nothing, nothing.columns, 0, None)
    version = _version(attempt, given, reference)
    attempt.inputs[given.dataset] = version
    frame = shop.lake.read(given.dataset, version=version, system_columns=True)
    frame = corrected_input(attempt, given, reference, frame)
    columns = frame.columns  # asked once: each question is a round trip to the JVM
    has_cells = EVENT_COLUMN in columns
    cut = _cut(attempt, given, reference, version, has_cells=has_cells)
    # Rows without a usable event time are dead letters: in bronze they stay, to readers they do not count.
    wanted = [f"{EVENT_COLUMN} IS NOT NULL"] * has_cells + ([] if cut is None else [cut])
    wanted += [ALIVE] * (DELETED_COLUMN in columns)
    if wanted:
        frame = frame.where(" AND ".join(f"({one})" for one in wanted))
    if getattr(reference, "empty", "allow") == "refuse":
        _refuse_empty(attempt, given, frame)
    if shop.sample is not None and _comes_in(attempt, given, reference):
        frame = frame.sample(fraction=shop.sample, seed=7)
        return judged_input(attempt, given, reference, frame, columns, None, None)
    rows, late = _counts(attempt, given, reference, version)
    corrections = attempt.inputs.get(corrections_of(given.dataset))
    if rows is None or corrections is None:
        return judged_input(attempt, given, reference, frame, columns, rows, late)
    cells = _own_cells(attempt, given)
    changed = correction_rows(shop.store, shop.graph[given.dataset], attempt.slice, cells, corrections)
    if changed is None:
        return judged_input(attempt, given, reference, frame, columns, None, late)
    opened = judged_input(attempt, given, reference, frame, columns, rows + changed[0], late)
    return replace(opened, corrected=changed[1])


def _may_be_absent(attempt: Attempt, given: Input) -> bool:
    """Whether a slice may be made without an input: a part that is missing, or a branch that was never chosen."""
    graph, dataset = attempt.shop.graph, attempt.dataset
    other = graph.datasets.get(given.dataset)
    is_part = dataset.fan_in is not None and given.dataset in graph.driving(dataset)
    return is_part or (other is not None and other.choice is not None)


def _absent_rows(attempt: Attempt, given: Input) -> DataFrame:
    """No rows, with the columns that the input declares, or else those of another input that stands beside it."""
    lake, declared = attempt.shop.lake, attempt.shop.graph.datasets.get(given.dataset)
    if declared is None or declared.contract is None:
        for other in attempt.dataset.inputs:
            if _may_be_absent(attempt, other) and lake.log(other.dataset).exists():
                return lake.read(other.dataset, system_columns=True).where("false")
    return no_rows(attempt, given)


def _refuse_empty(attempt: Attempt, given: Input, frame: DataFrame) -> None:
    """Runs a job that reads at most one row; refuses a reference that has none."""
    if not frame.take(1):
        raise InputError(
            f"{attempt.dataset.name}, slice {attempt.slice.id} reads {given.dataset}, which is empty. Nothing was "
            "written.",
            hint='Fill it and run again. If it may be empty, leave empty="refuse" out.',
        )


def _comes_in(attempt: Attempt, given: Input, reference: Reference) -> bool:
    """Whether an input is where rows enter a sample: what was made of the sample is small already, and a reference
    is read whole, or hardly a row would find its match.
    """
    shop = attempt.shop
    source = given.dataset in shop.graph.datasets and shop.graph[given.dataset].is_source
    return isinstance(reference, SameSlice | Lookback) and (source or given.dataset in shop.lake.borrowed)


def judged_input(
    attempt: Attempt,
    given: Input,
    reference: Reference,
    frame: DataFrame,
    columns: Sequence[str],
    rows: int | None,
    late: int | None,
    *,
    streamed: bool = False,
) -> InputFrame:
    """The input after its guards; a job runs only where one of them has to measure the rows first."""
    kept, drops = frame, False
    sides: list[tuple[DataFrame, SideRows]] = []
    tallies: list[FilterTally] = []
    context = GuardContext(
        dataset=attempt.dataset.name,
        input=given.dataset,
        slice=attempt.slice,
        run=attempt.shop.run,
        record_columns=tuple(name for name in RECORD_COLUMNS if name in columns),
        event_time=event_time_of(attempt.shop.graph, given),
        earlier=lambda reach: earlier_rows(attempt, reach),
        streamed=streamed,
    )
    for guard in given.guards:
        if isinstance(guard, LatenessGuard):
            context = judged_by_watermark(attempt, given, guard, kept, context)
        guarded = guard.on_batch(kept, context)
        aside = [] if guarded.side is None else [guarded.side]
        sides += [(kept if guarded.judged is None else guarded.judged, one) for one in (*aside, *guarded.also)]
        if guarded.tally is not None:
            tallies.append(guarded.tally)
        kept = guarded.kept
        drops |= guarded.drops_duplicates
    visible = kept.drop(*system_columns(columns))
    cut_alike = isinstance(reference, SameSlice)
    return InputFrame(given, visible, frame, tuple(sides), drops, rows, late, cut_alike, tuple(tallies))


def rows_for_limits(given: Input, rows: DataFrame) -> int | None:
    """Runs a job that counts the rows of a micro-batch where a limit is a share of them; None where none is."""
    limited = (guard for guard in given.guards if not isinstance(guard, LatenessGuard))
    return rows.count() if any(getattr(guard, "stop_above", None) is not None for guard in limited) else None


def stream_context(shop: Workshop, dataset: Dataset, given: Input, columns: Sequence[str]) -> GuardContext:
    """What guards of a stream are told that stand in the stream itself, before there are micro-batches."""
    return GuardContext(
        dataset=dataset.name,
        input=given.dataset,
        slice=WHOLE,
        run=shop.run,
        record_columns=tuple(name for name in RECORD_COLUMNS if name in columns),
        event_time=event_time_of(shop.graph, given),
    )


def event_time_of(graph: Graph, given: Input) -> str | None:
    """The column that an input declares as its event time."""
    above = graph.datasets.get(given.dataset)
    return None if above is None else above.event_time


def _nothing_before(attempt: Attempt, reference: Previous) -> DataFrame:
    """The frame that the very first slice gets for the one before it."""
    dataset = attempt.dataset
    schema = reference.schema if dataset.contract is None else dataset.contract.schema()
    if schema is None:
        raise ConfigurationError(
            f"{dataset.place}: {dataset.name} reads its earlier slice, and nothing tells the columns of the first.",
            hint='Give the dataset a contract, or write Previous(schema="...") with its columns.',
        )
    return attempt.shop.lake.session().createDataFrame([], schema)


def _version(attempt: Attempt, given: Input, reference: Reference) -> int:
    shop = attempt.shop
    if isinstance(reference, Pinned):
        first = shop.store.receipts.first(attempt.dataset.name, attempt.slice.id)
        if first is not None and (then := first.inputs.get(given.dataset, ELSEWHERE)) != ELSEWHERE:
            return _still_there(attempt, given, then)
    version = pin(shop.lake, shop.store, given.dataset)
    if version is None:
        raise ConfigurationError(
            f"{attempt.dataset.name} reads {given.dataset}, which has no table yet.",
            hint=f"Nothing has arrived for it so far; `lakewright plan --select +{attempt.dataset.name}` shows why.",
        )
    return version


def _still_there(attempt: Attempt, given: Input, version: int) -> int:
    """The pinned version, if its files are: a read that fails half-way would not tell which version it wanted."""
    if version == attempt.shop.lake.log(given.dataset).latest():
        return version
    if lost := attempt.shop.lake.lost_files(given.dataset, version):
        raise TargetError(
            f"{attempt.dataset.name}, slice {attempt.slice.id} reads {given.dataset} as it was at version {version}, "
            f"and {len(lost)} of that version's files are gone: somebody deleted or vacuumed them. "
            "Nothing was written.",
            hint=f"Bring them back ({lost[0]}), or let the step read {given.dataset} as it is now: "
            f"inputs={{'{given.parameter}': Whole()}}. `history` on {given.dataset} keeps versions for longer.",
        )
    return version


def _cut(attempt: Attempt, given: Input, reference: Reference, version: int, *, has_cells: bool) -> str | None:
    """The rows that a reference means, as SQL; None where it means all of them."""
    slice_ = attempt.slice
    if isinstance(reference, Previous):
        writer = attempt.dataset.writer
        if slice_.kind == "arrival" and writer is not None and not writer.replaces_slice:
            return None  # merged by key, it is one state: all that the arrivals before have made of it
        earlier = _previous(attempt)
        return "false" if earlier is None else earlier.predicate()
    if isinstance(reference, AsOf):
        other = attempt.shop.graph[given.dataset]
        return _valid_within(other, slice_.interval) if slice_.kind == "event" else None
    if not isinstance(reference, SameSlice | Lookback) or slice_.kind == "whole":
        return None
    if slice_.kind == "arrival":
        return slice_.predicate()
    reach = parse_duration(reference.reach) if isinstance(reference, Lookback) else timedelta(0)
    return _cut_by_event(attempt, given, reach, version, has_cells=has_cells)


def _cut_by_event(attempt: Attempt, given: Input, reach: timedelta, version: int, *, has_cells: bool) -> str:
    graph, slice_ = attempt.shop.graph, attempt.slice
    column = graph[given.dataset].event_time
    span = Interval(slice_.interval.start - reach, slice_.interval.end)
    start, end = (f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'" for at in (span.start, span.end))
    times = f"(`{column}` >= {start} AND `{column}` < {end})"
    if not has_cells:
        return times
    cells = CellSpan.of(span, graph.cell_grids(given.dataset))
    # Where the cells fit exactly there is no second look at each row's time.
    return cells.overlapping() if _fit(attempt, given, cells, version) else cells.predicate(times)


def _fit(attempt: Attempt, given: Input, cells: CellSpan, version: int) -> bool:
    """Whether no cell that lies in a stretch only in part has rows, neither of an input nor of its corrections."""
    if not cells.across:
        return True
    receipts, corrections = attempt.shop.store.receipts, corrections_of(given.dataset)
    if receipts.rows_in(given.dataset, cells.across, version) != 0:
        return False
    pinned, keys = attempt.inputs.get(corrections), [in_key(cell) for cell in cells.across]
    return pinned is None or receipts.rows_in(corrections, keys, pinned) == 0


def _own_cells(attempt: Attempt, given: Input) -> CellSpan | None:
    """The cells of an input that lie in a slice of event time."""
    grids = attempt.shop.graph.cell_grids(given.dataset)
    return CellSpan.of(attempt.slice.interval, grids) if attempt.slice.kind == "event" and grids else None


def _valid_within(other: Dataset, span: Interval) -> str:
    # Every version but those that ended before the slice: one that begins after it may still be the first known.
    start = f"TIMESTAMP '{span.start:%Y-%m-%d %H:%M:%S}'"
    return f"`{other.valid_to}` IS NULL OR `{other.valid_to}` > {start}"


def _previous(attempt: Attempt) -> Slice | None:
    made = attempt.shop.store.receipts.live_slices(attempt.dataset.name)
    earlier = [found for slice_id in made if (found := Slice.parse(slice_id)) < attempt.slice]
    return max(earlier, default=None)


def _counts(attempt: Attempt, given: Input, reference: Reference, version: int) -> tuple[int | None, int | None]:
    shop, slice_ = attempt.shop, attempt.slice
    if not isinstance(reference, SameSlice):
        return None, None
    rows = rows_at(shop, given.dataset, slice_, version)
    cells = _own_cells(attempt, given)
    if cells is None:
        return rows, None
    before = shop.store.receipts.first(attempt.dataset.name, slice_.id)
    then = ELSEWHERE if before is None else before.inputs.get(given.dataset, ELSEWHERE)
    if then == ELSEWHERE:
        return rows, 0
    return rows, rows_within(shop.store, given.dataset, cells, upto=version, after=then)
