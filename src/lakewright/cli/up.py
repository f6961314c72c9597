"""`lakewright up`: run the schedules of a project on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakewright.cli.commands import flag
from lakewright.cli.opening import settings_of
from lakewright.cli.screen import Screen
from lakewright.errors import InterruptedRun
from lakewright.model.times import utc_now

if TYPE_CHECKING:
    from lakewright.pipelines.scheduler import Scheduler

__all__ = ["up"]


def up(
    screen: Screen,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="Pipelines that run at once, each with its own Spark.")
    ] = 2,
    once: Annotated[
        bool, flag("--once", help="Make what is due now, and end: for cron, or to catch up by hand.")
    ] = False,
) -> None:
    """Run the schedules of the project: times, datasets and triggers. Spark runs only while something is due.

    A second one stands by, and takes over when the first one ends or dies. Changed pipeline files are read again. What
    the runs say is in .lakewright/up, a file for each pipeline.

    It goes on until Ctrl-C or SIGTERM. Then nothing new is started, the runs at work are asked to stop, each after the
    commits under way, and it waits for them; a second signal ends it at once, and leaves them to end by themselves.

    Exit codes: 0 stopped as asked, or with --once all went well; 1 with --once something did not succeed; 2 wrong usage
    or project; 130 with --once it was interrupted, or a second signal came.
    """
    from lakewright.pipelines.launching import ProcessLauncher
    from lakewright.pipelines.scheduler import Scheduler
    from lakewright.store import open_store

    settings = settings_of(screen)
    target = settings.target
    logs = target.state / "up"
    launcher = ProcessLauncher(settings.folder, settings.pipelines, target=target.name, logs=logs)

    def tell(words: str, severity: Literal["info", "warning"]) -> None:
        line = f"{utc_now():%Y-%m-%d %H:%M:%S} {words}"
        screen.warn(line) if severity == "warning" else screen.say(line)

    with open_store(target.reveal_store()) as store:
        scheduler = Scheduler(store, launcher, tell=tell, workers=workers, once=once)
        with _signals(scheduler):
            summary = scheduler.run()
    stopped = (once and summary.state == "interrupted") or scheduler.hurry.is_set()
    code = InterruptedRun.exit_code if stopped else 1 if once and summary.state == "failed" else 0
    counts = dict(sorted(summary.runs.items()))
    if screen.as_json:
        told = {"processes": summary.processes, "runs": counts, "state": summary.state}
        screen.show_json({**told, "error": None})
    else:
        words = ", ".join(f"{number} {state}" for state, number in counts.items()) or "no runs"
        screen.say(f"{words}, in {summary.processes} processes.", "bold")
    raise typer.Exit(code)


@contextmanager
def _signals(scheduler: Scheduler) -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        if scheduler.stop.is_set():
            scheduler.hurry.set()
        scheduler.stop.set()

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
