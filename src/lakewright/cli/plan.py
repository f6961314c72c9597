"""`lakewright plan`: the graph as a tree, and for every slice whether it is fresh and why not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from lakewright.cli.commands import At, Param, Select, flag
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError
from lakewright.masking import mask
from lakewright.model.parameters import parse_parameters

if TYPE_CHECKING:  # `--help` loads neither the pipelines nor what they stand on
    from rich.console import RenderableType

    from lakewright.pipelines.decide import DatasetPlan
    from lakewright.pipelines.durations import Forecast
    from lakewright.pipelines.explain import Why
    from lakewright.pipelines.graph import Graph
    from lakewright.pipelines.planning import Plan
    from lakewright.pipelines.project import Project

__all__ = ["forecast_of", "plan", "plan_as_json", "run_command", "show_plan"]


def plan(
    screen: Screen,
    select: Select = None,
    at: At = None,
    param: Param = None,
    graph: Annotated[
        bool, flag("--graph", help="The graph: who reads whom, how each dataset stands, how long it takes.")
    ] = False,
    mermaid: Annotated[
        bool, flag("--mermaid", help="The graph as a Mermaid flowchart, for a file or a Markdown page.")
    ] = False,
    explain: Annotated[
        bool, flag("--explain", help="For every step and slice why it runs or not, also for those that are fresh.")
    ] = False,
) -> None:
    """Show what a run would do now, and why. Starts no Spark and changes no data.

    Ends with the expected duration and the longest chain of datasets, by the median of past runs.
    """
    if mermaid and (graph or explain or screen.as_json):
        raise ConfigurationError("--mermaid prints a flowchart and nothing else: leave out --graph, --explain, --json.")
    with open_project(screen) as project:
        found = project.plan(select or (), at=at, parameters=parse_parameters(param or ()))
        forecast = forecast_of(project, found)
        if mermaid:
            from lakewright.cli.plan_mermaid import mermaid_of

            screen.write(mask(mermaid_of(found, project.graph, forecast)))
            _warn(screen, found)
            return
        reasons = _reasons(project, found) if explain else None
        pictures = None
        if (graph or explain) and not screen.as_json:
            pictures = _pictures(screen, project, found, forecast, reasons, graph=graph)
        show_plan(
            screen,
            found,
            project.graph,
            command=run_command(screen, select, at, param),
            forecast=forecast,
            pictures=pictures,
            reasons=reasons,
        )


def forecast_of(project: Project, found: Plan, *, parallel: int | None = None) -> Forecast:
    """How long the plan would take, by the project's past runs."""
    from lakewright.pipelines.durations import forecast

    return forecast(found, project.graph, project.store, parallel=parallel or project.settings.target.parallel)


def _reasons(project: Project, found: Plan) -> Mapping[str, Sequence[Why]]:
    from lakewright.model.times import utc_now
    from lakewright.pipelines.explain import explain

    return explain(found, project.graph, project.store, utc_now())


def _pictures(
    screen: Screen,
    project: Project,
    found: Plan,
    forecast: Forecast,
    reasons: Mapping[str, Sequence[Why]] | None,
    *,
    graph: bool,
) -> list[RenderableType]:
    """What is shown instead of the tree."""
    from lakewright.cli.plan_expected import expected_table, slow_lines

    pictures: list[RenderableType] = []
    if graph:
        from lakewright.cli.plan_graph import graph_of

        pictures.append(graph_of(found, project.graph, forecast, width=screen.out.width))
        if (table := expected_table(forecast)) is not None:
            pictures += ["", table, ""]
        pictures += list(slow_lines(forecast))
    if reasons is not None:
        from lakewright.cli.plan_explain import explained

        pictures.append(explained(found, reasons))
    return pictures


def _warn(screen: Screen, found: Plan) -> None:
    for warning in found.warnings:
        screen.warn(warning)


def show_plan(
    screen: Screen,
    found: Plan,
    graph: Graph,
    *,
    forecast: Forecast,
    command: str | None = None,
    pictures: Sequence[RenderableType] | None = None,
    reasons: Mapping[str, Sequence[Why]] | None = None,
) -> None:
    """The tree (or one object), the expected duration, the warnings, and the command that does it, where it is not done
    at once.
    """
    if screen.as_json:
        screen.show_json(plan_as_json(found, graph, forecast, reasons))
        return
    from lakewright.cli.plan_expected import expected_lines
    from lakewright.cli.plan_tree import plan_tree

    screen.show(*([plan_tree(found, graph)] if pictures is None else pictures))
    for line in expected_lines(forecast):
        screen.show(line)
    _warn(screen, found)
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


def plan_as_json(
    found: Plan, graph: Graph, forecast: Forecast | None = None, reasons: Mapping[str, Sequence[Why]] | None = None
) -> dict[str, Any]:
    """The plan with stable keys; with ``forecast`` it tells how long it takes, with ``reasons`` it is explained."""
    from lakewright.cli.plan_expected import expected_as_json, expected_of_dataset
    from lakewright.cli.plan_explain import explained_as_json

    return {
        "run_time": found.run_time.isoformat(),
        "datasets": [
            {
                **_dataset_as_json(one, graph),
                "read_from": found.read_from.get(one.dataset.name),
                "backfill_limits": list(found.backfill_limits.get(one.dataset.name, ())),
                **({} if forecast is None else expected_of_dataset(forecast.datasets[one.dataset.name])),
                **({} if reasons is None else {"explain": explained_as_json(reasons[one.dataset.name])}),
            }
            for one in found.datasets
        ],
        "warnings": list(found.warnings),
        "to_make": sum(len(one.to_make) for one in found.datasets),
        **({} if forecast is None else expected_as_json(forecast)),
        "error": None,
    }


def _dataset_as_json(one: DatasetPlan, graph: Graph) -> dict[str, Any]:
    from lakewright.pipelines.backfilling import effect_of
    from lakewright.pipelines.rules import rules_of

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
        **rules_of(dataset),
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


def run_command(screen: Screen, select: list[str] | None, at: str | None, param: list[str] | None = None) -> str:
    """The `run` that does what the plan shows."""
    words = ["lakewright", "run", *(word for pattern in select or () for word in ("--select", pattern))]
    words += [] if at is None else ["--at", at]
    words += [word for text in param or () for word in ("--param", text)]
    words += [] if screen.target is None else ["--target", screen.target]
    return shlex.join(words)
