"""The graph of a plan in the terminal: every dataset once, with how it stands and how long it takes.

A dataset with one input stands below it. One with several stands below what all of them come from, with its inputs
behind an arrow; so branches stay side by side, and those that are alike can be folded into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from lakewright.cli.plan_branches import Node, folded, meeting
from lakewright.cli.plan_expected import in_words
from lakewright.pipelines.durations import Forecast
from lakewright.pipelines.edges import Edge, cut_in_words, edges_into, marks_of
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.standing import Kind, blocked_by, standing_of

__all__ = ["WIDTH", "graph_of"]

WIDTH = 100
_DEEPEST = 14
_SIGNS: dict[Kind, tuple[str, str]] = {
    "due": ("●", "green"),
    "stale": ("◐", "magenta"),
    "following": ("◔", "cyan"),
    "fresh": ("○", "dim"),
    "held": ("◌", "yellow"),
    "failing": ("✗", "bold red"),
    "empty": ("·", "dim"),
    "elsewhere": ("◇", "cyan"),
}


def graph_of(plan: Plan, graph: Graph, forecast: Forecast, *, width: int = WIDTH) -> Text:
    """The picture, no line of it wider than ``width``."""
    painter = _Painter(plan, graph, forecast, min(width, WIDTH))
    return Text("\n", no_wrap=True, overflow="ellipsis").join(painter.lines())


class _Painter:
    def __init__(self, plan: Plan, graph: Graph, forecast: Forecast, width: int) -> None:
        self._plan, self._graph, self._forecast, self._width = plan, graph, forecast, width
        self._several = len({one.dataset.pipeline for one in plan.datasets}) > 1
        self._used: set[Kind] = set()

    def lines(self) -> Iterator[Text]:
        yield Text(f"as of {self._plan.run_time:%Y-%m-%d %H:%M} UTC", style="dim")
        if not self._plan.datasets:
            yield Text("There is no dataset to show.", style="dim")
            return
        roots = self._grown()
        yield from self._branches(folded(roots, self._look), "")
        yield self._legend()

    def _grown(self) -> list[Node]:
        """The datasets as a tree; their order is that of the graph, inputs first."""
        shown = {one.dataset.name for one in self._plan.datasets}
        blocked, nodes = blocked_by(self._plan, self._graph), dict[str, Node]()
        roots = []
        for one in self._plan.datasets:
            name = one.dataset.name
            edges = edges_into(one.dataset, self._graph, shown)
            follows = not self._forecast.datasets[name].certain
            standing = standing_of(one, self._plan, blocked=blocked.get(name), follows=follows)
            self._used.add(standing.kind)
            node = nodes[name] = Node(one, standing, edges)
            node.above = meeting([nodes[edge.reads] for edge in edges if edge.shown])
            if node.above is None:
                roots.append(node)
            else:
                node.depth = node.above.depth + 1
                node.above.below.append(node)
        return roots

    def _branches(self, nodes: Sequence[Node], prefix: str) -> Iterator[Text]:
        for number, node in enumerate(nodes):
            last = number == len(nodes) - 1
            deep = node.depth >= _DEEPEST
            begin = f"{prefix}⋯{node.depth} " if deep else f"{prefix}{'└─' if last else '├─'} "
            yield self._line(node, begin)
            further = prefix if deep else f"{prefix}{'   ' if last else '│  '}"
            yield from self._branches(folded(node.below, self._look), further)

    def _line(self, node: Node, begin: str) -> Text:
        sign, style = _SIGNS[node.standing.kind]
        line = Text(begin, style="dim", no_wrap=True, overflow="ellipsis")
        line.append(f"{sign} ", style=f"not dim {style}")
        line.append(self._name(node), style="not dim bold")
        line.append(f"  {node.one.dataset.layer}, {cut_in_words(node.one.slicing)}", style="not dim")
        line.append(f"  {node.standing.words}", style=f"not dim {style}")
        if (told := self._expected(node)) is not None:
            line.append(f"  {told}", style="not dim cyan")
        marks = self._marks(node)
        line.append("".join(f"  [{mark}]" for mark in marks), style="not dim yellow")
        line.append(self._inputs(node, self._width - line.cell_len), style="dim")
        line.truncate(self._width, overflow="ellipsis")
        return line

    def _name(self, node: Node) -> str:
        name = _short(node.name, self._width // 2)
        if not node.alike:
            return name
        return f"{name} and {len(node.alike)} alike, up to {_short(node.alike[-1].name, self._width // 3)}"

    def _expected(self, node: Node) -> str | None:
        found = [self._forecast.datasets[one.name] for one in (node, *node.alike)]
        if not found[0].slices:
            return None
        star = " ★" if node.name in self._forecast.chain else ""
        if any(one.seconds is None for one in found):
            return f"no past run yet{star}"
        longest = max(one.seconds or 0.0 for one in found)
        return f"{'at most ' if node.alike else ''}{in_words(longest)}{star}"

    def _marks(self, node: Node) -> list[str]:
        """What is special, and the pipeline where it is another one than that of the dataset above it."""
        pipeline = node.one.dataset.pipeline
        other = self._several and (node.above is None or node.above.one.dataset.pipeline != pipeline)
        return [*([f"pipeline {pipeline}"] if other else []), *marks_of(node.one.dataset)]

    def _inputs(self, node: Node, room: int) -> str:
        """The inputs behind an arrow, where the tree does not show all; as many as there is room for."""
        edges = node.edges
        if len(edges) == 1 and edges[0].shown and not edges[0].how:
            return ""
        names = [_input_in_words(edge) for edge in edges]
        for count in range(len(names), 0, -1):
            more = f" and {len(names) - count} more" if count < len(names) else ""
            told = f"  ◂ {', '.join(names[:count])}{more}"
            if len(told) <= room:
                return told
        return f"  ◂ {len(names)} inputs" if names else ""

    def _look(self, node: Node, places: Mapping[str, int]) -> tuple[object, ...]:
        """All that a branch shows but the names in it: branches with the same look are alike."""
        reads = tuple((places.get(edge.reads, edge.reads), edge.how, edge.shown) for edge in node.edges)
        critical = node.name in self._forecast.chain
        known = self._forecast.datasets[node.name].seconds is not None
        dataset = node.one.dataset
        own = (dataset.layer, cut_in_words(node.one.slicing), node.standing, tuple(self._marks(node)))
        return (*own, reads, critical, known, tuple(self._look(one, places) for one in node.below))

    def _legend(self) -> Text:
        signs = [f"{sign} {kind}" for kind, (sign, _) in _SIGNS.items() if kind in self._used]
        signs += ["★ on the longest chain"] if self._forecast.chain else []
        return Text("   ".join(signs), style="dim")


def _short(name: str, most: int) -> str:
    """A long name without its middle."""
    plain = "".join(character if character.isprintable() else "?" for character in name)
    half = (most - 1) // 2
    return plain if len(plain) <= most else f"{plain[:half]}…{plain[-half:]}"


def _input_in_words(edge: Edge) -> str:
    notes = [edge.how] if edge.how else []
    notes += ["adopted"] if edge.adopted else [] if edge.shown else ["not selected"]
    name = _short(edge.reads, WIDTH // 3)
    return f"{name} ({', '.join(notes)})" if notes else name
