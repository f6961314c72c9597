"""``fan_in=UnalignedFanIn(...)`` on a dataset: what it brings along, and what cannot go with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError
from lakewright.model.policies import Capture, Fail
from lakewright.model.times import Grid, cell_interval, cells_between, finest
from lakewright.patterns.data_flow.unaligned_fan_in import AtLeast, UnalignedFanIn
from lakewright.patterns.idempotency.data_overwrite import DataOverwrite
from lakewright.pipelines.definitions import Dataset, PrivateOutput

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["bring_fan_in", "check_parts", "fan_in_outputs", "partial_of"]

_LONGEST: dict[Grid, str] = {"hour": "2026-01-05T07", "day": "2026-01-05", "week": "2026-W02", "month": "2026-01"}


def bring_fan_in(name: str, layer: str, options: dict[str, Any]) -> None:
    """Refuse a fan-in that cannot be; with ``publish="private"`` the table of partial slices becomes an output."""
    fan_in = options.get("fan_in")
    if fan_in is None:
        return
    if not isinstance(fan_in, UnalignedFanIn):
        raise ConfigurationError(f"{name}: fan_in is an UnalignedFanIn(...), not {fan_in!r}.")
    if options.get("mode", "batch") == "stream":
        raise ConfigurationError(
            f"{name}: a stream has no slices that could lack parts, so fan_in says nothing.",
            hint="Give it to a step that reads the stream by event time.",
        )
    if options.get("event_time") is None:
        raise ConfigurationError(
            f"{name} has fan_in, but no event_time: only slices of event time have parts.",
            hint='Name the column: event_time="...".',
        )
    if options.get("sessions") is not None:
        raise ConfigurationError(f"{name}: sessions go on from slice to slice, so none can be made of some parts.")
    late, marker = options.get("late"), options.get("marker")
    if isinstance(late, Capture | Fail) or getattr(marker, "closed", "mutable") == "immutable":
        raise ConfigurationError(
            f"{name}: parts that come later fill a gap of fan_in, and late rows of it would be set aside or refused.",
            hint='Leave late out (the slice is made again), and closed="immutable" too.',
        )
    writer = options.get("writer")
    if writer is not None and not getattr(writer, "replaces_slice", False):
        raise ConfigurationError(
            f"{name}: a partial slice is replaced when it is whole, and {type(writer).__name__} keeps no slices apart.",
            hint="Leave the writer out, or use DataOverwrite().",
        )
    if fan_in.publish == "private":
        _bring_private(name, layer, options)


def _bring_private(name: str, layer: str, options: dict[str, Any]) -> None:
    if other := [option for option in ("outputs", "into", "wrap", "metadata") if options.get(option)]:
        raise ConfigurationError(
            f'{name}: publish="private" keeps partial rows in a table of its own, and does not go with '
            f"'{other[0]}', which would show them.",
            hint="Give that to a dataset that reads this one.",
        )
    options["outputs"] = {f"{name}_partial": PrivateOutput(options.get("writer") or DataOverwrite(), layer)}


def partial_of(dataset: Dataset) -> str | None:
    """The private table of partial slices, where they are not public."""
    private = dataset.fan_in is not None and dataset.fan_in.publish == "private"
    return f"{dataset.name}_partial" if private else None


def fan_in_outputs(dataset: Dataset) -> set[str]:
    """The outputs of a dataset that its step need not return."""
    partial = partial_of(dataset)
    return set() if partial is None else {partial}


def check_parts(graph: Graph, dataset: Dataset) -> None:
    """Refuse a fan-in whose slices have one part, or a rule that they can never meet."""
    if dataset.fan_in is None:
        return
    most = sum(_parts_of(graph, dataset).values())
    if most < 2:
        raise ConfigurationError(
            f"{dataset.name} has fan_in, but its slices have one part each: there is nothing that could be missing.",
            hint='Let it read a finer dataset (grid="hour") or several that are cut like it; of a source say how: '
            'UnalignedFanIn(parts="hour").',
        )
    rule = dataset.fan_in.rule
    if isinstance(rule, AtLeast) and rule.parts is not None and rule.parts > most:
        raise ConfigurationError(
            f"{dataset.name}: at least {rule.parts} parts are wanted, but a {dataset.grid} of it has at most {most}."
        )


def _parts_of(graph: Graph, dataset: Dataset) -> Mapping[str, int]:
    """Input -> how many parts of it a slice has, at most."""
    span = cell_interval(_LONGEST[dataset.grid])
    found = {}
    for name in graph.driving(dataset):
        grid = graph.cell_grid(name) or dataset.grid
        finer = finest(grid, dataset.grid) == grid
        found[name] = len(list(cells_between(span.start, span.end, grid))) if finer else 1
    return found
