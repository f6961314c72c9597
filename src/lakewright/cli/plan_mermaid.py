"""A plan as a Mermaid flowchart: text that a Markdown page shows as a picture.

Guarantee:
    The same plan gives the same text. Whatever a dataset is called, the text is a valid flowchart: ids are made of
    letters, digits and underscores, no two are the same, and labels are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from lakewright.cli.plan_expected import in_words
from lakewright.pipelines.durations import Forecast
from lakewright.pipelines.edges import Edge, cut_in_words, edges_into, marks_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.standing import blocked_by, standing_of
from lakewright.pipelines.states import DatasetPlan

__all__ = ["mermaid_of"]

_CLASSES = {
    "due": "fill:#d7f0dd,stroke:#2f7d46,color:#12321c",
    "stale": "fill:#efdcf5,stroke:#7f3d96,color:#32133d",
    "following": "fill:#dff1f4,stroke:#2b7a94,color:#0f3440,stroke-dasharray:6 3",
    "fresh": "fill:#f1f1f1,stroke:#8a8a8a,color:#333333",
    "held": "fill:#fbf0cf,stroke:#a37b12,color:#40310a",
    "failing": "fill:#f9d9d7,stroke:#b3261e,color:#410e0b",
    "empty": "fill:#ffffff,stroke:#8a8a8a,color:#555555,stroke-dasharray:4 3",
    "elsewhere": "fill:#d8eef5,stroke:#2b7a94,color:#0f3440",
    "outside": "fill:#ffffff,stroke:#8a8a8a,color:#555555,stroke-dasharray:4 3",
    "critical": "stroke-width:4px",
}
_UNSAFE = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;", "#": "#35;"}


def mermaid_of(plan: Plan, graph: Graph, forecast: Forecast) -> str:
    """The flowchart of a plan, with a subgraph for each pipeline and a class for how each dataset stands."""
    return "".join(f"{line}\n" for line in _Chart(plan, graph, forecast).lines())


class _Chart:
    def __init__(self, plan: Plan, graph: Graph, forecast: Forecast) -> None:
        self._plan, self._graph, self._forecast = plan, graph, forecast
        self._blocked = blocked_by(plan, graph)
        names = {one.dataset.name for one in plan.datasets}
        self._edges = {one.dataset.name: edges_into(one.dataset, graph, names) for one in plan.datasets}
        outside = {edge.reads: edge for edges in self._edges.values() for edge in edges if not edge.shown}
        self._outside = [outside[name] for name in sorted(outside)]
        self._ids = _ids("d", [*(one.dataset.name for one in plan.datasets), *sorted(outside)])
        self._pipelines = sorted({one.dataset.pipeline for one in plan.datasets})
        self._used: set[str] = set()

    def lines(self) -> Iterator[str]:
        yield "flowchart LR"
        if not self._plan.datasets:
            yield '  nothing["There is no dataset to show."]'
            return
        ids = _ids("p", self._pipelines)
        for pipeline in self._pipelines:
            yield f"  subgraph {ids[pipeline]}[{_quoted(pipeline)}]"
            for one in self._plan.datasets:
                if one.dataset.pipeline == pipeline:
                    yield f"    {self._node(one)}"
            yield "  end"
        for edge in self._outside:
            yield f"  {self._outsider(edge)}"
        for name, edges in self._edges.items():
            for edge in edges:
                yield f"  {self._ids[edge.reads]} {_arrow(edge)} {self._ids[name]}"
        yield from self._choices()
        if self._forecast.chain:
            self._used.add("critical")
            yield f"  class {','.join(self._ids[name] for name in self._forecast.chain)} critical"
        for name, look in _CLASSES.items():
            if name in self._used:
                yield f"  classDef {name} {look}"

    def _node(self, one: DatasetPlan) -> str:
        dataset = one.dataset
        follows = not self._forecast.datasets[dataset.name].certain
        standing = standing_of(one, self._plan, blocked=self._blocked.get(dataset.name), follows=follows)
        self._used.add(standing.kind)
        told = [dataset.name, f"{dataset.layer}, {cut_in_words(one.slicing)}", *marks_of(dataset), standing.words]
        expected = self._forecast.datasets[dataset.name]
        if expected.slices and expected.seconds is not None:
            told.append(f"about {in_words(expected.seconds)}")
        begin, end = ("[(", ")]") if dataset.is_source else ("([", "])") if dataset.is_stream else ("[", "]")
        return f"{self._ids[dataset.name]}{begin}{_quoted(*told)}{end}:::{standing.kind}"

    def _outsider(self, edge: Edge) -> str:
        """What is read and not part of the picture."""
        self._used.add("outside")
        other = self._graph.datasets.get(edge.reads)
        told = "adopted" if other is None else f"{other.layer}, pipeline {other.pipeline}, not selected"
        return f"{self._ids[edge.reads]}[{_quoted(edge.reads, told)}]:::outside"

    def _choices(self) -> Iterator[str]:
        """A diamond for each choice, with an arrow to each branch of it that is shown."""
        branches: dict[tuple[str, str], list[tuple[str, str]]] = {}
        by: dict[tuple[str, str], str] = {}
        for one in self._plan.datasets:
            if (choice := one.dataset.choice) is not None:
                key = (one.dataset.pipeline, choice.choice)
                branches.setdefault(key, []).append((choice.name, one.dataset.name))
                by[key] = choice.of.by.in_words()
        for number, (key, shown) in enumerate(sorted(branches.items())):
            yield f"  c_{number}{{{_quoted(key[1], by[key])}}}"
            for branch, name in sorted(shown):
                yield f"  c_{number} -. {_quoted(branch)} .-> {self._ids[name]}"


def _arrow(edge: Edge) -> str:
    """Solid where rows flow slice by slice; dotted, with its name, where another reference was declared."""
    return "-->" if not edge.how else f"-. {_quoted(edge.how)} .->"


def _ids(kind: str, names: Sequence[str]) -> Mapping[str, str]:
    """Name -> an id that is safe and its own; the prefix keeps words such as ``end`` from meaning something."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = f"{kind}_" + re.sub(r"[^A-Za-z0-9_]", lambda odd: f"_{ord(odd[0]):x}_", name)
        unique, number = plain, 1
        while unique in taken:
            number += 1
            unique = f"{plain}_{number}"
        taken.add(unique)
        found[name] = unique
    return found


def _quoted(*lines: str) -> str:
    """Lines as one quoted label; what would end it, or be read as markup, is written as an entity."""
    safe = ("".join(_UNSAFE.get(one, one if one.isprintable() else " ") for one in line) for line in lines)
    return f'"{"<br/>".join(safe)}"'
