"""The slices of event time that were never made: is one closed, is it whole, and did the rows come that it expects?

The answers come from receipts and arrivals alone; no job runs. After ``store rebuild`` they are the same, but for one
thing: of an arrival that was recorded and not yet committed the logs know nothing, so until the next run records it
again an input may count as silent for longer than it was (``idle``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from lakewright.model.slices import ANY_CELL, Slice, event_slice
from lakewright.model.times import GRIDS, WIDTH, Grid, cell_interval, cell_of, cells_between, coarsened, finest
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import SliceState, Status
from lakewright.store import Head, LiveSlice, StaleSlice, Store

__all__ = ["Closing", "Horizon", "cap_overdue", "skipped_slices"]

_MOST_OVERDUE = 50
_TICK = timedelta(microseconds=1)
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to where the slices of a dataset are closed: those whose end, plus ``wait``, it has reached."""

    reached: datetime
    wait: timedelta
    behind: str = ""
    """How far the input is that holds the others back; empty where the run time decides."""

    def still_open(self, cell: str) -> str | None:
        """Why a slice is not closed yet; None where it is."""
        end = cell_interval(cell).end + self.wait
        if end <= self.reached:
            return None
        at = f"{end:%Y-%m-%d %H:%M} UTC"
        if not self.behind:
            return f"not over yet: due at {at}"
        return f"not closed yet: {self.behind} ({cell} closes when it reaches {at})"

    def newest(self, grid: Grid) -> tuple[str, str]:
        """The last two cells that are closed."""
        last = cell_of(self.reached - self.wait - _TICK, grid)
        return cell_of(cell_interval(last).start - _TICK, grid), last


