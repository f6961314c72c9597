"""`lakewright backfill`: make slices of event time again, with everything below them."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.commands import DryRun, Parallel, Param, Select, Wait, flag
from lakewright.cli.opening import open_project
from lakewright.cli.plan import forecast_of, show_plan
from lakewright.cli.screen import Screen
from lakewright.model.parameters import parse_parameters

__all__ = ["backfill"]


def backfill(
    screen: Screen,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Begin of the event time, in UTC: 2026-01-05.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Its end, which is not included (default: now).")
    ] = None,
    select: Select = None,
    sources: Annotated[bool, flag("--sources", help="Read the recorded windows of the sources again, too.")] = False,
    outdated: Annotated[bool, flag("--outdated", help="Make what was made by older code or options.")] = False,
    wait: Wait = 0.0,
    parallel: Parallel = None,
    param: Param = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, flag("--yes", help="For scripts; a backfill destroys nothing, so it never asks.")] = False,
) -> None:
    """Make slices of event time again, from bronze, and everything that reads them.

    Shows first what will be made. Held late rows are taken in. Exit codes are those of `run`.
    """
    parameters = parse_parameters(param or ())
    with open_project(screen) as project:
        names, wish = project.backfill_wish(
            start, end, select=select or (), sources=sources, outdated=outdated, parameters=parameters
        )
        if dry_run or not (screen.as_json or screen.quiet):
            command = "the same without --dry-run" if dry_run else None
            found = project.plan_backfill(names, wish)
            forecast = forecast_of(project, found, parallel=parallel)
            show_plan(screen, found, project.graph, command=command, forecast=forecast)
        if dry_run:
            return
        from lakewright.cli.run_progress import follow
        from lakewright.cli.run_report import report

        with follow(screen) as listener:
            summary = project.backfill(
                start,
                end,
                select=select or (),
                sources=sources,
                outdated=outdated,
                listener=listener,
                parallel=parallel,
                wait_seconds=wait,
                parameters=parameters,
            )
        report(screen, summary, project.graph)
