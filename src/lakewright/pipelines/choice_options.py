"""``pipeline.choose(...)``: datasets as the branches of a choice, and what a choice cannot be made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.patterns.data_flow.exclusive_choice import Branch, ByParameter, ExclusiveChoice
from lakewright.pipelines.definitions import Dataset, Settings

if TYPE_CHECKING:
    from lakewright.pipelines.graph import Graph

__all__ = ["MOST_BRANCHES", "as_branches", "check_choice"]

MOST_BRANCHES = 5
"""Beyond so many, ``plan`` warns."""


def as_branches(name: str, choice: ExclusiveChoice, datasets: list[Dataset], settings: Settings) -> list[Dataset]:
    """The same datasets, those of the choice marked as its branches."""
    if not isinstance(choice, ExclusiveChoice):
        raise ConfigurationError(f"choice '{name}': {choice!r} is none. Use ExclusiveChoice(by=..., branches={{...}}).")
    known = {dataset.name: dataset for dataset in datasets}
    for branch, dataset in choice.branches.items():
        if dataset not in known:
            raise UnknownNameError(f"dataset declared before the choice '{name}' in its pipeline", dataset, known)
        one = known[dataset]
        if one.choice is not None:
            raise ConfigurationError(f"{dataset} is a branch of '{one.choice.choice}' and of '{name}'.")
        if one.is_source or one.is_stream or one.chained:
            raise ConfigurationError(
                f"choice '{name}': {dataset} (branch {branch}) is a source, a stream, or made of its own earlier "
                "slices; a branch is a step whose slices can be left out."
            )
    by = choice.by
    if isinstance(by, ByParameter):
        _check_parameter(name, by, choice, settings)
    mine = {dataset: Branch(name, branch, choice) for branch, dataset in choice.branches.items()}
    return [replace(one, choice=mine[one.name]) if one.name in mine else one for one in datasets]


def _check_parameter(name: str, by: ByParameter, choice: ExclusiveChoice, settings: Settings) -> None:
    if by.parameter not in settings.parameters:
        raise UnknownNameError(f"parameter of the pipeline {settings.pipeline}", by.parameter, settings.parameters)
    for value in settings.parameters[by.parameter].values:
        if (branch := by.branches.get(value, value)) not in choice.branches:
            raise ConfigurationError(
                f"choice '{name}': the value '{value}' of {by.parameter} names no branch ('{branch}'). The branches "
                f"are {', '.join(choice.branches)}."
            )


def check_choice(graph: Graph, dataset: Dataset) -> None:
    """Refuse branches that are cut in different ways, and a condition that looks at what no branch reads."""
    if dataset.choice is None:
        return
    mine = graph.slicing[dataset.name]
    for branch, other in dataset.choice.of.branches.items():
        if (cut := graph.slicing[other]) != mine:
            raise ConfigurationError(
                f"choice '{dataset.choice.choice}': {dataset.name} is cut by {mine.kind} {mine.grid}, and {other} "
                f"(branch {branch}) by {cut.kind} {cut.grid}; one decision has to fit both.",
                hint="Give them the same grid, and let them follow the same input.",
            )
    of = dataset.choice.of.by.of
    if of is not None and of not in {*graph.owners, *graph.adopted}:
        raise UnknownNameError(f"input for the choice '{dataset.choice.choice}'", of, graph.owners)
