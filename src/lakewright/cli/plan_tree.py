"""A plan as a tree: sources at the root, every dataset once, below the first one that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text
from rich.tree import Tree

from lakewright.pipelines.backfilling import effect_of
from lakewright.pipelines.decide import DatasetPlan, SliceState
from lakewright.pipelines.definitions import Dataset, Slicing
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.rules import rules_in_words

__all__ = ["plan_tree", "state_lines"]

_FOLD_ABOVE = 8
_STYLES = {"held": "yellow", "waiting": "dim", "outdated": "yellow", "refused": "bold red", "late": "magenta",
           "skipped": "dim", "partial": "yellow", "unmet": "bold red"}  # fmt: skip


def plan_tree(plan: Plan, graph: Graph) -> Tree:
    """All datasets of the plan."""
    shown = [one.dataset.name for one in plan.datasets]
    root = Tree(Text(f"as of {plan.run_time:%Y-%m-%d %H:%M} UTC", style="dim"), guide_style="dim")
    branches: dict[str, Tree] = {}
    for one in plan.datasets:
        above = [graph.owners.get(name, name) for given in one.dataset.inputs for name in given.datasets]
        parent = next((name for name in above if name in shown and name != one.dataset.name), None)
        branch = root if parent is None else branches[parent]
        branches[one.dataset.name] = branch.add(_label(one, parent, plan))
        if one.dataset.name in plan.read_from:
            branches[one.dataset.name].add(Text(f"read from {plan.read_from[one.dataset.name]}", style="dim"))
            continue
        for line, style in state_lines(one):
            branches[one.dataset.name].add(Text(line, style=style))
        for line in plan.backfill_limits.get(one.dataset.name, ()):
            branches[one.dataset.name].add(Text(f"a backfill is not exact: {line}", style="yellow"))
    return root


def state_lines(one: DatasetPlan) -> Iterator[tuple[str, str]]:
    """What is to be said of a dataset's slices, each line with its style."""
    if one.new:
        yield f"new: {one.new}", "green"
    for waits in one.waits[:_FOLD_ABOVE]:
        yield f"waiting: {waits}", "dim"
    if len(one.waits) > _FOLD_ABOVE:
        yield f"waiting: {len(one.waits) - _FOLD_ABOVE} more (--json lists all)", "dim"
    # Grouped first: a status that comes and goes among the slices is still one status.
    ordered = sorted(one.states, key=lambda state: state.status)
    for status, group in groupby(ordered, key=lambda state: state.status):
        for line in _folded(list(group)):
            yield line, _STYLES.get(status, "green")
    if not one.states and not one.new and not one.waits:
        yield _fresh(one.fresh), "dim"
    elif one.fresh > 0:
        yield f"{_fresh(one.fresh)}", "dim"


def _fresh(slices: int) -> str:
    return f"fresh ({slices} slice{'' if slices == 1 else 's'})" if slices > 0 else "nothing yet"


def _folded(states: Sequence[SliceState]) -> Iterator[str]:
    if len(states) <= _FOLD_ABOVE:
        for state in states:
            yield f"{state.slice.id} {_status(state)}: {state.reason}"
        return
    reasons = {state.reason for state in states}
    why = next(iter(reasons)) if len(reasons) == 1 else f"{states[0].reason}, and other reasons (--json lists all)"
    first, last = states[0].slice.id, states[-1].slice.id
    yield f"{first} … {last} ({len(states)} slices) {_status(states[0])}: {why}"


def _status(state: SliceState) -> str:
    plain = state.make or state.status in ("waiting", "skipped", "partial")
    return state.status if plain else f"{state.status} (not made now)"


def _label(one: DatasetPlan, parent: str | None, plan: Plan) -> Text:
    dataset = one.dataset
    label = Text(dataset.name, style="bold")
    label.append(f"  {dataset.layer}, {_cut(one.slicing)}, {_how(dataset)}", style="not bold")
    read = (name for given in dataset.inputs for name in given.datasets)
    others = [name for name in read if name not in (parent, dataset.name)]
    if others:
        also = "also reads" if parent is not None else "reads"
        told = [f"{name} from {plan.read_from[name]}" if name in plan.read_from else name for name in others]
        label.append(f"  ({also} {', '.join(told)})", style="not bold dim")
    for rule in rules_in_words(dataset):
        label.append(f"  [{rule}]", style="not bold yellow")
    return label


def _cut(slicing: Slicing) -> str:
    if slicing.kind == "event":
        return f"by event {slicing.grid}"
    return "whole" if slicing.kind == "whole" else f"by {slicing.kind}"


def _how(dataset: Dataset) -> str:
    """The source or the writer, where it goes if that is not the lake, and what a backfill does, in a few words."""
    into = "" if dataset.into is None else f" into {type(dataset.into).__name__}"
    return f"{_source_or_writer(dataset)}{into} (backfill: {effect_of(dataset)})"


def _source_or_writer(dataset: Dataset) -> str:
    if dataset.source is not None:
        where = getattr(dataset.source, "path", "")
        return f"{type(dataset.source).__name__} {where}".rstrip()
    if dataset.writer is None:
        return "adds micro-batches"
    keys = getattr(dataset.writer, "keys", ())
    return type(dataset.writer).__name__ + (f" by {', '.join(keys)}" if keys else "")
