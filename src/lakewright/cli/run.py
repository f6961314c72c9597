"""`lakewright run` and `lakewright retry`: make what is due, and show what was made of every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from lakewright.cli.commands import At, DryRun, Parallel, Param, Select, Wait, flag
from lakewright.cli.opening import open_project
from lakewright.cli.plan import forecast_of, run_command, show_plan
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError
from lakewright.model.parameters import parse_parameters

if TYPE_CHECKING:
    from lakewright.pipelines.orders import Order, OrderReason

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
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="For an orchestrator: the run's name; one that is known goes on."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=0, help="With --run-id: the N-th time that it is wanted again.")
    ] = 0,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="WORD", help="With --run-id: scheduled, part, backfill or manual (the default)."
        ),
    ] = None,
    param: Param = None,
    dry_run: DryRun = False,
) -> None:
    """Take what is new, then make what is due, missing or late.

    A stream (mode="stream") reads what is there, and ends; with --continuous it goes on until Ctrl-C, SIGTERM or
    `lakewright cancel`, each of which gives the micro-batch under way 30 seconds to end. Of streams that end by
    themselves the exit code is 3 where guards refused all of them, else 1.

    With --sample or --empty nothing of the lake and the store changes: what is made lies in .lakewright/sample or
    .lakewright/empty until the next such run.

    An orchestrator such as Airflow names its runs by --run-id. The same name again goes on where it ended. With a
    higher --repeat, what that run made is made again, or, where it did not succeed, its rest is made. With
    --reason scheduled it counts as the run for --at of the pipeline's schedule, with --reason part as a part of it;
    with --reason backfill the slices that such a run makes are made again. Each of these waits for what the pipeline
    waits for.

    Exit codes: 0 done, 1 failed, 2 wrong usage or project, 3 a guard refused, 4 with --reason: not ready yet, 130
    interrupted.
    """
    share = None if sample is None else parse_share(sample)
    parameters = parse_parameters(param or ())
    if continuous:
        from lakewright.cli.stream import run_continuously

        if at or again or slices or sample or empty or dry_run or run_id:
            raise ConfigurationError("--continuous goes with --select alone: a stream has no slices and no run time.")
        run_continuously(screen, select or ())
        return
    order = _order(run_id, repeat, reason, other=again or bool(slices) or sample is not None or empty or dry_run)
    with open_project(screen) as project:
        if dry_run:
            found = project.plan(select or (), at=at, parameters=parameters)
            command, forecast = run_command(screen, select, at, param), forecast_of(project, found, parallel=parallel)
            show_plan(screen, found, project.graph, command=command, forecast=forecast)
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
                order=order,
                parameters=parameters,
            )
        made = None if order is None else order.made(project.store)
        report(screen, summary, project.graph, made=made)


def retry(
    screen: Screen,
    wait: Wait = 0.0,
    parallel: Parallel = None,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="SOURCE:ARRIVAL", help="Give up what is gone for good of an arrival."),
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
            screen.say(f"{name}, arrival {number}: {project.forget_arrival(name, int(number))}.")
        with follow(screen) as listener:
            summary = project.retry(listener=listener, parallel=parallel, wait_seconds=wait)
        report(screen, summary, project.graph)


def _order(run_id: str | None, repeat: int, reason: str | None, *, other: bool) -> Order | None:
    if run_id is None:
        if repeat or reason is not None:
            raise ConfigurationError("--repeat and --reason go with --run-id: they are for an orchestrator's runs.")
        return None
    if other:
        raise ConfigurationError("--run-id goes with none of --again, --slice, --sample, --empty and --dry-run.")
    from lakewright.pipelines.orders import Order

    return Order(run_id, repeat, cast("OrderReason", reason or "manual"))


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
