"""`lakewright adopt`: let a name of the lake stand for an existing Delta table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen

__all__ = ["adopt"]


def adopt(
    screen: Screen,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder (or URI) of a Delta table.")],
    name: Annotated[str | None, typer.Option("--name", help="Its name as a dataset (default: the folder's).")] = None,
) -> None:
    """Take an existing Delta table into the lake, where it lies: steps may read it by its name."""
    with open_project(screen) as project:
        # Relative to where the command was typed, not to the project.
        place = path if "://" in path else str(Path(path).absolute())
        summary = project.adopt(place, name or Path(path).name)
    if screen.as_json:
        screen.show_json({**asdict(summary), "error": None})
        return
    rows = "an unknown number of" if summary.rows is None else f"{summary.rows:,}"
    screen.say(f"Adopted {summary.path} as {summary.name}: version {summary.version}, {rows} rows.", "bold")
    screen.say(f"  columns: {', '.join(map(str, summary.columns))}")
    screen.say(f"See it: lakewright show {summary.name}")
