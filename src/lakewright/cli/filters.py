"""`lakewright filters`: what each filter of a dataset removed, slice by slice or window by window."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakewright.cli.opening import open_existing_store, open_project
from lakewright.cli.screen import Screen
from lakewright.cli.tables import plain_table
from lakewright.errors import ConfigurationError, UnknownNameError
from lakewright.model.times import parse_duration

if TYPE_CHECKING:
    from lakewright.model.receipts import Filtered
    from lakewright.pipelines.filtering import FilterWindow

__all__ = ["filters"]


def filters(
    screen: Screen,
    dataset: Annotated[str, typer.Argument(help="A dataset with a Filter Interceptor.")],
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="LENGTH", help='Gather by the time of the commits: "10 minutes", "1 day".'),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many at most, the newest first.")] = 20,
) -> None:
    """Show how many rows each filter removed, and of how many, newest first.

    A slice that was made again shows its newest figures. Reads the store alone.
    """
    length = None if window is None else _length(window)
    filtered, found = _ask(screen, dataset, length, limit)
    if screen.as_json:
        screen.show_json({"dataset": dataset, "windows": [_as_json(one) for one in found], "error": None})
        return
    if not found:
        none = f"{dataset} has no filters: FilterInterceptor(filters={{...}}) in its guards_in gives it some."
        screen.say(f"No filter of {dataset} was counted yet." if filtered else none)
        return
    names = list(dict.fromkeys(name for one in found for name in one.filtered.removed))
    others = list(
        dict.fromkeys((of, name) for one in found for of, more in one.by_input.items() for name in more.removed)
    )
    rows = [
        [
            _when(one),
            f"{one.filtered.judged:,}",
            *[_cell(one.filtered, name) for name in names],
            *[_cell(one.by_input.get(of), name) for of, name in others],
        ]
        for one in found
    ]
    columns = ["slice" if length is None else "window", "judged", *names, *[f"{of}: {name}" for of, name in others]]
    screen.show(plain_table(columns, rows, right=columns[1:]))


def _ask(screen: Screen, dataset: str, window: timedelta | None, limit: int) -> tuple[bool, list[FilterWindow]]:
    """Whether the dataset has filters, and what they removed."""
    from lakewright.patterns.error_management.filter_interceptor import FilterInterceptor
    from lakewright.pipelines.filtering import filter_history

    with open_project(screen) as project:
        known = project.graph.datasets
        if dataset not in known:
            raise UnknownNameError("dataset", dataset, known)
        filtered = known[dataset].has_guard(FilterInterceptor)
    with open_existing_store(screen) as store:
        return filtered, [] if store is None else filter_history(store, dataset, window=window, limit=limit)


def _length(text: str) -> timedelta:
    length = parse_duration(text)
    if length <= timedelta(0):
        raise ConfigurationError(f"--window is a length of time above zero, not {text!r}.")
    return length


def _when(one: FilterWindow) -> str:
    return one.slice_id if one.start is None else f"{one.start:%Y-%m-%d %H:%M:%S}"  # type: ignore[return-value]


def _cell(filtered: Filtered | None, name: str) -> str:
    rows = None if filtered is None else filtered.removed.get(name)
    if filtered is None or rows is None:
        return "-"
    share = filtered.shares().get(name)
    return f"{rows:,}" if share is None else f"{rows:,} ({share:.1%})"


def _as_json(one: FilterWindow) -> dict[str, Any]:
    return {
        "slice": one.slice_id,
        "start": None if one.start is None else one.start.isoformat(),
        "end": None if one.end is None else one.end.isoformat(),
        "run_id": one.run_id,
        "job_version": one.job_version,
        **_figures(one.filtered),
        "by_input": {name: _figures(filtered) for name, filtered in one.by_input.items()},
    }


def _figures(filtered: Filtered) -> dict[str, Any]:
    return {
        "judged": filtered.judged,
        "removed": dict(filtered.removed),
        "breaks": dict(filtered.breaks),
        "shares": {name: round(share, 6) for name, share in filtered.shares().items()},
        "sample": filtered.sample,
    }
