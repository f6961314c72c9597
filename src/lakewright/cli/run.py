"""`lakewright run` and `lakewright retry`: make what is due, and show what was made of every row."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.commands import At, DryRun, Parallel, Select, Wait, flag
from lakewright.cli.opening import open_project
from lakewright.cli.plan import run_command, show_plan
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError

__all__ = ["parse_share", "retry", "run"]


def run(
    screen: Screen,
    select: Select = None,
    at: At = None,
    again: Annotated[
        bool, flag("--again", help="Repeat the slices that were made last; the data stays the same.")
    ] = False,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="ID", help="Repeat this slice (2026-01-05, arrival-7). May be repeated."),
    ] = None,
    wait: Wait = 0.0,
    parallel: Parallel = None,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="SHARE", help="Try it on a part of the rows, in a lake of its own: 1%."),
    ] = None,
    empty: Annotated[
        bool, flag("--empty", help="Try it on no rows, in a lake of its own: checks columns, types, SQL and contracts.")
    ] = False,
    continuous: Annotated[
        bool, flag("--continuous", help="Keep the streams going until it is stopped; other runs go on beside it.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Take what is new, then make what is due, missing or late.

    A stream (mode="stream") reads what is there, and ends; with --continuous it goes on until Ctrl-C, SIGTERM or
    `lakewright cancel`, each of which lets the micro-batch under way end.

    With --sample or --empty nothing of the lake and the store changes: what is made lies in .lakewright/sample or
    .lakewright/empty until the next such run.

    Exit codes: 0 done, 1 failed, 2 wrong usage or project, 3 a guard refused, 130 interrupted.
    """
    share = None if sample is None else parse_share(sample)
    if continuous:
        from lakewright.cli.stream import run_continuously

        if at or again or slices or sample or empty or dry_run:
            raise ConfigurationError("--continuous goes with --select alone: a stream has no slices and no run time.")
        run_continuously(screen, select or ())
        return
    with open_project(screen) as project:
        if dry_run:
            show_plan(screen, project.plan(select or (), at=at), project.graph, command=run_command(screen, select, at))
            return
        from lakewright.cli.run_progress import follow
        from lakewright.cli.run_report import report

        with follow(screen) as listener:
            summary = project.run(
                select or (),
                at=at,
                again=again or bool(slices),
                slices=slices or (),
                listener=listener,
                parallel=parallel,
                wait_seconds=wait,
                sample=share,
                empty=empty,
            )
        report(screen, summary, project.graph)


def retry(
    screen: Screen,
    wait: Wait = 0.0,
    parallel: Parallel = None,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="SOURCE:ARRIVAL", help="Give up an arrival whose files are gone for good."),
    ] = None,
) -> None:
    """Go on with the last run that did not succeed: what failed, and everything below it."""
    from lakewright.cli.run_progress import follow
    from lakewright.cli.run_report import report

    with open_project(screen) as project:
        for text in forget or ():
            name, _, number = text.partition(":")
            if not number.isdecimal():
                raise ConfigurationError(f"'{text}' names no arrival.", hint="Write it as raw_visits:3.")
            project.forget_arrival(name, int(number))
        with follow(screen) as listener:
            summary = project.retry(listener=listener, parallel=parallel, wait_seconds=wait)
        report(screen, summary, project.graph)


def parse_share(text: str) -> float:
    """A share from text.

    >>> parse_share("1%"), parse_share("0.25")
    (0.01, 0.25)
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigurationError(f"'{text}' is no share of the rows.", hint="Write it as 1% or 0.01.")
    return share
