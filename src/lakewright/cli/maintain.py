"""`lakewright maintain`: join small files, and delete those that are no longer used."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.commands import DryRun, flag
from lakewright.cli.failures import describe
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.model.sizes import shown_size

if TYPE_CHECKING:
    from lakewright.pipelines.maintain import MaintenanceSummary, TableOutcome

__all__ = ["maintain"]


def maintain(
    screen: Screen,
    select: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SELECTION",
            help="Datasets: name, +name (and what it reads), name+ (and what reads it), tag:x, layer:silver. Without "
            "any: all that declare a policy.",
        ),
    ] = None,
    everything: Annotated[
        bool, flag("--all", help="Also those without a policy, by its defaults, and the lake's own tables.")
    ] = False,
    dry_run: DryRun = False,
    no_vacuum: Annotated[bool, flag("--no-vacuum", help="Join files, and delete none.")] = False,
) -> None:
    """Join the small files of tables into large ones, and delete files that are no longer used.

    Rows stay as they are and nothing becomes stale; runs and streams go on beside it. What is worth joining, and how
    long old files are kept, a dataset says by maintenance=Compactor(...). A table of PostgreSQL is vacuumed there, and
    its old parts are frozen (freeze_after); of a topic the settings are looked at.
    """
    with open_project(screen) as project:
        summary = project.maintain(select or (), everything=everything, dry_run=dry_run, vacuum=not no_vacuum)
    if screen.as_json:
        screen.show_json(_as_json(summary))
    else:
        _show(screen, summary)
    if summary.exit_code:
        raise typer.Exit(summary.exit_code)


def _show(screen: Screen, summary: MaintenanceSummary) -> None:
    numbers = ["files", "files after", "bytes", "bytes after", "deleted"]
    word = {"done": "would" if summary.dry_run else "done"}
    rows = [[one.dataset, word.get(one.state, one.state), *_figures(one), one.reason] for one in summary.outcomes]
    if rows:
        screen.show(plain_table(["dataset", "state", *numbers, "what"], rows, right=numbers))
    for one in summary.outcomes:
        if one.error is not None:
            screen.fail(one.error)
    screen.say(summary.closing_line(), "" if summary.exit_code else "bold")


def _figures(one: TableOutcome) -> list[str]:
    counts = [one.files_before, one.files_after]
    sizes = [one.bytes_before, one.bytes_after]
    shown = ["-" if count is None else f"{count:,}" for count in counts]
    shown += ["-" if size is None else shown_size(size) for size in sizes]
    return [*shown, "-" if one.deleted_files is None else f"{one.deleted_files:,}"]


def _as_json(summary: MaintenanceSummary) -> dict[str, Any]:
    def told(one: TableOutcome) -> dict[str, Any]:
        plain = {field.name: getattr(one, field.name) for field in fields(one) if field.name != "error"}
        return {**plain, "error": None if one.error is None else describe(one.error).as_json()}

    return {
        "dry_run": summary.dry_run,
        "tables": [told(one) for one in summary.outcomes],
        "seconds": round(summary.seconds, 3),
        "message": summary.closing_line(),
        "exit_code": summary.exit_code,
        "error": None,
    }
