"""Levels of a cube: the sets of axes by which there are cells, each told by its number (``grouping_id``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["all_levels", "checked_levels", "keep_level", "level_number"]

_WHAT = "Distributed Aggregator"
_MOST_AXES = 12


def all_levels(cube: Sequence[str]) -> list[tuple[str, ...]]:
    """Every set of axes, the finest first.

    >>> all_levels(["country", "device"])
    [('country', 'device'), ('country',), ('device',), ()]
    """
    return [level for size in range(len(cube), -1, -1) for level in combinations(cube, size)]


def level_number(cube: Sequence[str], level: Sequence[str]) -> int:
    """Its ``grouping_id``: a bit for each axis over which it is a total, the last axis lowest.

    >>> level_number(["country", "device"], ["country"])
    1
    """
    return sum(1 << (len(cube) - 1 - place) for place, axis in enumerate(cube) if axis not in level)


def checked_levels(cube: Sequence[str], levels: Sequence[Sequence[str]] | None) -> tuple[tuple[str, ...], ...] | None:
    """The levels that were asked for; refused where one is none, or where there would be too many."""
    if levels is None:
        if len(cube) > _MOST_AXES:
            raise ConfigurationError(
                f"{_WHAT}: a cube of {len(cube)} axes has {2 ** len(cube):,} levels.",
                hint='Name those that are read: levels=[["country"], ["country", "device"], []].',
            )
        return None
    if not cube or not levels or isinstance(levels, str):
        raise ConfigurationError(f"{_WHAT}: 'levels' are lists of axes of 'cube', at least one.")
    for level in levels:
        if isinstance(level, str) or (unknown := [axis for axis in level if axis not in cube]):
            told = repr(level) if isinstance(level, str) else unknown[0]
            raise ConfigurationError(f"{_WHAT}: a level is a list of axes of 'cube', and {told} is none.")
    return tuple(tuple(level) for level in levels)


def keep_level(
    cells: DataFrame, *, cube: Sequence[str], level: Sequence[str], id_column: str = "grouping_id"
) -> DataFrame:
    """Keep the cells of one level of a cube, such as those by country over all devices; lazy.

    >>> given = [("FR", 0, 1), (None, 0, 1), (None, 1, 2)]
    >>> cells = spark.createDataFrame(given, "country string, grouping_id int, n int")
    >>> keep_level(cells, cube=["country"], level=[]).collect()
    [Row(country=None, grouping_id=1, n=2)]
    """
    if unknown := [axis for axis in level if axis not in cube]:
        raise ConfigurationError(f"{_WHAT}: {unknown[0]} is no axis of this cube: {', '.join(cube)}.")
    return cells.where(f"{quoted(id_column)} = {level_number(cube, level)}")
