"""`lakewright work`: make the runs that a scheduler or a listener has handed out, in a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import Parallel
from lakewright.cli.failures import describe
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, InputError, LeaseHeldError
from lakewright.model.times import parse_time

if TYPE_CHECKING:
    from lakewright.pipelines.progress import RunSummary
    from lakewright.pipelines.project import Project

__all__ = ["work"]


def work(
    screen: Screen,
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline.")],
    times: Annotated[
        list[str] | None,
        typer.Option("--time", metavar="TIME", help="A time of its schedule, in UTC. May be repeated."),
    ] = None,
    seen: Annotated[
        list[str] | None,
        typer.Option(
            "--seen", metavar="DATASET=VERSION", help="A version of its upstream that is new. May be repeated."
        ),
    ] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="ID", help="Run for this event, not a time.")] = None,
    trigger: Annotated[str | None, typer.Option("--trigger", metavar="NAME", help="The trigger of the event.")] = None,
    parallel: Parallel = None,
) -> None:
    """Make the runs that a scheduler has handed out, one after the other, until one does not succeed.

    `lakewright up` starts it for each pipeline that is due, and its Spark ends with it. A run that was made already is
    not made again, so it is safe to repeat one by hand.

    Exit codes: those of `run`, and 75 where somebody else is at work: nothing was started, try again later.
    """
    from lakewright.pipelines.launching import BUSY

    if (event is None) == (not times):
        raise ConfigurationError("It works for times or for an event: give --time, or --event with --trigger.")
    try:
        with open_project(screen) as project:
            if event is not None:
                _for_event(screen, project, pipeline, event, trigger)
                return
            due = [parse_time(text) for text in times or ()]
            made = _for_times(screen, project, pipeline, due, _versions(seen), parallel)
    except LeaseHeldError as error:
        if screen.as_json:
            screen.show_json({"error": describe(error).as_json()})
        else:
            screen.fail(error)
        raise typer.Exit(BUSY) from None
    _report(screen, made)


def _for_times(
    screen: Screen,
    project: Project,
    pipeline: str,
    times: Sequence[datetime],
    seen: Mapping[str, int] | None,
    parallel: int | None,
) -> list[RunSummary]:
    from lakewright.cli.run_progress import follow
    from lakewright.pipelines.schedule import make_times

    with follow(screen) as listener:
        return make_times(project, pipeline, times, seen=seen, listener=listener, parallel=parallel)


def _for_event(screen: Screen, project: Project, pipeline: str, event_id: str, trigger: str | None) -> None:
    from lakewright.cli.run_progress import follow
    from lakewright.model.triggers import Malformed
    from lakewright.pipelines.triggers import starter

    record = project.store.events.find(event_id, trigger=trigger)
    found = record.found()
    if isinstance(found, Malformed):
        raise InputError(f"The event '{event_id}' cannot be read: {found.reason}. Nothing was started.")
    with follow(screen) as listener:
        run_id = starter(project, pipeline, listener=listener)(found)
    if screen.as_json:
        screen.show_json({"runs": [{"run_id": run_id, "state": "ok"}], "error": None})


def _report(screen: Screen, made: Sequence[RunSummary]) -> None:
    from lakewright.cli.run_report import closing_line, summary_as_json

    if screen.as_json:
        told = [summary_as_json(summary) for summary in made]
        screen.show_json({"runs": told, "error": told[-1]["error"] if told else None})
    else:
        for summary in made:
            for error in summary.errors:
                screen.fail(error)
            screen.say(closing_line(summary))
    raise typer.Exit(made[-1].exit_code if made else 0)


def _versions(seen: Sequence[str] | None) -> dict[str, int] | None:
    """The versions by dataset.

    >>> _versions(["visits=7"])
    {'visits': 7}
    """
    if not seen:
        return None
    found = {}
    for text in seen:
        name, _, version = text.rpartition("=")
        if not name or not version.isdecimal():
            raise ConfigurationError(f"'{text}' names no version.", hint="Write it as visits=7.")
        found[name] = int(version)
    return found
