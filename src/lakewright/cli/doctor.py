"""`lakewright doctor`: each thing that a run needs, found to be well or with the cure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import flag
from lakewright.cli.opening import settings_of
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError

if TYPE_CHECKING:
    from lakewright.runtime.doctor import Check

__all__ = ["doctor"]


def doctor(
    screen: Screen,
    deep: Annotated[bool, flag("--deep", help="Start Spark, and write and read a tiny table.")] = False,
) -> None:
    """Check Python, Java, Spark, jars, store, lake and time zone; also outside a project.

    Exit codes: 0 nothing failed, 1 something needs its cure.
    """
    found = _look(screen, deep)
    failed = sum(check.state == "fail" for check in found)
    if screen.as_json:
        screen.show_json({"ok": not failed, "checks": [asdict(check) for check in found], "error": None})
        raise typer.Exit(1 if failed else 0)
    rows = [[check.name, check.state, check.detail, check.cure or ""] for check in found]
    screen.show(plain_table(["check", "state", "detail", "cure"], rows))
    warned = sum(check.state == "warn" for check in found)
    ok = len(found) - failed - warned
    screen.say(f"{ok} ok, {warned} warning{'' if warned == 1 else 's'}, {failed} failed.")
    raise typer.Exit(1 if failed else 0)


def _look(screen: Screen, deep: bool) -> list[Check]:
    from lakewright.runtime.doctor import Check, checks
    from lakewright.runtime.settings import find_file

    try:
        find_file(screen.folder)
    except ConfigurationError:
        return checks(None, deep=deep)
    try:
        settings = settings_of(screen)
    except ConfigurationError as error:
        outside = [check for check in checks(None) if check.name != "Project"]
        return [*outside, Check("Project", "fail", error.message, error.hint or "Correct lakewright.toml.")]
    return checks(settings, deep=deep)
