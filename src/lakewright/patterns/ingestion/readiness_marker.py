"""Readiness Marker: tell consumers that a slice is complete, and let them read nothing that is not.

Problem:
    An hourly batch makes a dataset for other teams. They cannot be triggered, start when they like, and complain
    that it is incomplete.
Guarantee:
    A marker is the very last step: everything that it speaks for is there before it. It is gone before the first
    file changes, and stays away after a failure. `read_when_ready` reads nothing without a marker, nothing under a
    marker without data, and nothing whose rows are not as many as the marker says.
Consequences:
    - A marker binds only those who look. Agree on the place and on the name, and read by `read_when_ready`, by a
      source with ``ready=``, or after ``lakewright ready``.
    - A slice that is closed may still receive late rows. ``closed="mutable"`` makes it again and tells subscribers;
      ``closed="immutable"`` keeps it and sets the rows aside, or fails.
    - Waiting holds no worker and ends: a source waits between runs, up to ``wait_at_most``.
    - A flag without a leading ``_`` lies among the data: Spark's own readers take it for a data file and fail.
    - After a write of several partitions Spark's own ``_SUCCESS`` lies in the root: it tells nothing of one
      partition. Write a marker per partition.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lakewright.errors import ConfigurationError, InputError, NotReady
from lakewright.model.protocols import Notifier
from lakewright.model.times import parse_duration
from lakewright.patterns.ingestion.commit_marker import find_data_commit
from lakewright.patterns.ingestion.flag_files import (
    DEFAULT_NAME,
    Flag,
    as_folder,
    data_files,
    mark_when_done,
    read_marker,
    set_marker,
    withdraw_marker,
)
from lakewright.patterns.ingestion.folder_readiness import NextPartition, refuse_path

if TYPE_CHECKING:  # a project file names the option before Spark is there
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Check",
    "Closed",
    "Flag",
    "ReadinessMarker",
    "find_data_commit",
    "is_closed",
    "mark_when_done",
    "read_marker",
    "read_when_ready",
    "set_marker",
    "wait_until",
    "withdraw_marker",
]

Closed = Literal["mutable", "immutable"]
Check = Literal["count", "files"]


@dataclass(frozen=True, slots=True)
class ReadinessMarker:
    """The option ``marker=`` of a dataset: what is promised of a slice that was declared ready.

    Every dataset has markers in the store, which ``lakewright ready`` asks for; this adds what others need.
    """

    flag_file: str | None = None
    """Also write a file of this name for each slice, for consumers that look into a folder."""
    folder: str = "_ready"
    """Where: ``<folder>/<dataset>/<slice>/<flag_file>``. A relative one lies in the target's lake."""
    closed: Closed = "mutable"
    """``mutable``: late rows make the slice again, and ``notify`` tells; ``immutable``: they are set aside."""
    notify: tuple[Notifier, ...] = ()
    """Who is told when a slice that was ready has changed."""

    def __post_init__(self) -> None:
        if self.flag_file is not None:
            refuse_path("ReadinessMarker: flag_file", self.flag_file)
        if not self.folder:
            raise ConfigurationError("ReadinessMarker: the folder is empty. Leave it out, or name one.")
        if self.closed not in get_args(Closed):
            raise ConfigurationError(f"ReadinessMarker: closed is 'mutable' or 'immutable', not {self.closed!r}.")
        given = self.notify if isinstance(self.notify, list | tuple) else (self.notify,)
        if wrong := [one for one in given if not isinstance(one, Notifier)]:
            raise ConfigurationError(
                f"ReadinessMarker: {wrong[0]!r} cannot notify anybody.",
                hint='Use FileNotifier("notices.jsonl") or WebhookNotifier("https://...").',
            )
        object.__setattr__(self, "notify", tuple(given))


