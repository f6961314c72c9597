"""`lakewright ready`: may a slice be read? For people, and for the schedulers of other teams."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.opening import open_existing_store, open_project
from lakewright.cli.screen import Screen
from lakewright.errors import ConfigurationError, NotReady
from lakewright.model.times import parse_duration

if TYPE_CHECKING:
    from lakewright.pipelines.ready import Readiness

__all__ = ["ready"]

_SHORT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def ready(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(help="The dataset.")],
    slice_id: Annotated[
        str,
        typer.Option("--slice", metavar="SLICE", help="The slice: 2026-01-05, 2026-01-05T07, arrival-7 or whole."),
    ] = "whole",
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="LENGTH", help="Wait so long for it: 2h, 30m, 1 day.")
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="LENGTH", help="With --wait: ask so often (default: 30s).")
    ] = "30s",
) -> None:
    """Tell whether a slice is complete and may be read: exit code 0 ready, 4 not yet, 2 no such dataset or slice.

    Starts no Spark where the tables are local, and reads the store alone where a run has made the dataset before.
    """
    limit = None if wait is None else _length("--wait", wait)
    pause = _length("--every", every)
    deadline = monotonic() + (timedelta(0) if limit is None else limit).total_seconds()
    while not (found := _ask(screen, dataset, slice_id)).ready:
        left = deadline - monotonic()
        if left <= 0:
            break
        sleep(min(max(pause.total_seconds(), 0.1), left))
    late = "" if limit is None or found.ready else f" It was waited for {wait}."
    if screen.as_json:
        screen.show_json(_as_json(found, late))
    elif found.ready:
        rows = "" if found.rows is None else f", {found.rows:,} rows"
        screen.show(f"{dataset} {found.slice} is ready since {found.since:%Y-%m-%d %H:%M:%S} UTC{rows}")
    else:
        raise NotReady(f"{dataset} {found.slice} is not ready: {found.reason}.{late}")
    raise typer.Exit(0 if found.ready else NotReady.exit_code)


def _ask(screen: Screen, dataset: str, slice_id: str) -> Readiness:
    from lakewright.pipelines.ready import known_readiness

    with open_existing_store(screen) as store:
        found = None if store is None else known_readiness(store, dataset, slice_id)
    if found is not None:
        return found
    with open_project(screen) as project:
        return project.ready(dataset, slice_id)


def _length(option: str, text: str) -> timedelta:
    """A length of time, short or in words.

    >>> _length("--wait", "2h"), _length("--wait", "90 seconds")
    (datetime.timedelta(seconds=7200), datetime.timedelta(seconds=90))
    """
    words = re.sub(r"(\d+)\s*([smhd])(?![a-z])", lambda found: f"{found[1]} {_SHORT[found[2]]}", text)
    try:
        return parse_duration(words)
    except ConfigurationError:
        raise ConfigurationError(
            f"{option}: '{text}' is not a length of time. Write it as 2h, 30m, 45s or '1 day'."
        ) from None


def _as_json(found: Readiness, late: str) -> dict[str, Any]:
    return {**asdict(found), "reason": found.reason + (f";{late[:-1].lower()}" if late else ""), "error": None}
