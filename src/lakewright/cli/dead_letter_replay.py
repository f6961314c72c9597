"""`lakewright dead-letters replay`: put records back through the current code, as they are or corrected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.commands import DryRun, Parallel, Wait, Yes, flag
from lakewright.cli.dead_letters import End, Reasons, Records, Slices, Start, chosen
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, InterruptedRun

if TYPE_CHECKING:
    from lakewright.pipelines.dead_letter_life import State
    from lakewright.pipelines.replay import ReplaySummary
    from lakewright.pipelines.replay_records import Edits

__all__ = ["replay"]


def replay(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that set them aside.")],
    records: Records = None,
    reasons: Reasons = None,
    slices: Slices = None,
    start: Start = None,
    end: End = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="Correct a column in all of them. May be repeated."),
    ] = None,
    edit: Annotated[
        Path | None,
        typer.Option(
            "--edit",
            metavar="FILE",
            help='Correct record by record: lines as {"record": ID, "fields": {...}}, or with "raw" the whole text.',
        ),
    ] = None,
    out_of_order: Annotated[
        bool, flag("--out-of-order", help="Also where an output depends on the order in which rows came.")
    ] = False,
    wait: Wait = 0.0,
    parallel: Parallel = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put open dead letters back through the current code: as they are (after a fix), or corrected.

    Shows first which slices are made again, those of all consumers too, and asks. A corrected record takes the place of
    its original for good; one that fails again is set aside again. Exit codes are those of `run`.
    """
    edits = _edits(columns or [], edit)
    ids = [*(records or []), *(one.record for one in edits.records)]
    states: tuple[State, ...] = ("open", "evidence") if ids else ("open",)
    if ids and edits:
        states = (*states, "corrected")
    selection = chosen(dataset, ids, reasons, slices, start, end, states)
    with open_project(screen) as project:
        from lakewright.pipelines.letter_policies import refuse_never_replayed

        refuse_never_replayed(project.graph[dataset])  # this, and a wrong name, are told before anybody is asked
        if not (dry_run or yes or screen.can_ask):
            raise ConfigurationError(
                f"A replay of '{dataset}' makes slices again that others have read, and nobody is here to ask. "
                "Nothing was started.",
                hint="--dry-run shows what it would do; --yes does it.",
            )
        if dry_run or not yes:
            intended = project.replay_dead_letters(selection, edits, dry_run=True)
            if dry_run or not intended.records:
                _show(screen, intended, done=False)
                return
            _show(screen, intended, done=False)
            if not screen.confirm("Replay?"):
                screen.say("Nothing was changed.")
                raise typer.Exit(InterruptedRun.exit_code)
        from lakewright.cli.run_progress import follow

        with follow(screen) as listener:
            summary = project.replay_dead_letters(
                selection, edits, out_of_order=out_of_order, listener=listener, parallel=parallel, wait_seconds=wait
            )
        _show(screen, summary, done=True)
        if summary.run is not None and summary.run.exit_code:
            for error in summary.run.errors:
                screen.fail(error)
            raise typer.Exit(summary.run.exit_code)


def _edits(columns: list[str], file: Path | None) -> Edits:
    from lakewright.pipelines.replay_records import Edits, load_edits

    given: dict[str, str | None] = {}
    for text in columns:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"'{text}' does not say which column gets which value.", hint="--set page=/home")
        given[name] = None if value == "NULL" else value
    if file is not None and not file.is_file():
        raise ConfigurationError(f"There is no file {file}. Nothing was changed.")
    return Edits(columns=given, records=() if file is None else load_edits(file))


def _show(screen: Screen, summary: ReplaySummary, *, done: bool) -> None:
    if screen.as_json:
        screen.show_json(_as_json(summary, done=done))
        return
    if not summary.records:
        screen.say(f"No dead letter of {summary.dataset} is meant: there is nothing to replay.")
        return
    if done:
        unchanged = f", {summary.unchanged:,} left as they are" if summary.unchanged else ""
        screen.say(
            f"Replayed {summary.records:,}: {summary.corrected:,} corrected, {summary.still_open:,} set aside "
            f"again{unchanged}."
        )
    else:
        unusable = (
            f", of which {summary.unusable:,} still cannot be read or have no usable time" if summary.unusable else ""
        )
        screen.say(f"Would replay {summary.records:,} dead letters of {summary.dataset}{unusable}.", "bold")
    for name, cells in summary.touched.items():
        screen.say(f"  records of {name} change in: {', '.join(cells) or 'none'}")
    for name, slices in summary.slices.items():
        screen.say(f"  made again: {name} {', '.join(slices)}")
    for name, why in summary.ordered.items():
        screen.warn(f"{name} {why}.")
    for note in summary.notes:
        screen.warn(note)


def _as_json(summary: ReplaySummary, *, done: bool) -> dict[str, Any]:
    run = summary.run
    return {
        "dataset": summary.dataset,
        "done": done,
        "records": summary.records,
        "unusable": summary.unusable,
        "unchanged": summary.unchanged,
        "corrected": summary.corrected,
        "still_open": summary.still_open,
        "touched": {name: list(cells) for name, cells in summary.touched.items()},
        "slices": {name: list(slices) for name, slices in summary.slices.items()},
        "ordered": dict(summary.ordered),
        "notes": list(summary.notes),
        "run_id": None if run is None else run.run_id,
        "state": None if run is None else run.state,
        "error": None,
    }
