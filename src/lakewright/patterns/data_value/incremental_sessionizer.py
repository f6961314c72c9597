"""Incremental Sessionizer: build sessions slice by slice, and carry those that may still go on to the next slice.

Problem:
    Visits lie in partitions of an hour or a day, and a session does not care: it spans several of them. To find it in
    each run from all visits costs more every day.
Guarantee:
    A session is emitted once, by the slice in which its gap runs out; until then it is among the pending ones, whose
    visits no later slice reads again. Slices made in order give the same sessions, with the same ids, as all visits at
    once. An entity's visits need not fit into memory.
Consequences:
    - The longer the gap, the later a session comes, and the more are pending. ``partial`` shows ongoing sessions at the
      price of rows that change: readers that cannot bear that take ``keep_final_sessions``.
    - A slice depends on the one before it. A late visit makes its slice stale, and the later ones for as long as what
      is pending changes (in a pipeline the run makes them, in order); or ``repair_sessions`` builds the entities again
      that it concerns, alone.
    - ``completed`` and ``pending`` are made of ``every``: persist that before both are written, or it is made twice.
    - The executors need numpy and pyarrow, and this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from lakewright.errors import MissingColumnsError
from lakewright.model.columns import business_columns
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.data_value.moments import micros_of
from lakewright.patterns.data_value.session_arrow import Rules, SessionRows, sessions_of
from lakewright.patterns.data_value.session_bursts import BurstRows, bursts_of, has_bursts
from lakewright.patterns.data_value.session_frames import (
    AT,
    EXPIRY,
    OPEN,
    OVER,
    SessionLayout,
    layout_of,
    unusable_visit,
)
from lakewright.patterns.data_value.sessions import NAME, Sessions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "BuiltSessions",
    "Sessions",
    "UsableVisits",
    "VisitSplit",
    "build_sessions",
    "keep_final_sessions",
    "split_unusable_visits",
]


class VisitSplit(NamedTuple):
    """The two parts of some visits; both are lazy."""

    usable: DataFrame
    unusable: DataFrame


@dataclass(frozen=True, slots=True)
class BuiltSessions:
    """What a slice makes: sessions for everybody, and those that the next slice goes on with."""

    completed: DataFrame
    pending: DataFrame
    every: DataFrame
    """What both are made of."""


@dataclass(frozen=True, slots=True)
class UsableVisits:
    """The guard that ``sessions=Sessions(...)`` brings along: a NULL key or time makes a dead letter.

    It judges the columns that its input has; one that the step makes is looked at by the engine, which refuses NULL.
    """

    keys: Sequence[str]
    time: str | None = None

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        from pyspark.sql import functions as F

        columns = frame.columns
        asked = [name for name in (*self.keys, self.time or ctx.event_time) if name is not None and name in columns]
        if not asked:
            return Guarded(kept=frame)
        broken = " OR ".join(f"{quoted(name)} IS NULL" for name in asked)
        told = ", ".join(f"CASE WHEN {quoted(name)} IS NULL THEN {text_literal(f'no {name}')} END" for name in asked)
        side = SideRows(
            broken=F.expr(broken),
            reasons=F.expr(f"array_compact(array({told}))"),
            keep=tuple(business_columns(columns)),
        )
        return Guarded(kept=frame.where(f"NOT ({broken})"), side=side)


def build_sessions(
    visits: DataFrame, *, sessions: Sessions, until: datetime | str, pending: DataFrame | None = None
) -> BuiltSessions:
    """Build the sessions of a slice's visits and of the sessions that were ``pending`` after the slice before; lazy.

    ``until`` is the end of the slice: every visit before it is known, so a session that expired earlier is complete.

    >>> visits = spark.sql("SELECT * FROM VALUES ('u1', timestamp'2026-01-05 09:50:00', '/'), "
    ...     "('u1', timestamp'2026-01-05 10:10:00', '/about'), ('u2', timestamp'2026-01-05 10:50:00', '/')"
    ...     " AS t(user, at, page)")
    >>> declared = Sessions(keys=["user"], gap="30 minutes", time="at", collect={"pages": "page"})
    >>> built = build_sessions(visits, sessions=declared, until="2026-01-05T11:00")
    >>> built.completed.select("user", "events", "pages").collect()
    [Row(user='u1', events=2, pages=['/', '/about'])]
    >>> built.pending.select("user", "expires_at").collect()
    [Row(user='u2', expires_at=datetime.datetime(2026, 1, 5, 11, 20))]
    """
    from pyspark.sql import functions as F

    layout = layout_of(visits, sessions)
    if pending is not None:
        _check_pending(pending, sessions)
    counted = has_bursts(layout)
    rows = bursts_of(visits, layout, pending) if counted else _visits_of(visits, layout, pending)
    by = [*[quoted(key) for key in sessions.keys], AT] if counted else layout.order
    sorted_rows = rows.repartition(*[quoted(key) for key in sessions.keys]).sortWithinPartitions(*by)
    rules = replace(layout.rules, reopens=pending is not None)
    made = sorted_rows.mapInArrow(_engine(rules, BurstRows if counted else None), layout.made_schema())
    final = F.col(OVER) | (F.col(EXPIRY) < F.lit(micros_of(until)))
    every = layout.shown(made, final=final, more=[F.timestamp_micros(F.col(EXPIRY)).alias("expires_at")])
    ongoing = every.where("NOT is_final")
    shown = every if sessions.partial else every.where("is_final")
    return BuiltSessions(shown.drop("expires_at"), ongoing.drop("is_final", "duration_seconds", "truncated"), every)


def keep_final_sessions(df: DataFrame) -> DataFrame:
    """The sessions that will not change any more, of a table that also has ongoing ones (``partial``); lazy.

    >>> rows = spark.createDataFrame([("s1", True), ("s2", False)], "session_id string, is_final boolean")
    >>> keep_final_sessions(rows).collect()
    [Row(session_id='s1', is_final=True)]
    """
    columns = df.columns
    if "is_final" not in columns:
        raise MissingColumnsError(pattern=NAME, missing=["is_final"], present=columns)
    return df.where("is_final")


def split_unusable_visits(visits: DataFrame, *, sessions: Sessions) -> VisitSplit:
    """Part the visits that nobody made, or at no known time, from those that can belong to a session; lazy.

    >>> visits = spark.sql("SELECT * FROM VALUES ('u1', timestamp'2026-01-05 09:50:00'), "
    ...     "(NULL, timestamp'2026-01-05 09:50:00'), ('u1', NULL) AS t(user, at)")
    >>> split = split_unusable_visits(visits, sessions=Sessions(keys=["user"], gap="30 minutes", time="at"))
    >>> split.usable.count(), split.unusable.count()
    (1, 2)
    """
    columns = visits.columns
    if missing := [name for name in (*sessions.keys, sessions.at()) if name not in columns]:
        raise MissingColumnsError(pattern=NAME, missing=missing, present=columns)
    broken = unusable_visit(sessions, columns)
    return VisitSplit(visits.where(f"NOT ({broken})"), visits.where(f"{broken}"))


def _visits_of(visits: DataFrame, layout: SessionLayout, pending: DataFrame | None) -> DataFrame:
    """What the engine is given of each visit, and of each session that is still open."""
    rows = visits.selectExpr(*layout.visit_columns())
    if pending is None:
        return rows
    opened = pending.selectExpr(*layout.open_columns())
    return rows.selectExpr("*", f"CAST(NULL AS {layout.open_type()}) AS {OPEN}").unionByName(opened)


def _engine(
    rules: Rules, rows: type[SessionRows] | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that the executors call; all that it knows are plain values."""

    def sessionize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sessions_of(batches, rules, rows)

    return sessionize


def _check_pending(pending: DataFrame, sessions: Sessions) -> None:
    columns = pending.columns
    needed = [*sessions.keys, "start_time", "end_time", "expires_at", "events"]
    needed += [one.name for one in sessions.aggregates]
    if missing := [name for name in needed if name not in columns]:
        raise MissingColumnsError(pattern=f"{NAME} (pending)", missing=missing, present=columns)
