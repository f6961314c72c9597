"""Branches: the datasets of a plan as a tree, and those that look alike folded into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakewright.pipelines.edges import Edge
from lakewright.pipelines.standing import Standing
from lakewright.pipelines.states import DatasetPlan

__all__ = ["Node", "folded", "meeting"]

_FOLD_FROM = 4


@dataclass
class Node:
    """One dataset of the picture."""

    one: DatasetPlan
    standing: Standing
    edges: list[Edge]
    above: Node | None = None
    below: list[Node] = field(default_factory=list)
    depth: int = 0
    alike: list[Node] = field(default_factory=list)
    """Branches that look the same and are folded into this one."""

    @property
    def name(self) -> str:
        return self.one.dataset.name


def meeting(parents: Sequence[Node]) -> Node | None:
    """The lowest node that all of them are, or stand below; None where there is none."""
    found: Node | None = None
    for number, parent in enumerate(parents):
        other: Node | None = parent
        if number == 0:
            found = parent
            continue
        while found is not other:
            if found is None or other is None:
                return None
            if found.depth >= other.depth:
                found = found.above
            else:
                other = other.above
    return found


def folded(nodes: Sequence[Node], look: Callable[[Node, Mapping[str, int]], object]) -> list[Node]:
    """The same branches; where many are alike, the first stands for all of them."""
    if len(nodes) < _FOLD_FROM:
        return list(nodes)
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        places = {name: number for number, name in enumerate(_names(node))}
        groups.setdefault(look(node, places), []).append(node)
    kept = []
    for group in groups.values():
        if len(group) < _FOLD_FROM:
            kept += group
        else:
            group[0].alike = group[1:]
            kept.append(group[0])
    order = {id(node): number for number, node in enumerate(nodes)}
    return sorted(kept, key=lambda node: order[id(node)])


def _names(node: Node) -> Iterator[str]:
    yield node.name
    for one in node.below:
        yield from _names(one)
