"""`lakewright rollback`: put a dataset back to an earlier version."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.commands import DryRun, Yes
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, InterruptedRun

if TYPE_CHECKING:
    from lakewright.pipelines.rollback import RollbackSummary

__all__ = ["rollback"]


def rollback(
    screen: Screen,
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="The dataset; the private outputs of its step go with it.")
    ],
    to: Annotated[
        int | None, typer.Option("--to", metavar="VERSION", min=0, help="The version (default: the one before).")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put a dataset back to an earlier version, with all outputs of its step.

    The slices rolled back stay as they are until something new arrives, `run --again` or `backfill`.
    """
    with open_project(screen) as project:
        project.graph[dataset]  # a wrong name is told before anybody is asked
        if not (dry_run or yes or screen.can_ask):
            raise ConfigurationError(
                f"A rollback of '{dataset}' takes rows away, and nobody is here to ask. Nothing was started.",
                hint="--dry-run shows what it would do; --yes does it.",
            )
        intended = project.rollback(dataset, to=to, dry_run=True)
        if dry_run:
            _show(screen, intended, done=False)
            return
        if not yes:
            _show(screen, intended, done=False)
            if not screen.confirm("Roll back?"):
                screen.say("Nothing was changed.")
                raise typer.Exit(InterruptedRun.exit_code)
        _show(screen, project.rollback(dataset, to=intended.to_version), done=True)


def _show(screen: Screen, summary: RollbackSummary, *, done: bool) -> None:
    if screen.as_json:
        screen.show_json({**asdict(summary), "done": done, "error": None})
        return
    word = "Rolled back" if done else "Would roll back"
    screen.say(f"{word} {summary.dataset} from version {summary.from_version} to {summary.to_version}.", "bold")
    told = {
        "tables": summary.outputs,
        "slices rolled back": summary.slices_rolled_back,
        "slices live again": summary.slices_live_again,
        "read by, and stale by the next run": summary.consumers,
    }
    for what, names in told.items():
        screen.say(f"  {what}: {', '.join(map(str, names)) or 'none'}")
