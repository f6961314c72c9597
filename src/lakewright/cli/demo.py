"""`lakewright demo`: the blog platform from landing files to gold tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakewright.cli.screen import Screen

__all__ = ["demo"]


def demo(
    screen: Screen,
    visits: Annotated[int, typer.Option("--visits", metavar="N", min=100, help="How many visits to make up.")] = 10_000,
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo's project is made.")] = Path("demo"),
) -> None:
    """Make up three days of blog visits with known faults, run the platform, and account for every row.

    Then a late file arrives, and exactly the slices that it touches are repaired.
    """
    from lakewright.demo import run_demo

    raise typer.Exit(run_demo(folder, visits=visits, console=screen.marked_up()))
