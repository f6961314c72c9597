"""Graph: the declared datasets, checked and in order.

Everything that can be known before a run is checked here: two owners of one name, unknown inputs, cycles,
references that cannot work. Each complaint gives file, line and a hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from lakewright.errors import ConfigurationError, DefinitionError, UnknownNameError, did_you_mean
from lakewright.model.policies import Revisit
from lakewright.model.references import AsOf, Lookback, Pinned, Previous, Reference, SameSlice, Whole
from lakewright.model.times import Grid, finest
from lakewright.patterns.error_management.static_late_data_integrator import stateful_needs_before
from lakewright.pipelines.choice_options import check_choice
from lakewright.pipelines.definitions import Dataset, Input, Slicing
from lakewright.pipelines.fan_in_options import check_parts
from lakewright.pipelines.guard_checks import check_guards
from lakewright.pipelines.joined_inputs import check_join, refuse_join_at_rest
from lakewright.pipelines.session_options import check_sessions

__all__ = ["Graph"]

_SELECTORS = ("tag", "layer", "pipeline")


class Graph:
    """All datasets of a project."""

    def __init__(self, datasets: Iterable[Dataset], *, adopted: Iterable[str] = ()) -> None:
        self.adopted = frozenset(adopted)
        self.datasets = _by_name(datasets)
        self.owners = {
            **{name: name for name in self.datasets},
            **{output: d.name for d in self.datasets.values() for output in d.outputs},
        }
        self._check_inputs()
        self._check_destinations()
        self.order = self._sorted()
        self.slicing: dict[str, Slicing] = {}
        for name in self.order:
            self.slicing[name] = self._slicing(self.datasets[name])
        for name in self.order:
            self._check_references(self.datasets[name])

    def __getitem__(self, name: str) -> Dataset:
        if name not in self.datasets:
            raise UnknownNameError("dataset", name, self.datasets)
        return self.datasets[name]

    def stream(self, name: str) -> Dataset:
        """The stream of this name; refused where there is none, or it is something else."""
        dataset = self[name]
        if not dataset.is_stream:
            raise ConfigurationError(f'{name}: not a stream. Declare one with mode="stream".')
        return dataset

    def upstream(self, name: str) -> set[str]:
        """The datasets that a dataset reads directly."""
        names = {self.owners.get(one, one) for i in self.datasets[name].inputs for one in i.datasets}
        return {other for other in names if other in self.datasets and other != name}

    @cached_property
    def _downstream(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in self.datasets}
        for name in self.datasets:
            for other in self.upstream(name):
                found[other].add(name)
        return found

    def downstream(self, name: str) -> set[str]:
        """The datasets that read a dataset directly."""
        return self._downstream[name]

    def closure(self, names: Iterable[str], *, up: bool = False, down: bool = False) -> set[str]:
        """The names with everything above or below them."""
        found = set(names)
        todo = list(found)
        while todo:
            name = todo.pop()
            near = (self.upstream(name) if up else set()) | (self.downstream(name) if down else set())
            todo += near - found
            found |= near
        return found

    def select(self, patterns: Sequence[str]) -> list[str]:
        """The datasets that patterns name, as dbt does: ``name``, ``+name``, ``name+``, ``tag:x``, ``layer:silver``."""
        if not patterns:
            return list(self.order)
        found: set[str] = set()
        for pattern in patterns:
            core = pattern.strip("+")
            picked = self._pick(core)
            if pattern.startswith("+"):
                picked = self.closure(picked, up=True) if not pattern.endswith("+") else picked
            if pattern.startswith("+") and pattern.endswith("+"):
                picked = self.closure(picked, up=True) | self.closure(picked, down=True)
            elif pattern.endswith("+"):
                picked = self.closure(picked, down=True)
            found |= picked
        return [name for name in self.order if name in found]

    def _pick(self, core: str) -> set[str]:
        method, _, value = core.partition(":")
        if value:
            if method not in _SELECTORS:
                raise UnknownNameError("selector", method, _SELECTORS)
            picked = {name for name, d in self.datasets.items() if value in _values(method, d)}
            if not picked:
                raise UnknownNameError(
                    f"dataset with {method}", value, {v for d in self.datasets.values() for v in _values(method, d)}
                )
            return picked
        return {self[core].name}

    def reference(self, dataset: Dataset, given: Input) -> Reference:
        """How an input is referred to: as declared, or the default for the pair."""
        if given.reference is not None:
            return given.reference
        mine = self.slicing[dataset.name]
        if mine.kind == "event":
            return SameSlice() if self.cell_grid(given.dataset) is not None else Whole()
        if mine.kind == "arrival":
            return SameSlice() if given.dataset == mine.follows else Whole()
        return SameSlice()

    def streamed_input(self, dataset: Dataset) -> Input | None:
        """The input that a stream follows: the one that is not read in some other way by declaration."""
        if not dataset.is_stream or dataset.is_source:
            return None
        return next((i for i in dataset.inputs if i.reference is None), None)

    def reads_changes(self, dataset: Dataset) -> bool:
        """Whether a stream follows the changes of a table, not only rows that are added to it."""
        given = self.streamed_input(dataset)
        added = dataset.sessions is not None or (given is not None and given.join is not None)
        return given is not None and dataset.writer is not None and not added

    def follows_images(self, dataset: Dataset) -> bool:
        """Whether a stream applies its step to rows as they were and as they became, each apart."""
        return self.reads_changes(dataset) and not getattr(dataset.writer, "by_position", False)

    def needs_change_feed(self, name: str) -> bool:
        """Whether a stream follows the changes of a dataset."""
        readers = (self.datasets[other] for other in self._downstream.get(name, ()))
        return any(
            self.reads_changes(reader) and (given := self.streamed_input(reader)) is not None and given.dataset == name
            for reader in readers
        )

    def expected_input(self, dataset: Dataset) -> str | None:
        """The input in which each slice is expected to receive rows: the first that is cut like the dataset."""
        same = (i.dataset for i in dataset.inputs if isinstance(self.reference(dataset, i), SameSlice))
        return next(same, None)

    def driving(self, dataset: Dataset) -> list[str]:
        """The inputs that are cut as the dataset is: those that its slices wait for."""
        return [i.dataset for i in dataset.inputs if isinstance(self.reference(dataset, i), SameSlice | Lookback)]

    def cell_grid(self, name: str) -> Grid | None:
        """The grid of the event cells that a dataset's new rows are kept by, or None where it has none."""
        dataset = self.datasets.get(name)
        if dataset is None or dataset.event_time is None:
            return None
        if dataset.is_source or dataset.is_stream:
            users = [self.datasets[other] for other in self.downstream(name)]
            parts = [d.fan_in.parts for d in users if d.fan_in is not None and d.fan_in.parts is not None]
            return finest("day", *[d.grid for d in users if d.event_time is not None], *parts)
        return dataset.grid

    def cell_grids(self, name: str) -> tuple[Grid, ...]:
        """The grids of the cells in which a dataset's rows may lie, the finest first.

        Those of a source are what was declared when they arrived: since then its consumers may have changed.
        """
        grid, dataset = self.cell_grid(name), self.datasets.get(name)
        if grid is None or dataset is None:
            return ()
        return ("hour", "day") if dataset.is_source or dataset.is_stream else (grid,)

    def _slicing(self, dataset: Dataset) -> Slicing:
        if dataset.is_source or dataset.is_stream:
            return Slicing("arrival")
        if dataset.event_time is not None:
            return Slicing("event", dataset.grid)
        followed = [
            i.dataset
            for i in dataset.inputs
            if (i.reference is None or isinstance(i.reference, SameSlice)) and self.has_arrivals(i.dataset)
        ]
        if len(followed) == 1:
            return Slicing("arrival", follows=followed[0])
        return Slicing("whole")

    def has_arrivals(self, name: str) -> bool:
        """Whether each row of a dataset tells the arrival that it came with."""
        dataset = self.datasets.get(name)
        if dataset is None or self.slicing[name].kind != "arrival":
            return False
        if dataset.is_replaced:  # each arrival is the whole: whoever reads it reads it whole
            return False
        return dataset.is_source or dataset.appends or (dataset.writer is not None and dataset.writer.replaces_slice)

    def _sorted(self) -> list[str]:
        sorter = TopologicalSorter({name: sorted(self.upstream(name)) for name in sorted(self.datasets)})
        try:
            return list(sorter.static_order())
        except CycleError as error:
            names = list(reversed(error.args[1]))
            raise self._complaint(
                self.datasets[names[0]], f"the datasets read each other in a circle: {' -> '.join(names)}."
            ) from None

    def _check_inputs(self) -> None:
        known = {*self.owners, *self.adopted}
        for dataset in self.datasets.values():
            for given, name in ((one, name) for one in dataset.inputs for name in one.datasets):
                if name not in known:
                    raise self._complaint(
                        dataset,
                        f"{dataset.name} reads '{name}', which no pipeline declares.",
                        hint=did_you_mean(name, known)
                        or f"Declare it, or name another one: inputs={{'{given.parameter}': 'dataset'}}.",
                    )
            if dataset.function is not None and not dataset.inputs:
                raise self._complaint(dataset, f"{dataset.name} has no input: a step's parameters name its inputs.")

    def _check_destinations(self) -> None:
        taken: dict[str, Dataset] = {}
        for dataset in self.datasets.values():
            for name in (name for given in dataset.inputs for name in given.datasets):
                other = self.datasets.get(name)
                if other is not None and other.into is not None:
                    raise self._complaint(
                        dataset,
                        f"{dataset.name} reads {other.name}, which goes to {other.into.shown}, outside the lake.",
                        hint="Let both read the same dataset of the lake, or declare the table or topic as a source of "
                        "its own.",
                    )
            if dataset.into is not None:
                first = taken.setdefault(dataset.into.shown, dataset)
                if first is not dataset:
                    raise self._complaint(
                        dataset,
                        f"{dataset.name} and {first.name} ({first.place}) both go to {dataset.into.shown}: each would "
                        "replace the rows of the other.",
                        hint="Give one of them a table or topic of its own.",
                    )

    def _check_replica(self, dataset: Dataset) -> None:
        original = self.datasets.get(dataset.inputs[0].dataset) if dataset.replica is not None else None
        if dataset.replica is None or original is None:
            return
        try:
            dataset.replica.check_contract(dataset.name, original.contract)
        except ConfigurationError as error:
            raise self._complaint(dataset, error.message, hint=error.hint) from None

    def _check_references(self, dataset: Dataset) -> None:
        for given in dataset.inputs:
            reference = self.reference(dataset, given)
            other = self.datasets.get(given.dataset)
            if isinstance(reference, AsOf) and (other is None or other.valid_from is None):
                raise self._complaint(
                    dataset,
                    f"{dataset.name} reads {given.dataset} as of {reference.column}, but that keeps no versions.",
                    hint='Give it writer=Merger(keys=[...], history=Scd2(valid_from="...")), or, below a captured '
                    "table, RowVersions(keys=[...]).",
                )
            if isinstance(reference, Previous) and given.dataset != dataset.name:
                raise self._complaint(
                    dataset,
                    f"Previous() refers to the step's own output; {given.parameter} is not {dataset.name}.",
                )
            if (
                isinstance(reference, SameSlice | Lookback)
                and self.slicing[dataset.name].kind == "event"
                and self.cell_grid(given.dataset) is None
            ):
                raise self._complaint(
                    dataset,
                    f"{dataset.name} is cut by event time, but its input {given.dataset} names no event_time.",
                    hint=f"Give it an event_time, or read it whole: inputs={{'{given.parameter}': Whole()}}.",
                )
            if (
                isinstance(reference, SameSlice | Lookback)
                and self.slicing[dataset.name].kind == "event"
                and {dataset.grid, self.cell_grid(given.dataset)} == {"week", "month"}
            ):
                raise self._complaint(
                    dataset,
                    f"{dataset.name} is cut by {dataset.grid}s, and its input {given.dataset} by the other: a week may "
                    "lie in two months, so neither is made of the other.",
                    hint="Make both of a dataset that is cut by days.",
                )
            if given.dataset == dataset.name and not isinstance(reference, Previous):
                raise self._complaint(dataset, f"{dataset.name} reads itself.", hint="Use inputs={...: Previous()}.")
        try:
            refuse_join_at_rest(dataset)
        except ConfigurationError as error:
            raise self._complaint(dataset, error.message, hint=error.hint) from None
        self._check_closing(dataset)
        self._check_revisiting(dataset)
        self._check_restoring(dataset)
        self._check_preserved(dataset)
        self._check_stream(dataset)
        self._check_replica(dataset)
        try:
            check_guards(self, dataset)
            check_sessions(self, dataset)
            check_parts(self, dataset)
            check_choice(self, dataset)
        except ConfigurationError as error:
            raise self._complaint(dataset, error.message, hint=error.hint) from None

    def _check_closing(self, dataset: Dataset) -> None:
        driving = [i for i in dataset.inputs if isinstance(self.reference(dataset, i), SameSlice | Lookback)]
        if dataset.closes == "watermark" and not driving:
            raise self._complaint(
                dataset,
                f'{dataset.name} has closes="watermark", but reads no input slice by slice, so nothing tells how far '
                "event time is.",
                hint='Read one by SameSlice() or Lookback("..."), or leave closes out.',
            )
        if dataset.expect_within is not None and self.expected_input(dataset) is None:
            raise self._complaint(
                dataset,
                f"{dataset.name} has expect_within, but reads no input by SameSlice(), so no slice can lack rows.",
                hint="Read the input that is expected by SameSlice(), or leave expect_within out.",
            )

    def _check_revisiting(self, dataset: Dataset) -> None:
        if not isinstance(dataset.late, Revisit) or dataset.late.placement == "before":
            return
        apart = dataset.writer is None or dataset.writer.replaces_slice
        if dataset.chained or dataset.depends_on_past or not apart:
            error = stateful_needs_before(dataset.name, dataset.late.placement)
            raise self._complaint(dataset, error.message, hint=error.hint)

    def _check_restoring(self, dataset: Dataset) -> None:
        if private := [name for name, one in dataset.outputs.items() if getattr(one.writer, "restores", False)]:
            raise self._complaint(
                dataset,
                f"{dataset.name}: the private output {private[0]} cannot go back by itself (StatefulMerger): the "
                "public one decides.",
                hint="Make it a dataset of its own.",
            )
        if getattr(dataset.writer, "restores", False) and self.slicing[dataset.name].kind == "whole":
            raise self._complaint(
                dataset,
                f"{dataset.name} has a StatefulMerger and is one slice, the whole: there is no earlier state to go "
                "back to.",
                hint="Let it follow the arrivals of one source, or name its event_time; or use DataOverwrite().",
            )

    def _check_preserved(self, dataset: Dataset) -> None:
        merged = dataset.writer is not None and not dataset.writer.replaces_slice
        if dataset.rows == "preserve" and merged and self.slicing[dataset.name].kind != "whole":
            raise self._complaint(
                dataset,
                f'{dataset.name} declares rows="preserve", by which a slice with another number of rows is put back as '
                f"it was; what {type(dataset.writer).__name__} merges is one table, in which no slice can be told.",
                hint="Leave rows out, or declare it on a step with writer=DataOverwrite() that the merged one reads.",
            )

    def _check_stream(self, dataset: Dataset) -> None:
        if not dataset.is_stream or dataset.is_source:
            return
        followed = [i for i in dataset.inputs if i.reference is None]
        if len(followed) != 1:
            named = ", ".join(i.parameter for i in dataset.inputs)
            raise self._complaint(
                dataset,
                f"{dataset.name} is a stream with {len(followed)} inputs that it follows ({named}); it follows one.",
                hint=f"Say how the others are read: inputs={{'{dataset.inputs[-1].parameter}': Whole()}}. Two streams "
                "are one input when they are joined: inputs={'pairs': DynamicJoiner(left=..., right=..., ...)}.",
            )
        if other := [i for i in dataset.inputs if isinstance(i.reference, SameSlice | Lookback | Previous | Pinned)]:
            raise self._complaint(
                dataset,
                f"{dataset.name} is a stream, which has no slices: {other[0].parameter} cannot be read by "
                f"{type(other[0].reference).__name__}().",
                hint="Read it whole, or as of a column.",
            )
        if dataset.skew_buffer is not None and self.reads_changes(dataset):
            raise self._complaint(
                dataset,
                f"{dataset.name} follows the changes of {followed[0].dataset}, of which a skew_buffer would let "
                "newer ones overtake older ones.",
                hint="Leave skew_buffer out, or the writer: then rows are only added.",
            )
        if followed[0].join is not None:
            try:
                check_join(self, dataset, followed[0])
            except ConfigurationError as error:
                raise self._complaint(dataset, error.message, hint=error.hint) from None
            return
        above = self.datasets.get(followed[0].dataset)
        adds = dataset.writer is None or dataset.sessions is not None
        if adds and (above is None or not above.appends):
            raise self._complaint(
                dataset,
                f"{dataset.name} adds rows and never removes any, but {followed[0].dataset} is replaced or merged, so "
                "that rows of it change.",
                hint="Give it writer=Merger(keys=[...]): then it follows every change.",
            )

    def _complaint(self, dataset: Dataset, message: str, *, hint: str | None = None) -> DefinitionError:
        return DefinitionError(message, file=dataset.place.file, line=dataset.place.line, hint=hint)


def _values(method: str, dataset: Dataset) -> tuple[str, ...]:
    if method == "tag":
        return (*dataset.tags, *dataset.settings.tags)
    return (dataset.layer if method == "layer" else dataset.pipeline,)


def _by_name(datasets: Iterable[Dataset]) -> dict[str, Dataset]:
    found: dict[str, Dataset] = {}
    owners: dict[str, Dataset] = {}
    for dataset in datasets:
        for name in (dataset.name, *dataset.outputs):
            if name in owners:
                raise DefinitionError(
                    f"'{name}' is declared twice; the first time at {owners[name].place}.",
                    file=dataset.place.file,
                    line=dataset.place.line,
                    hint="Each dataset has one owner: rename one of them.",
                )
            owners[name] = dataset
        found[dataset.name] = dataset
    return found
