"""`lakewright work`: make the runs that a scheduler or a listener has handed out, in a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import Parallel, flag
from lakewright.cli.failures import describe
from lakewright.cli.opening import declared_pipelines, open_existing_store, open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, InputError, LeaseHeldError, UnknownNameError
from lakewright.model.times import parse_time, utc_now

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
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="When the first time could have been run.")
    ] = None,
    backfill: Annotated[
        str | None,
        typer.Option("--backfill", metavar="RUN", help="Repeat this backfill of the pipeline that it follows."),
    ] = None,
    declined: Annotated[
        bool, flag("--decline", help="With --backfill: leave everything as it is, and ask no more.")
    ] = False,
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

    if sum((event is not None, bool(times), backfill is not None)) != 1:
        raise ConfigurationError(
            "It works for times, an event or a backfill: give --time, --event with --trigger, or --backfill."
        )
    if declined:
        _decline(screen, pipeline, backfill)
        return
    try:
        with open_project(screen) as project:
            if event is not None:
                _for_event(screen, project, pipeline, event, trigger)
                return
            if backfill is not None:
                made = _for_backfill(screen, project, pipeline, backfill, parallel)
            else:
                due = [parse_time(text) for text in times or ()]
                first = None if since is None else parse_time(since)
                made = _for_times(screen, project, pipeline, due, _versions(seen), first, parallel)
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
    since: datetime | None,
    parallel: int | None,
) -> list[RunSummary]:
    from lakewright.cli.run_progress import follow
    from lakewright.pipelines.schedule import make_times

    with follow(screen) as listener:
        return make_times(project, pipeline, times, seen=seen, since=since, listener=listener, parallel=parallel)


def _for_backfill(
    screen: Screen, project: Project, pipeline: str, run_id: str, parallel: int | None
) -> list[RunSummary]:
    from lakewright.cli.run_progress import follow
    from lakewright.pipelines.schedule import follow_backfill

    with follow(screen) as listener:
        return follow_backfill(project, pipeline, run_id, listener=listener, parallel=parallel)


def _decline(screen: Screen, pipeline: str, run_id: str | None) -> None:
    from lakewright.pipelines.scheduler_links import decline

    if run_id is None:
        raise ConfigurationError("--decline needs to know which backfill: --backfill RUN.")
    known = [one.name for one in declared_pipelines(screen)]
    if pipeline not in known:
        raise UnknownNameError("pipeline", pipeline, known)
    with open_existing_store(screen) as store:
        done = store is not None and decline(store, pipeline, run_id, utc_now())
    if screen.as_json:
        screen.show_json({"runs": [], "declined": done, "error": None})
    else:
        screen.say(f"{pipeline} leaves the backfill {run_id} alone." if done else "It was answered before.")


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
