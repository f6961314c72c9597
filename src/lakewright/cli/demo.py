"""`lakewright demo`: the blog platform from landing files, or from Kafka and PostgreSQL, to gold tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakewright.cli.commands import flag
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError

__all__ = ["demo"]


def demo(
    screen: Screen,
    visits: Annotated[int, typer.Option("--visits", metavar="N", min=100, help="How many visits to make up.")] = 10_000,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=2, max=4, help="Of how many days, of one week, they are.")
    ] = 3,
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo's project is made.")] = Path("demo"),
    services: Annotated[
        bool, flag("--services", help="Visits from Kafka, tables of PostgreSQL, Debezium; all started here.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            metavar="N",
            min=0,
            help="With --services: visits sent per second (default: 1000; 0: as fast as it goes).",
        ),
    ] = None,
) -> None:
    """Make up three days of blog visits with known faults, run the platform, and account for every row.

    Then late visits arrive, and exactly the slices that they touch are repaired.

    With --services a producer sends the visits to Kafka while a continuous stream takes them into bronze, and users
    change in PostgreSQL; the steps and the figures are the same. Changes of a legacy table are captured by Debezium, an
    event loads the devices, and closed days are exported; a second table compares all of that. The services stay up at
    the end, unless the demo is interrupted: then those that it has started are stopped.
    """
    if services:
        from lakewright.demo_services import RATE, run_services_demo

        pace = RATE if rate is None else rate
        raise typer.Exit(run_services_demo(folder, visits=visits, rate=pace, days=days, console=screen.marked_up()))
    if rate is not None:
        raise ConfigurationError("--rate says how fast visits are sent to Kafka.", hint="Add --services.")
    from lakewright.demo import run_demo

    raise typer.Exit(run_demo(folder, visits=visits, days=days, console=screen.marked_up()))
