"""Choosing: which branch of a choice makes a slice, by what is recorded and never by rows (Exclusive Choice).

Within a run a choice is asked once for each slice, whichever branch asks first, so that its branches cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from lakewright.errors import LakewrightError, StepFailed
from lakewright.lake.lake import Lake
from lakewright.lake.log import DeltaLog
from lakewright.model.cell_spans import CellSpan
from lakewright.model.columns import business_columns
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.slices import Slice
from lakewright.patterns.data_flow.exclusive_choice import Branch, ByParameter, ChoiceFacts, choose_branch
from lakewright.pipelines.cell_rows import rows_within
from lakewright.pipelines.choice_options import MOST_BRANCHES
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.states import DatasetPlan, SliceState, Wish
from lakewright.store import LiveSlice, Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Chooser", "Schemas", "choice_warnings", "new_skips", "recorded_schemas"]

Schemas: TypeAlias = "Callable[[str, int | None], StructType | None]"
"""The columns of a dataset at a version (None: now), as they are recorded or declared."""
_NEWEST = 2**62


@dataclass(frozen=True, slots=True)
class _Decision:
    branch: str
    reason: str


class Chooser:
    """Answers for one graph against one store; the same answer to all branches."""

    def __init__(self, graph: Graph, store: Store, schemas: Schemas | None = None) -> None:
        self._graph = graph
        self._store = store
        self._schemas = schemas or (lambda name, version: None)
        self._decided: dict[tuple[str, str, object], _Decision] = {}
        self._lock = Lock()

    def judged(
        self, dataset: Dataset, states: Mapping[str, SliceState], live: Mapping[str, LiveSlice], wish: Wish
    ) -> dict[str, SliceState]:
        """The same states; those of slices that another branch makes are skipped, the others tell why they are not."""
        branch = dataset.choice
        assert branch is not None
        found = dict(states)
        made = {name: self._store.receipts.live_slices(other) for name, other in branch.of.branches.items()}
        for slice_id, state in states.items():
            if state.status == "waiting" and not _is_over(branch, state.slice, wish):
                continue
            decision = self._decision(branch, state.slice, made, wish)
            told = f"{branch.choice} chose {decision.branch}: {decision.reason}"
            if decision.branch == branch.name:
                found[slice_id] = replace(state, reason=f"{state.reason}; {told}") if state.make else state
            else:
                stays = "; what was made of it before stays" if slice_id in live else ""
                found[slice_id] = SliceState(state.slice, "skipped", f"{told}{stays}", make=False)
        return found

    def _decision(
        self, branch: Branch, slice_: Slice, made: Mapping[str, Mapping[str, LiveSlice]], wish: Wish
    ) -> _Decision:
        key = (branch.choice, slice_.id, wish.run_time)
        with self._lock:
            if key not in self._decided:
                self._decided[key] = self._made_before(branch, slice_, made, wish) or self._asked(branch, slice_, wish)
            return self._decided[key]

    def _made_before(
        self, branch: Branch, slice_: Slice, made: Mapping[str, Mapping[str, LiveSlice]], wish: Wish
    ) -> _Decision | None:
        """The branch that has made the slice, unless the slice alone decides, or the run was told otherwise."""
        by = branch.of.by
        if by.by_slice or slice_.kind == "whole":
            return None
        if isinstance(by, ByParameter) and by.parameter in wish.parameters:
            return None
        there = [name for name, live in made.items() if slice_.id in live]
        if not there:
            return None
        newest = max(there, key=lambda name: self._committed(branch.of.branches[name], slice_))
        return _Decision(newest, "it has made this slice before")

    def _committed(self, dataset: str, slice_: Slice) -> float:
        receipt = self._store.receipts.live(dataset, slice_.id)
        return 0.0 if receipt is None else receipt.committed_at.timestamp()

    def _asked(self, branch: Branch, slice_: Slice, wish: Wish) -> _Decision:
        by, facts = branch.of.by, self._facts(branch, slice_, wish)
        where = f"choice '{branch.choice}', slice {slice_.id}"
        try:
            chosen = by.branch(facts)
            choose_branch(chosen, branch.of.branches, error=StepFailed)
        except LakewrightError as error:
            raise StepFailed(f"{where}: {error.message}", hint=error.hint) from error
        except Exception as error:
            raise StepFailed(
                f"{where}: the condition failed: {type(error).__name__}: {error}. The branches are "
                f"{', '.join(branch.of.branches)}. None of them has run."
            ) from error
        return _Decision(str(chosen), by.reason(facts))

    def _facts(self, branch: Branch, slice_: Slice, wish: Wish) -> ChoiceFacts:
        dataset = self._graph[branch.of.branches[branch.name]]
        declared = dataset.settings.parameters
        known = {name: one.default for name, one in declared.items() if one.default is not None}
        of, version = branch.of.by.of, None
        if of is not None and slice_.kind == "arrival":
            receipt = self._store.receipts.live(of, slice_.id)
            version = None if receipt is None else receipt.version
        interval = slice_.interval if slice_.kind == "event" else None
        came = self._came_with(dataset, slice_, wish)
        return ChoiceFacts(
            slice_id=slice_.id,
            time=came if interval is None else interval.start,
            run_time=wish.run_time,
            interval=interval,
            parameters={**known, **wish.parameters},
            schema=None if of is None else self._schemas(of, version),
            rows=None if of is None else self._rows(of, slice_),
        )

    def _came_with(self, dataset: Dataset, slice_: Slice, wish: Wish) -> datetime:
        """The logical time of the run that recorded an arrival, which a repeat sees too; else that of this run."""
        follows = self._graph.slicing[dataset.name].follows
        if slice_.kind != "arrival" or follows is None:
            return wish.run_time
        arrival = self._store.arrivals.get(follows, slice_.number)
        run = None if arrival is None or arrival.run_id is None else self._store.runs.get(arrival.run_id)
        return wish.run_time if run is None else run.run_time

    def _rows(self, name: str, slice_: Slice) -> int | None:
        if slice_.kind == "arrival":
            return self._store.receipts.rows_added(name, slice_.id)
        if slice_.kind == "whole":
            return self._store.receipts.rows_total(name, _NEWEST)
        grids = self._graph.cell_grids(name)
        if slice_.kind != "event" or not grids:
            return None
        return rows_within(self._store, name, CellSpan.of(slice_.interval, grids), upto=_NEWEST)


def _is_over(branch: Branch, slice_: Slice, wish: Wish) -> bool:
    """Whether a slice that waits can be decided: what a condition sees beyond the slice may still change."""
    return branch.of.by.by_slice and slice_.kind == "event" and slice_.interval.end <= wish.run_time


def recorded_schemas(graph: Graph, lake: Lake) -> Schemas:
    """The columns that logs tell, and else declarations, without system columns; no job runs."""

    def schema(name: str, version: int | None) -> StructType | None:
        from pyspark.sql.types import StructType  # a plan without such a choice does not load it

        log, declared = lake.log(name), graph.datasets.get(name)
        found = None
        if isinstance(log, DeltaLog) and (newest := log.latest()) is not None:
            found = log.schema_at(newest if version is None else version) or lake.read(name, version=version).schema
        elif declared is not None and declared.schema is not None:
            found = schema_from_ddl(declared.schema) if isinstance(declared.schema, str) else declared.schema
        elif declared is not None and declared.contract is not None:
            found = declared.contract.schema()
        if found is None:
            return None
        visible = set(business_columns(found.names))
        return StructType([field for field in found.fields if field.name in visible])

    return schema


def new_skips(store: Store, plan: DatasetPlan) -> list[SliceState]:
    """The slices that are skipped and of which no run has recorded it, or for another reason."""
    skipped = [state for state in plan.states if state.status == "skipped"]
    told = store.steps.left_out(plan.dataset.name) if skipped else {}
    return [state for state in skipped if told.get(state.slice.id) != f"skipped: {state.reason}"]


def choice_warnings(graph: Graph) -> list[str]:
    """Choices with so many branches that nobody can explain them."""
    choices = {d.choice.choice: d.choice.of for d in graph.datasets.values() if d.choice is not None}
    return [
        f"The choice '{name}' has {len(choice.branches)} branches, more than {MOST_BRANCHES}: can you explain it to a "
        "newcomer? Pipelines of their own with a start and an end may be easier to read."
        for name, choice in choices.items()
        if len(choice.branches) > MOST_BRANCHES
    ]