def read_when_ready(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    *,
    name: str = DEFAULT_NAME,
    format: str = "parquet",
    check: Check | None = "count",
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Runs a job that counts the rows, and gives the frame; refuses a folder that is not declared complete.

    Of Parquet and Delta the count comes from footers and statistics, of JSON and CSV every row is parsed:
    ``check="files"`` compares the number of files and their bytes instead, by a look at the folder, and ``check=None``
    trusts the marker. A marker that holds no count, such as ``_SUCCESS``, is compared with nothing.

    >>> visits = spark.createDataFrame([("v1",), ("v2",)], "visit string")
    >>> with mark_when_done(folder, run="r1") as done:
    ...     visits.write.mode("overwrite").parquet(folder)
    ...     done.rows = 2
    >>> read_when_ready(spark, folder).count()
    2
    """
    if check is not None and check not in get_args(Check):
        raise ConfigurationError(f"Readiness Marker: check is 'count', 'files' or None, not {check!r}.")
    place = as_folder(folder)
    told = _require_marker(place, name)
    _refuse_without_data(place, name)
    if check == "files":
        _compare_files(place, name, told)
    reader = spark.read.format(format).options(**dict(options or {}))
    reader = reader if schema is None else reader.schema(schema)
    if name.startswith(("_", ".")) or format == "delta":
        frame = reader.load(str(place))
    else:  # Spark would take a flag that is not hidden for data
        files = [str(file) for file in data_files(place, name)]
        frame = reader.option("basePath", str(place)).load(files)
    if check == "count" and told.rows is not None:
        found = frame.count()
        if found != told.rows:
            _differs(place, name, f"{told.rows:,} rows", f"{found:,}")
        if read_marker(place, name=name) != told:
            raise NotReady(
                f"Readiness Marker: {place} was written anew while its rows were counted. Nothing was read.",
                hint="Wait until its marker is there again, and repeat.",
            )
    return frame


def is_closed(folder: str | os.PathLike[str], partition: str) -> bool:
    """Whether a partition such as ``hour=10`` is complete by convention: a later one of the same key is there.

    >>> import os
    >>> os.makedirs(f"{folder}/hour=9"); os.makedirs(f"{folder}/hour=10")
    >>> is_closed(folder, "hour=9"), is_closed(folder, "hour=10")
    (True, False)
    """
    return NextPartition().not_yet(as_folder(folder), partition.strip("/")) is None


def wait_until(
    not_yet: Callable[[], str | None],
    *,
    what: str,
    at_most: str | timedelta,
    every: str | timedelta = "30 seconds",
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Ask again and again, with pauses, until ``not_yet`` gives None instead of a reason; raises after ``at_most``.

    For a process of your own: it sleeps. A source with ``ready=`` waits between two runs and holds nothing.
    """
    limit, pause = (one if isinstance(one, timedelta) else parse_duration(one) for one in (at_most, every))
    deadline = clock() + limit.total_seconds()
    while (reason := not_yet()) is not None:
        left = deadline - clock()
        if left <= 0:
            raise NotReady(f"{what} was not ready within {_in_words(limit)}: {reason}.")
        sleep(min(pause.total_seconds(), left))


def _require_marker(place: Path, name: str) -> Flag:
    told = read_marker(place, name=name)
    if told is None:
        raise NotReady(
            f"Readiness Marker: {place} has no {name}: it is not complete yet, or is being written anew. "
            "Nothing was read.",
            hint="Wait for it; the producer writes it as the last step.",
        )
    return told


def _refuse_without_data(place: Path, name: str) -> None:
    if not data_files(place, name):
        raise InputError(
            f"Readiness Marker: {place} has a {name}, but no data. Nothing was read.",
            hint="The data was taken away, or the marker was written in the wrong folder: ask the producer.",
        )


def _compare_files(place: Path, name: str, told: Flag) -> None:
    if told.files is None or told.bytes is None:
        return
    files = data_files(place, name)
    found = (len(files), sum(file.stat().st_size for file in files))
    if found != (told.files, told.bytes):
        _differs(place, name, f"{told.files:,} files of {told.bytes:,} bytes", f"{found[0]:,} of {found[1]:,} bytes")


def _differs(place: Path, name: str, told: str, found: str) -> None:
    raise InputError(
        f"Readiness Marker: {place} was declared complete with {told}, and holds {found}. Nothing was read.",
        hint=f"Somebody wrote there without taking {name} away first: ask the producer to make it anew.",
    )


def _in_words(length: timedelta) -> str:
    """A length of time as people say it."""
    seconds = int(length.total_seconds())
    for unit, size in (("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit}{'' if seconds == size else 's'}"
    return f"{seconds} seconds"
