"""Containers named by the execution: Keyed Idempotency for files and folders.

The name of a folder (or of a table, a partition) is made of the execution's own time, which a repeat has too: it
replaces the same container. A name made of the clock would leave one more at each repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.times import Grid, cell_interval, cell_of, parse_time
from lakewright.patterns.idempotency.file_swap import overwrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["container_name", "write_container"]

_GRIDS = ("hour", "day", "month")


def container_name(execution_time: str | date | datetime, *, grid: Grid = "day", prefix: str = "execution=") -> str:
    """The name of an execution's container. Names sort as the executions do, and are the same for every attempt.

    >>> container_name("2024-11-20"), container_name("2024-11-20T07:00", grid="hour", prefix="visits_")
    ('execution=2024-11-20', 'visits_2024-11-20T07')
    """
    if grid not in _GRIDS:
        raise ConfigurationError(f"Keyed Idempotency: grid is one of {', '.join(_GRIDS)}, not {grid!r}.")
    at = parse_time(execution_time)
    cell = cell_of(at, grid)
    if at != cell_interval(cell).start:
        raise ConfigurationError(
            f"Keyed Idempotency: {at.isoformat()} is no beginning of a{'n' * (grid == 'hour')} {grid}: two executions "
            "would share a container. That is the clock's time, or the grid is too coarse.",
            hint="Give the execution's own time, or a finer grid.",
        )
    return f"{prefix}{cell}"


def write_container(
    df: DataFrame,
    folder: str,
    *,
    execution_time: str | date | datetime,
    grid: Grid = "day",
    prefix: str = "execution=",
    file_format: Literal["parquet", "json", "csv", "text", "orc"] = "parquet",
    options: Mapping[str, str] | None = None,
    empty: Literal["allow", "fail"] = "fail",
) -> str:
    """Runs a job that writes the one container of an execution, in place of what it held; gives its path.

    A reader sees the whole old or the whole new container, also where the job fails (see ``overwrite_files``).

    >>> visits = spark.createDataFrame([("v1",)], "visit string")
    >>> _ = write_container(visits, folder, execution_time="2024-11-20")
    >>> _ = write_container(visits, folder, execution_time="2024-11-20")
    >>> [(row[0], str(row[1])) for row in spark.read.parquet(folder).collect()]
    [('v1', '2024-11-20')]
    """
    path = f"{folder}/{container_name(execution_time, grid=grid, prefix=prefix)}"
    overwrite_files(df, path, file_format=file_format, options=options, empty=empty)
    return path
