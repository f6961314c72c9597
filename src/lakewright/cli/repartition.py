"""`lakewright repartition`: lay a dataset's table out by other columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import DryRun, Yes
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, InterruptedRun

if TYPE_CHECKING:
    from lakewright.pipelines.repartition import RepartitionSummary

__all__ = ["repartition"]


def repartition(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset whose layout was declared anew.")],
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="COLUMN", help="Leave a column behind that only the old layout needed."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Lay a dataset's table out by the partition columns that it declares now.

    Every row is rewritten, in one commit; the rows stay as they are, and nothing downstream becomes stale.
    """
    with open_project(screen) as project:
        intended = project.repartition(dataset, drop=drop or (), dry_run=True)
        due = intended.before != intended.after or bool(drop)
        if dry_run or not due:
            _show(screen, intended, "Would rewrite" if due else "Nothing to do for")
            return
        if not yes:
            if not screen.can_ask:
                raise ConfigurationError(
                    f"All rows of '{dataset}' would be rewritten, and nobody is here to ask. Nothing was started.",
                    hint="--dry-run shows what it would do; --yes does it.",
                )
            _show(screen, intended, "Would rewrite")
            if not screen.confirm("Rewrite?"):
                screen.say("Nothing was changed.")
                raise typer.Exit(InterruptedRun.exit_code)
        _show(screen, project.repartition(dataset, drop=drop or ()), "Rewrote")


def _show(screen: Screen, summary: RepartitionSummary, word: str) -> None:
    if screen.as_json:
        screen.show_json({**asdict(summary), "done": word == "Rewrote", "error": None})
        return
    rows = "an unknown number of" if summary.rows is None else f"{summary.rows:,}"
    screen.say(f"{word} {summary.dataset} ({rows} rows).", "bold")
    told = {"laid out by": summary.before, "declared": summary.after, "columns left behind": summary.dropped}
    for what, names in told.items():
        screen.say(f"  {what}: {', '.join(names) or 'none'}")
