"""The parameters of a run: checked against what its pipelines declare, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakewright.errors import UnknownNameError
from lakewright.model.parameters import check_parameters
from lakewright.pipelines.graph import Graph

__all__ = ["checked_parameters", "known_parameters"]


def checked_parameters(graph: Graph, names: Iterable[str], given: Mapping[str, str] | None) -> dict[str, str]:
    """What a run was given; refused where a value is missing or unknown, with those that there are."""
    given = dict(given or {})
    pipelines = {graph[name].pipeline: graph[name].settings.parameters for name in names}
    declared = {name for parameters in pipelines.values() for name in parameters}
    if unknown := [name for name in given if name not in declared]:
        error = UnknownNameError("parameter", unknown[0], declared)
        error.hint = error.hint or f'A pipeline declares it: Pipeline(..., parameters={{"{unknown[0]}": ["a", "b"]}}).'
        raise error
    for parameters in pipelines.values():
        check_parameters(parameters, {name: value for name, value in given.items() if name in parameters})
    return given


def known_parameters(graph: Graph, names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The same with the defaults: what the steps of the run see."""
    found = {
        name: parameter.default
        for dataset in names
        for name, parameter in graph[dataset].settings.parameters.items()
        if parameter.default is not None
    }
    return {**found, **given}
