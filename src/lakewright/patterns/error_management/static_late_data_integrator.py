"""Static Late Data Integrator: make a fixed number of past slices again in every run.

Problem:
    Statistics of a day stay open for two weeks, since visits come late. A job that handles only the current day never
    takes them in, and fifteen jobs a day would repeat each other's work.
Guarantee:
    A run makes exactly the slices of its look-back, and the current one; what is older is reported, and not made. The
    length of the look-back never changes. A slice that is made again has no look-back of its own. A repeat of the run
    makes only what did not succeed.
Consequences:
    - Days without late rows are made again for nothing: ``only_late`` asks first, or take the dynamic pattern.
    - Whoever reads these slices follows, and so do those who read them: `lakewright plan` shows them.
    - Runs for three days in a row share most of their look-back: ``runs_to_backfill`` tells which of them are enough.
    - Where a slice depends on those before it, history comes first (``placement="before"``); anything else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lakewright.errors import ConfigurationError
from lakewright.model.policies import Placement, Revisit
from lakewright.model.times import Grid, cell_interval, cell_of, cells_between, grid_of, parse_duration

__all__ = ["runs_to_backfill", "slices_to_revisit", "stages_of_run"]

_NAME = "Static Late Data Integrator"
_TICK = timedelta(microseconds=1)


def slices_to_revisit(current: str, *, lookback: str) -> list[str]:
    """The past slices that a run for ``current`` makes again, oldest first; the current one is not among them.

    >>> slices_to_revisit("2024-10-12", lookback="4 days")
    ['2024-10-08', '2024-10-09', '2024-10-10', '2024-10-11']
    """
    reach = _reach(lookback)
    start = cell_interval(current).start
    return list(cells_between(start - reach, start, grid_of(current)))


def stages_of_run(
    current: str, revisited: Sequence[str], *, placement: Placement, stateful: bool = False
) -> list[list[str]]:
    """What a run makes one after another; what stands in one list may be made side by side.

    >>> stages_of_run("2024-10-12", ["2024-10-10", "2024-10-11"], placement="after")
    [['2024-10-12'], ['2024-10-10', '2024-10-11']]
    """
    Revisit("1 day", placement=placement)
    if stateful:
        if placement != "before":
            raise stateful_needs_before(_NAME, placement)
        return [[one] for one in (*sorted(revisited), current)]
    if placement == "parallel" or not revisited:
        return [[*revisited, current]]
    return [list(revisited), [current]] if placement == "before" else [[current], list(revisited)]


def runs_to_backfill(start: str, end: str, *, lookback: str) -> list[str]:
    """Which runs of ``[start, end]`` (both included) are enough, newest first: each covers its look-back as well.

    >>> runs_to_backfill("2024-10-10", "2024-10-12", lookback="4 days")
    ['2024-10-12']
    """
    grid = grid_of(start)
    first, last = cell_interval(start), cell_interval(end)
    if grid != grid_of(end) or last.start < first.start:
        raise ConfigurationError(f"{_NAME}: a backfill goes from a slice to a later one, not from {start} to {end}.")
    found, at = [end], _first_covered(end, lookback, grid)
    while at > start:
        found.append(before := cell_of(cell_interval(at).start - _TICK, grid))
        at = _first_covered(before, lookback, grid)
    return found


def stateful_needs_before(what: str, placement: str) -> ConfigurationError:
    """What is said where current rows would be made of a history that is not valid yet."""
    return ConfigurationError(
        f"{what}: a slice depends on those before it, so the look-back comes before the current slice, not "
        f"{'beside' if placement == 'parallel' else 'after'} it.",
        hint='Use placement="before".',
    )


def _first_covered(run: str, lookback: str, grid: Grid) -> str:
    return cell_of(cell_interval(run).start - _reach(lookback), grid)


def _reach(lookback: str) -> timedelta:
    reach = parse_duration(lookback)
    if reach <= timedelta(0):
        raise ConfigurationError(f"{_NAME}: the look-back is longer than nothing, not '{lookback}'.")
    return reach
