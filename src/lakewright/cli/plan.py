"""`lakewright plan`: the graph as a tree, and for every slice whether it is fresh and why not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from lakewright.cli.commands import At, Select
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen

if TYPE_CHECKING:  # `--help` loads neither the pipelines nor what they stand on
    from lakewright.pipelines.decide import DatasetPlan
    from lakewright.pipelines.graph import Graph
    from lakewright.pipelines.planning import Plan

__all__ = ["plan", "plan_as_json", "run_command", "show_plan"]


def plan(screen: Screen, select: Select = None, at: At = None) -> None:
    """Show what a run would do now, and why. Starts no Spark and changes no data."""
    with open_project(screen) as project:
        show_plan(screen, project.plan(select or (), at=at), project.graph, command=run_command(screen, select, at))


def show_plan(screen: Screen, found: Plan, graph: Graph, *, command: str | None = None) -> None:
    """The tree (or one object), the warnings, and the command that does it, where it is not done at once."""
    if screen.as_json:
        screen.show_json(plan_as_json(found, graph))
        return
    from lakewright.cli.plan_tree import plan_tree

    screen.show(plan_tree(found, graph))
    for warning in found.warnings:
        screen.warn(warning)
    slices = sum(len(one.to_make) for one in found.datasets)
    sources = sum(bool(one.new) for one in found.datasets)
    if command is None:
        return
    if not slices and not sources:
        count = len(found.datasets)
        screen.say(f"Everything is fresh: {count} dataset{'' if count == 1 else 's'}, nothing to do.")
        return
    if sources:
        screen.say("What is new is taken first; the slices that it touches are made in the same run.")
    screen.say(f"To do it: {command}", "bold")


def plan_as_json(found: Plan, graph: Graph) -> dict[str, Any]:
    """The plan with stable keys."""
    return {
        "run_time": found.run_time.isoformat(),
        "datasets": [
            {**_dataset_as_json(one, graph), "read_from": found.read_from.get(one.dataset.name)}
            for one in found.datasets
        ],
        "warnings": list(found.warnings),
        "to_make": sum(len(one.to_make) for one in found.datasets),
        "error": None,
    }


def _dataset_as_json(one: DatasetPlan, graph: Graph) -> dict[str, Any]:
    from lakewright.pipelines.backfilling import effect_of

    dataset = one.dataset
    return {
        "name": dataset.name,
        "pipeline": dataset.pipeline,
        "layer": dataset.layer,
        "slicing": one.slicing.kind,
        "grid": one.slicing.grid if one.slicing.kind == "event" else None,
        "writer": None if dataset.writer is None else type(dataset.writer).__name__,
        "backfill": effect_of(dataset),
        "source": None if dataset.source is None else type(dataset.source).__name__,
        "reads": [name for given in dataset.inputs for name in given.datasets],
        "read_by": sorted(graph.downstream(dataset.name)),
        "place": str(dataset.place),
        "new": one.new or None,
        "waiting": list(one.waits),
        "live": one.live,
        "fresh": one.fresh,
        "slices": [
            {"slice": state.slice.id, "status": state.status, "reason": state.reason, "make": state.make}
            for state in one.states
        ],
    }


def run_command(screen: Screen, select: list[str] | None, at: str | None) -> str:
    """The `run` that does what the plan shows."""
    words = ["lakewright", "run", *(word for pattern in select or () for word in ("--select", pattern))]
    words += [] if at is None else ["--at", at]
    words += [] if screen.target is None else ["--target", screen.target]
    return shlex.join(words)
