"""`lakewright stream` and `lakewright run --continuous`: how far streams are, reading again, moving, keeping going."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakewright.cli.commands import DryRun, Yes, flag
from lakewright.cli.opening import open_project
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, InterruptedRun
from lakewright.model.sizes import shown_size
from lakewright.model.times import parse_duration, parse_time, utc_now

if TYPE_CHECKING:
    from lakewright.model.arrivals import Window
    from lakewright.pipelines.streams.looking import StreamState
    from lakewright.pipelines.streams.rewind import RewindSummary
    from lakewright.pipelines.streams.worker import WorkerSummary

__all__ = ["move", "rewind", "run_continuously", "show"]


def show(
    screen: Screen,
    datasets: Annotated[
        list[str] | None, typer.Argument(metavar="DATASET", help="The streams; all where none is named.")
    ] = None,
) -> None:
    """Show how streams stand: position, rate, lag, size of their state, and who keeps them going.

    Starts no stream. The lag is asked of the source: records that it holds and the stream has not read.
    """
    with open_project(screen) as project:
        found = project.streams(datasets or ())
    if screen.as_json:
        screen.show_json({"streams": [asdict(one) for one in found], "error": None})
        return
    columns = ["stream", "generation", "batch", "position", "rows/s", "behind", "state", "last batch", "kept going by"]
    rows = [_cells(one) for one in found]
    if any(one.buffered is not None for one in found):  # rows that wait in a skew buffer
        columns.insert(6, "buffered")
        for one, cells in zip(found, rows, strict=True):
            cells.insert(6, "-" if one.buffered is None else f"{one.buffered:,}")
    if any(one.pairs is not None for one in found):  # how well the joins of two streams match
        columns.insert(7, "matched")
        for one, cells in zip(found, rows, strict=True):
            cells.insert(7, _matched(one))
    if any(one.held_back is not None for one in found):  # by captures of databases
        columns.insert(-1, "log held back")
        for one, cells in zip(found, rows, strict=True):
            cells.insert(-1, "-" if one.held_back is None else shown_size(one.held_back))
    screen.show(plain_table(columns, rows))
    for one in found:
        if one.problem:
            screen.warn(f"{one.dataset}: {one.problem}")


def rewind(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The stream.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Read again from this time on, in UTC: 2026-01-05T07:00.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="DURATION", help='Read the last "1 hour" or "2 days" again.')
    ] = None,
    everything: Annotated[bool, flag("--all", help="Read everything again, from where the stream began.")] = False,
    lost: Annotated[
        Literal["keep", "delete"] | None,
        typer.Option("--lost", help="What to do with rows that the source could not give again; else it is refused."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let a stream read again from an earlier place; each record is there once afterwards.

    What will be read again is deleted first, and the stream begins a new checkpoint there; the next `run` reads. The
    time is that of the records at the source (the timestamp of a Kafka message). Stop a continuous stream before.

    Rows whose records the source has deleted since could not be read again: then nothing is changed. With `--lost
    keep` they stay, and every micro-batch is read again that is held as a whole; `--lost delete` deletes them for good.
    """
    if sum((to is not None, by is not None, everything)) != 1:
        raise ConfigurationError("Say where to rewind to: one of --to TIME, --by DURATION and --all.")
    moment = None if everything else parse_time(to) if to is not None else utc_now() - parse_duration(by or "")
    with open_project(screen) as project:
        project.graph.stream(dataset)  # a wrong name is told before anybody is asked
        if not (dry_run or yes or screen.can_ask):
            raise ConfigurationError(
                f"A rewind of '{dataset}' deletes rows until they are read again, and nobody is here to ask. Nothing "
                "was started.",
                hint="--dry-run shows what it would do; --yes does it.",
            )
        intended = project.rewind(dataset, to=moment, lost=lost or "refuse", dry_run=True)
        if dry_run or not yes:
            _show_rewind(screen, intended, done=False)
        if dry_run:
            return
        if not yes and not screen.confirm("Rewind?"):
            screen.say("Nothing was changed.")
            raise typer.Exit(InterruptedRun.exit_code)
        _show_rewind(screen, project.rewind(dataset, to=moment, lost=lost or "refuse"), done=True)


