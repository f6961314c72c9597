"""Edges: who reads whom among the datasets that are shown, and how, for pictures of the graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lakewright.pipelines.definitions import Dataset, Slicing
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.rules import rules_in_words

__all__ = ["Edge", "cut_in_words", "edges_into", "marks_of"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One input of a dataset."""

    reads: str
    """The dataset that makes what is read."""
    how: str
    """The reference, where it is declared and not the rows of the same slice."""
    shown: bool
    """Whether what is read is part of the picture."""
    adopted: bool
    """Whether no pipeline makes it."""


def edges_into(dataset: Dataset, graph: Graph, shown: Collection[str]) -> list[Edge]:
    """What a dataset reads, each dataset once, in the order in which its inputs are declared."""
    found: dict[str, Edge] = {}
    for given in dataset.inputs:
        reference = None if given.reference is None else type(given.reference).__name__
        how = "join" if given.join is not None else "" if reference in (None, "SameSlice") else str(reference)
        for name in given.datasets:
            owner = graph.owners.get(name, name)
            if owner != dataset.name:
                found.setdefault(owner, Edge(owner, how, owner in shown, owner not in graph.datasets))
    return list(found.values())


def marks_of(dataset: Dataset) -> list[str]:
    """What is special about a dataset, in words: a source, a stream, its rule, the choice that it is a branch of."""
    marks = [type(dataset.source).__name__] if dataset.source is not None else []
    marks += ["stream"] if dataset.is_stream else []
    marks += [f"goes to {dataset.into.shown}"] if dataset.into is not None else []
    return marks + rules_in_words(dataset)


def cut_in_words(slicing: Slicing) -> str:
    """How a dataset is cut."""
    if slicing.kind == "event":
        return f"by {slicing.grid}"
    return "whole" if slicing.kind == "whole" else f"by {slicing.kind}"
