"""`lakewright pause` and `lakewright resume`: hold the schedule of a pipeline, and let it go on."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.opening import declared_pipelines, open_existing_store, settings_of
from lakewright.cli.screen import Screen
from lakewright.errors import UnknownNameError
from lakewright.model.times import utc_now

__all__ = ["pause", "resume"]

Names = Annotated[list[str], typer.Argument(metavar="PIPELINE", help="The pipelines.")]


def pause(
    screen: Screen,
    pipelines: Names,
    because: Annotated[
        str | None, typer.Option("--because", metavar="TEXT", help="Why: `lakewright status` shows it.")
    ] = None,
) -> None:
    """Let no schedule start these pipelines until `lakewright resume`. A run that is at work goes on.

    Runs by hand stay possible. The listener of `lakewright up` leaves their triggers alone meanwhile.
    """
    from lakewright.store import open_store

    known = [pipeline.name for pipeline in declared_pipelines(screen)]
    for name in pipelines:
        if name not in known:
            raise UnknownNameError("pipeline", name, known)
    with open_store(settings_of(screen).target.reveal_store()) as store:
        changed = [name for name in pipelines if store.schedules.pause(name, because=because, now=utc_now())]
    _tell(screen, pipelines, changed, "paused")


def resume(screen: Screen, pipelines: Names) -> None:
    """Let the schedules of paused pipelines go on; what they missed is made as their `catch_up` says."""
    with open_existing_store(screen) as store:
        paused = [] if store is None else [one.pipeline for one in store.schedules.paused()]
        unknown = [name for name in pipelines if name not in paused]
        if unknown and unknown[0] not in [pipeline.name for pipeline in declared_pipelines(screen)]:
            raise UnknownNameError("pipeline", unknown[0], paused)
        changed = [name for name in pipelines if store is not None and store.schedules.resume(name, now=utc_now())]
    _tell(screen, pipelines, changed, "resumed")


def _tell(screen: Screen, asked: list[str], changed: list[str], word: str) -> None:
    if screen.as_json:
        screen.show_json({word: changed, "error": None})
        return
    for name in asked:
        already = "was not paused" if word == "resumed" else "was paused already"
        screen.say(f"{name} is {word}." if name in changed else f"{name} {already}.")