def move(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The stream.")],
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="A folder, or a URI, in storage that outlives the machine.")
    ],
) -> None:
    """Move a stream's checkpoint to another place; the stream goes on from there, and no record comes twice.

    It is copied as a whole first. Killed before that is done, the old one stays in force. Stop a continuous stream
    before. A rewind begins a new checkpoint, in the lake again.
    """
    with open_project(screen) as project:
        moved = project.move_checkpoint(dataset, to)
    if screen.as_json:
        screen.show_json({**asdict(moved), "error": None})
        return
    screen.say(f"Moved the checkpoint of {moved.dataset}, at micro-batch {moved.batch}.", "bold")
    screen.say(f"  from: {moved.before}")
    screen.say(f"  to:   {moved.after}")


def run_continuously(screen: Screen, select: Sequence[str]) -> None:
    """Keep streams going until the process is told to stop."""
    from lakewright.cli.run_progress import follow

    with open_project(screen) as project, follow(screen) as listener:
        summary = project.run_continuous(select, listener=listener)
    _report(screen, summary)


def _report(screen: Screen, summary: WorkerSummary) -> None:
    code = summary.exit_code
    if screen.as_json:
        streams: list[dict[str, Any]] = [
            {"dataset": one.dataset, "batches": one.batches, "rows": one.rows, "restarts": one.restarts}
            | {"error": None if one.error is None else str(one.error)}
            for one in summary.streams
        ]
        error = None if not summary.failed else str(summary.failed[0].error)
        screen.show_json({"run_id": summary.run_id, "state": summary.state, "streams": streams, "error": error})
        raise typer.Exit(code)
    for one in summary.streams:
        again = f", started again {one.restarts} times" if one.restarts else ""
        screen.say(f"{one.dataset}: {one.batches:,} micro-batches, {one.rows:,} rows{again}")
    for one in summary.failed:
        assert one.error is not None
        screen.fail(one.error)
    ended = len(summary.streams) - len(summary.failed)
    screen.say(f"Stopped after {summary.seconds:.1f} s. {ended} ok, {len(summary.failed)} failed.", "bold")
    raise typer.Exit(code)


def _show_rewind(screen: Screen, summary: RewindSummary, *, done: bool) -> None:
    if screen.as_json:
        screen.show_json({**asdict(summary), "done": done, "error": None})
        return
    word = "Rewound" if done else "Would rewind"
    screen.say(f"{word} {summary.dataset}: generation {summary.generation} begins.", "bold")
    screen.say(f"  reads from: {_place(summary.start)}")
    if summary.deleted is not None:
        again = summary.deleted - (summary.rows_lost - summary.lost_waiting if summary.lost == "delete" else 0)
        screen.say(f"  rows deleted, to be read again: {max(again, 0):,}")
    if summary.rows_lost:
        fate = "deleted for good" if summary.lost == "delete" else "kept"
        waited = f", {summary.lost_waiting:,} of them out of the skew buffer" if summary.lost_waiting else ""
        screen.say(f"  rows that the source no longer has, {fate}: {summary.rows_lost:,}{waited}")
    screen.say(f"  read by, and stale by the next run: {', '.join(summary.consumers) or 'none'}")


def _place(start: Window | None) -> str:
    """Where a stream begins to read, in words."""
    if start is None:
        return "where the source begins"
    partitions = start.get("partitions")
    if not isinstance(partitions, dict):
        return str(dict(start))
    begins = (f"{name} from {span[0]}" for name, span in partitions.items() if isinstance(span, list))
    return f"partition {', '.join(begins)}"


def _matched(one: StreamState) -> str:
    """Pairs, and their share of all rows that a join has released."""
    if one.pairs is None:
        return "-"
    released = one.pairs + (one.unmatched or 0)
    return f"{one.pairs:,} pairs" + (f" ({one.pairs / released:.0%})" if one.unmatched else "")


def _cells(one: StreamState) -> list[str]:
    told = one.progress
    if told is None:
        batch, place, rate, state, seconds = "-", "-", "-", "-", "-"
    else:
        rate = "-" if told.rows_per_second is None else f"{told.rows_per_second:,.0f}"
        state = "-" if told.state_rows is None else f"{told.state_rows:,} rows"
        seconds = "-" if told.batch_seconds is None else f"{told.batch_seconds:.1f} s"
        batch, place = str(told.batch), told.offsets
    lag = "?" if one.behind is None else f"{one.behind:,}"
    return [one.dataset, str(one.generation or "-"), batch, place, rate, lag, state, seconds, one.running or "nobody"]
