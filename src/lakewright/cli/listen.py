"""`lakewright listen`: start runs when events come."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lakewright.cli.commands import flag
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import InterruptedRun

__all__ = ["listen"]


def listen(
    screen: Screen,
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE", help="The pipelines; all with triggers where none is named."),
    ] = None,
    once: Annotated[
        bool, flag("--once", help="Handle the events that are there, and end: for cron. A webhook is not opened.")
    ] = False,
    apart: Annotated[
        bool, flag("--apart", help="Make each run in a process of its own: no Spark stays when it is done.")
    ] = False,
) -> None:
    """Listen to the triggers of pipelines, and start a run for each event of interest.

    A trigger that several pipelines share starts all of them, whichever of them is named here.

    An event is kept before it is handled, and acknowledged when it is finished. Spark starts with the first run, and
    stays; with --apart it ends with each run. It goes on until Ctrl-C or SIGTERM; what was not finished is taken up by
    the next listener. With --once a dead letter ends it with 1, and an interruption with 130.
    """
    from lakewright.cli.run_progress import follow

    with open_project(screen) as project, follow(screen) as listener:
        if apart:
            from lakewright.pipelines.apart import listen_apart

            summary = listen_apart(project, pipelines or (), once=once, listener=listener)
        else:
            summary = project.listen(pipelines or (), once=once, listener=listener)
    stopped = once and summary.state == "interrupted"
    code = InterruptedRun.exit_code if stopped else 1 if once and summary.dead else 0
    if screen.as_json:
        screen.show_json({**asdict(summary), "error": None})
        raise typer.Exit(code)
    screen.say(
        f"{summary.received} received, {summary.filtered} filtered, {summary.done} done, {summary.dead} dead, "
        f"{summary.known} known, {summary.waiting} left for later.",
        "bold",
    )
    if summary.dead:
        screen.say("`lakewright triggers list` shows the dead letters.")
    raise typer.Exit(code)
