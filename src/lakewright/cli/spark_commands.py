"""`lakewright spark`: what a cluster needs to run a project."""

from __future__ import annotations

from typing import Annotated

from lakewright.cli.commands import flag
from lakewright.cli.screen import Screen

__all__ = ["packages"]


def packages(
    screen: Screen,
    joined: Annotated[bool, flag("--joined", help="On one line with commas, for spark-submit --packages.")] = False,
) -> None:
    """Print the Maven coordinates of the jars, for `spark.jars.packages` or a cluster's image."""
    from lakewright.runtime.jars import packages as coordinates

    found = coordinates()
    if screen.as_json:
        screen.show_json({"packages": found, "error": None})
    else:
        screen.write((",".join(found) if joined else "\n".join(found)) + "\n")