class Closing:
    """Answers for one graph against one store."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self._graph = graph
        self._store = store

    def never_made(
        self, dataset: Dataset, live: Mapping[str, LiveSlice], run_time: datetime, heads: Mapping[str, Head]
    ) -> dict[str, SliceState]:
        """The slices without a live receipt that have rows, or should have them."""
        horizon = self.horizon(dataset, run_time)
        unmade = self.unmade(dataset, run_time, heads)
        states: dict[str, SliceState] = {}
        for name in self._graph.driving(dataset):
            for cell in self.missing(dataset, name) if name in heads else ():
                states.setdefault(cell, _first_time(dataset, cell, name, horizon, unmade.get(cell, ())))
        if dataset.expect_within is not None:
            for cell in self.lacking(dataset, run_time, live, heads):
                states.setdefault(cell, self.expected(dataset, cell, run_time, heads))
        return states

    def horizon(self, dataset: Dataset, run_time: datetime) -> Horizon:
        """The run time, or with ``closes="watermark"`` the lowest watermark of the inputs that are not silent."""
        if dataset.closes == "schedule":
            return Horizon(run_time, dataset.wait)
        speaking = [name for name in self._graph.driving(dataset) if not self._is_silent(dataset, name, run_time)]
        if not speaking:
            return Horizon(run_time, dataset.wait)
        reached, behind = min((self._watermark(name) for name in speaking), key=lambda found: found[0])
        return Horizon(reached, dataset.wait, behind)

    def missing(self, dataset: Dataset, input_name: str) -> Iterator[str]:
        """The slices for which an input has rows, and that have no live receipt."""
        found = self._store.receipts.missing(dataset.name, input_name, WIDTH[dataset.grid])
        yield from (cell for cell in found if _is_ours(dataset, cell))

    def stale(self, name: str, grid: Grid, input_name: str) -> list[StaleSlice]:
        """The live slices of a dataset in whose time an input has changed since they were made.

        Old rows of a source may lie in coarser cells than its new ones: a change there may be one of each part.
        """
        grids = self._graph.cell_grids(input_name) or (grid,)
        widest, *coarser = sorted({min(WIDTH[grid], WIDTH[one]) for one in grids}, reverse=True)
        return self._store.receipts.stale(name, input_name, widest, coarser)

    def unmade(self, dataset: Dataset, run_time: datetime, heads: Mapping[str, Head]) -> dict[str, list[str]]:
        """Slice -> which slices of its inputs are still to come, as ``input lacks slice``.

        The parts of a slice (hours of a day) that have rows above them and were never made, and all those, parts or
        not, that their dataset expects and that lack rows.
        """
        found = dict[str, list[str]]()
        for name, part in self.unmade_parts(dataset, run_time, heads):
            found.setdefault(coarsened(part, dataset.grid), []).append(f"{name} lacks {part}")
        return found

    def unmade_parts(
        self, dataset: Dataset, run_time: datetime, heads: Mapping[str, Head], *, alike: bool = False
    ) -> Iterator[tuple[str, str]]:
        """The same as input and slice of it; with ``alike`` also of inputs on the dataset's own grid."""
        for name in self._graph.driving(dataset):
            other = self._graph[name]
            if other.is_source or other.is_stream or finest(other.grid, dataset.grid) != other.grid:
                continue
            parts = set[str]()
            if alike or other.grid != dataset.grid:
                parts.update(cell for above in self._graph.driving(other) for cell in self.missing(other, above))
            if other.expect_within is not None:
                live = self._store.receipts.live_slices(name)
                parts.update(self.lacking(other, run_time, live, heads))
            parts -= skipped_slices(self._store, other)
            yield from ((name, part) for part in sorted(parts))

    def lacking(
        self, dataset: Dataset, run_time: datetime, live: Mapping[str, LiveSlice], heads: Mapping[str, Head]
    ) -> list[str]:
        """The slices begun since the pipeline's start that have neither rows in the expected input nor a receipt."""
        expected = self._graph.expected_input(dataset)
        assert expected is not None
        start = dataset.start
        begun = cell_interval(cell_of(start, dataset.grid))
        first = begun.start if begun.start == start else begun.end
        arrived = {coarsened(cell, dataset.grid) for cell in self.cells_with_rows(expected)}
        as_coarse = GRIDS[GRIDS.index(dataset.grid) :]
        until = run_time if dataset.end is None else min(run_time, dataset.end)
        found = [
            cell
            for cell in cells_between(first, until, dataset.grid)
            if cell not in live and not any(coarsened(cell, grid) in arrived for grid in as_coarse)
        ]
        if found and dataset.name in heads and heads[dataset.name].restored:
            # One that was made and rolled back on purpose is left alone, as by every other rule.
            found = [cell for cell in found if self._store.receipts.first(dataset.name, cell) is None]
        return found

    def expected(self, dataset: Dataset, cell: str, run_time: datetime, heads: Mapping[str, Head]) -> SliceState:
        """A slice that lacks rows: it waits for them until its limit, and is overdue from then on."""
        assert dataset.expect_within is not None
        name, span = self._graph.expected_input(dataset), cell_interval(cell)
        limit = span.end + dataset.expect_within
        by = f"{limit:%Y-%m-%d %H:%M} UTC"
        if limit > run_time:
            reason = f"nothing has arrived in {name} yet; fails at {by}"
            return SliceState(event_slice(cell), "waiting", reason, make=False)
        cure = "Deliver it and run again"
        if name in heads:  # else there is no table yet that could tell the columns of an empty slice
            cure += (
                f"; or, if there is really nothing: `lakewright backfill --from {span.start:%Y-%m-%dT%H:%M} "
                f"--to {span.end:%Y-%m-%dT%H:%M} --select {dataset.name}` makes the slice empty and accepts it"
            )
        reason = f"nothing has arrived in {name} for {_in_words(cell)}; it was expected by {by}"
        return SliceState(event_slice(cell), "overdue", reason, cure=f"{cure}.")

    def _watermark(self, name: str) -> tuple[datetime, str]:
        """How far an input is in event time, and that in words."""
        if self._graph[name].is_source or self._graph[name].is_stream:
            seen = max(self.cells_with_rows(name), default=None)
            if seen is None:
                return _NEVER, f"nothing has arrived in {name} yet"
            # Somewhere in this cell lies the greatest event time: only its start has surely been reached.
            return cell_interval(seen).start, f"{name} has seen event times up to {seen}"
        there = {*self._store.receipts.live_slices(name), *skipped_slices(self._store, self._graph[name])}
        made = max(there, default=None)
        if made is None:
            return _NEVER, f"nothing of {name} is made yet"
        # A slice was closed when it was made: it counts to its end, and the one below need not wait for the next.
        return Slice.parse(made).interval.end, f"{name} is made up to {made}"

    def cells_with_rows(self, name: str) -> list[str]:
        """The event cells in which an input has rows."""
        cells = self._store.receipts.cells(name)
        return [cell for cell, head in cells.items() if cell is not None and cell != ANY_CELL and head.rows != 0]

    def _is_silent(self, dataset: Dataset, name: str, run_time: datetime) -> bool:
        """Whether nothing has arrived for an input for longer than ``idle``; never: since the pipeline's start."""
        if dataset.idle is None:
            return False
        heard = (self._last_heard(source) for source in self._sources(name))
        newest = max((at for at in heard if at is not None), default=dataset.start)
        return run_time - newest > dataset.idle

    def _last_heard(self, name: str) -> datetime | None:
        """When something last arrived: recorded by a run, or committed by a stream."""
        if self._graph[name].is_stream:
            last = self._store.receipts.history(name, limit=1)
            return last[0].committed_at if last else None
        arrival = self._store.arrivals.last(name)
        return None if arrival is None else arrival.recorded_at

    def _sources(self, name: str) -> set[str]:
        """The sources and streams whose arrivals reach an input slice by slice."""
        if self._graph[name].is_source or self._graph[name].is_stream:
            return {name}
        return {source for above in self._graph.driving(self._graph[name]) for source in self._sources(above)}


