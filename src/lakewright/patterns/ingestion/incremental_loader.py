"""Incremental Loader: take only what is new since the last time, by a column that rises.

Problem:
    A table only grows, and to load all of it each time becomes slower every day; but a load by "everything since" takes
    other rows when it is repeated, and a backfill from the start is one giant load.
Guarantee:
    What an arrival holds is recorded before it is read: the half-open range of the delta column that it takes. With
    ``every`` the ranges are the intervals of that length that were over at the run's own time, one arrival each, so a
    first load of two months is many bounded loads, side by side; a row on a boundary belongs to one of them. Each
    arrival replaces its own rows, so a repeat neither loses nor doubles any.
    With ``partition`` an arrival is one folder (``date=2026-01-05``), taken when it is complete and not before.
    ``load_new_rows`` does the same for one interval of a frame.
Consequences:
    - Deletes are not seen: let the producer flag rows (``deleted`` of Merger), or use Change Data Capture.
    - A row that is committed late with an equal or older value is missed, unless ``overlap`` looks back so far; what
      was already taken, by ``keys`` and the delta column, is not taken again.
    - The delta column is the time at which a row was written, not the event's own time: late events would be missed.
    - Rows without a value in it would never be taken: they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.arrivals import Arrival
from lakewright.model.loads import CursorCut, CutsByCursor, CutsByFolder
from lakewright.model.protocols import Found, LoadContext, Source, SourceContext
from lakewright.model.slices import ARRIVAL_COLUMN
from lakewright.model.sql import text_literal
from lakewright.model.times import Interval, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["IncrementalLoader", "current_rows", "load_new_rows"]


@dataclass(frozen=True, slots=True)
class IncrementalLoader:
    """The option of a source: ``cursor`` is the delta column; or ``partition``, the key of folders (``date``)."""

    cursor: str | None = None
    partition: str | None = None
    every: str | None = None
    overlap: str | None = None
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ConfigurationError('IncrementalLoader: keys is a list, such as keys=["user_id"].')
        object.__setattr__(self, "keys", tuple(self.keys))
        if (self.cursor is None) == (self.partition is None):
            raise ConfigurationError(
                'IncrementalLoader: give a delta column (cursor="written_at") or a partition (partition="date").'
            )
        if self.partition is not None and (self.every or self.overlap):
            raise ConfigurationError("IncrementalLoader: every and overlap go with cursor; a partition is a whole one.")
        if self.overlap is not None and not self.keys:
            raise ConfigurationError(
                "IncrementalLoader: with overlap the same rows are read again, and nothing tells them apart.",
                hint='Name the columns that do: keys=["user_id"].',
            )
        if self.cursor is not None:
            self._cut(self.cursor)  # a wrong length is told when the file is loaded

    @property
    def replaces_all(self) -> bool:
        return False

    @property
    def apart(self) -> bool:
        """Whether arrivals can be taken side by side: not if one is compared with those before it."""
        return self.overlap is None

    def _cut(self, cursor: str) -> CursorCut:
        return CursorCut(
            cursor,
            every=None if self.every is None else parse_duration(self.every),
            overlap=None if self.overlap is None else parse_duration(self.overlap),
        )

    def check_source(self, dataset: str, source: Source) -> None:
        """Refuse a source that has no delta column."""
        if self.partition is not None:
            self._check_folders(dataset, source)
        elif not isinstance(source, CutsByCursor):
            raise ConfigurationError(
                f"{dataset}: {type(source).__name__} has no rising column to load by.",
                hint='Files are taken once each without a loader, or by partition="date"; a topic by its offsets.',
            )
        elif getattr(source, "cursor", None) not in (None, self.cursor):
            raise ConfigurationError(f"{dataset}: name the cursor once, in IncrementalLoader(cursor={self.cursor!r}).")

    def _check_folders(self, dataset: str, source: Source) -> None:
        if not isinstance(source, CutsByFolder):
            raise ConfigurationError(f"{dataset}: {type(source).__name__} has no partition folders to load by.")
        if source.ready is None:
            raise ConfigurationError(
                f"{dataset}: a partition that is still being written would be taken half, because nothing tells when "
                f"{self.partition}=... is complete.",
                hint='Say so at the source: ready=NextPartition(), or ready=FlagFile("_SUCCESS").',
            )

    def warning(self, event_time: str | None) -> str | None:
        """What speaks against the delta column; None where nothing does."""
        if self.cursor is None or event_time != self.cursor or self.overlap is not None:
            return None
        return (
            f"'{self.cursor}' is both the delta column and the event time: a row that comes late, with an older "
            'event time than was taken already, is never read. Say overlap="...", or load by the time of writing.'
        )

    def look(self, source: Source, ctx: SourceContext) -> Sequence[Found]:
        """The next windows, in order."""
        if self.partition is not None:
            assert isinstance(source, CutsByFolder)
            return source.look_by_folder(self.partition, ctx)
        assert isinstance(source, CutsByCursor)
        assert self.cursor is not None
        return source.look_by(self._cut(self.cursor), ctx)

    def judge(self, frame: DataFrame, ctx: LoadContext) -> None:
        """Nothing: every row of a window is taken."""

    def prepare(self, frame: DataFrame, arrival: Arrival, held: Callable[[], DataFrame | None]) -> DataFrame:
        """Without the rows of the overlap that an earlier arrival holds."""
        settled = cast("str | None", arrival.window.get("settled"))
        if settled is None or self.cursor is None or (taken := held()) is None:
            return frame
        return _not_taken(frame, taken, self.keys, self.cursor, settled, arrival)


def _not_taken(
    frame: DataFrame, taken: DataFrame, keys: Sequence[str], cursor: str, settled: str, arrival: Arrival
) -> DataFrame:
    from pyspark.sql import functions as F

    low = text_literal(str(arrival.window["low"]))
    names = [*keys, cursor]
    if missing := [name for name in names if name not in frame.columns]:
        raise MissingColumnsError(pattern="IncrementalLoader", missing=missing, present=frame.columns)
    # A day more, so that how a value is rounded between the two does not matter: the join compares it exactly.
    recent = f"`{cursor}` >= CAST({low} AS TIMESTAMP) - INTERVAL 1 DAY AND {ARRIVAL_COLUMN} < {arrival.number}"
    known = taken.where(recent).select(*[F.col(f"`{name}`").alias(f"_lw_known_{i}") for i, name in enumerate(names)])
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"_lw_known_{i}")) for i, name in enumerate(names)]
    matches = same[0]
    for one in same[1:]:
        matches = matches & one
    return frame.join(known, matches, "left_anti")


def load_new_rows(
    df: DataFrame, path: str, *, cursor: str, start: str | datetime, end: str | datetime, empty: bool = True
) -> None:
    """Runs a job that replaces, in one Delta commit, the rows of ``[start, end)`` by those of the frame.

    The frame may hold more: only the interval is taken. A row without a value in ``cursor`` is refused.

    >>> visits = spark.sql("SELECT * FROM VALUES ('v1', TIMESTAMP '2026-01-05 10:00:00'),"
    ...                    " ('v2', TIMESTAMP '2026-01-05 11:00:00') AS t(visit, written_at)")
    >>> for hour in ("10", "10", "11"):
    ...     begin, stop = f"2026-01-05T{hour}:00", f"2026-01-05T{int(hour) + 1}:00"
    ...     load_new_rows(visits, folder, cursor="written_at", start=begin, end=stop)
    >>> spark.read.format("delta").load(folder).count()
    2
    """
    from pyspark.sql import functions as F

    from lakewright.patterns.idempotency.data_overwrite import overwrite_slice

    span = Interval(parse_time(start), parse_time(end))
    bounds = [f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}Z'" for at in (span.start, span.end)]
    within = f"`{cursor}` >= {bounds[0]} AND `{cursor}` < {bounds[1]}"
    missing = F.raise_error(F.lit(f"lakewright: {cursor} is NULL")).cast("boolean")
    rows = df.where(F.when(F.col(f"`{cursor}`").isNull(), missing).otherwise(F.expr(within)))
    try:
        overwrite_slice(rows, path, where=within, empty="allow" if empty else "fail")
    except Exception as error:
        if f"lakewright: {cursor} is NULL" not in str(error):
            raise
        raise InputError(
            f"Incremental Loader: some rows have no {cursor} (NULL), so no interval would ever take them. "
            "Nothing was written.",
            hint="Fill it, or set such rows aside with a Dead-Letter rule before.",
        ) from error


def current_rows(df: DataFrame, *, keys: Sequence[str], order: str, deleted: str | None = None) -> DataFrame:
    """The rows as they stand, from a table to which every change is added as a new row; lazy.

    Of each key the row that is last by ``order`` counts; one that ``deleted`` (SQL) marks takes the key away.

    >>> changes = spark.sql("SELECT * FROM VALUES (1, 'a', 1, false), (1, 'b', 2, false), (2, 'c', 1, false),"
    ...                     " (2, 'c', 2, true) AS t(id, name, at, gone)")
    >>> current_rows(changes, keys=["id"], order="at", deleted="gone").select("id", "name").collect()
    [Row(id=1, name='b')]
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy(F.expr(order).desc_nulls_last())
    last = df.withColumn("_lw_place", F.row_number().over(newest)).where("_lw_place = 1").drop("_lw_place")
    return last if deleted is None else last.where(~F.coalesce(F.expr(deleted).cast("boolean"), F.lit(False)))