def _is_ours(dataset: Dataset, cell: str) -> bool:
    """Whether a slice lies between the start and the end of its pipeline: others make what is before and after."""
    span = cell_interval(cell)
    return span.end > dataset.start and (dataset.end is None or span.start < dataset.end)


def _first_time(dataset: Dataset, cell: str, input_name: str, horizon: Horizon, unmade: Sequence[str]) -> SliceState:
    if (why := horizon.still_open(cell)) is not None:
        return SliceState(event_slice(cell), "waiting", why, make=False)
    if unmade:
        more = f" and {len(unmade) - 1} more" if len(unmade) > 1 else ""
        return SliceState(event_slice(cell), "waiting", f"not whole yet: {unmade[0]}{more}", make=False)
    status: Status = "due" if cell in horizon.newest(dataset.grid) else "missing"
    return SliceState(event_slice(cell), status, f"{input_name} has rows for it and it was never made")


def skipped_slices(store: Store, dataset: Dataset) -> set[str]:
    """The slices of a branch that another branch makes: nobody waits for them."""
    if dataset.choice is None:
        return set()
    told = store.steps.left_out(dataset.name)
    skipped = {slice_id for slice_id, reason in told.items() if reason.startswith("skipped:")}
    return skipped - store.receipts.live_slices(dataset.name).keys()


def cap_overdue(states: dict[str, SliceState]) -> dict[str, SliceState]:
    """After a long silence the oldest overdue slices stand for all; the last of them tells how many follow."""
    overdue = sorted(state.slice for state in states.values() if state.status == "overdue")
    told, rest = overdue[:_MOST_OVERDUE], {one.id for one in overdue[_MOST_OVERDUE:]}
    if not rest:
        return states
    last = states[told[-1].id]
    more = f"; so were {len(rest):,} more, the last {max(rest)}"
    kept = {slice_id: state for slice_id, state in states.items() if slice_id not in rest}
    return {**kept, last.slice.id: replace(last, reason=last.reason + more)}


def _in_words(cell: str) -> str:
    """A cell as people say it.

    >>> _in_words("2026-01-05T07")
    '2026-01-05, hour 07'
    """
    day, _, hour = cell.partition("T")
    return f"{day}, hour {hour}" if hour else day
