"""Sessions by Spark's own session windows: all of it within the JVM, for rules that a gap alone makes.

Guarantee:
    The same sessions as ``session_arrow`` makes of the same visits, but that what lies behind the watermark never came.
    Of a session that never ends the state holds its first ``max_events`` visits, and no more (up to 100,000; a longer
    bound is kept when a list comes out).
Consequences:
    - Spark gives a session out when the watermark has passed its end, and not before (append mode).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration
from lakewright.patterns.data_value.session_frames import AT, END, EVENTS, EXPIRY, GAP, START, SessionLayout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TIME", "seconds_of", "sessions_by_window"]

TIME, _ROWS, _WINDOW = "_lw_time", "_lw_rows", "_lw_window"
_MOST_HELD = 100_000
"""As many of the first rows can Spark keep of a group."""


def sessions_by_window(visits: DataFrame, layout: SessionLayout) -> DataFrame:
    """The sessions of a stream of visits (see ``layout.made_schema``, but for whether one is over: each is); lazy."""
    from pyspark.sql import functions as F

    sessions = layout.sessions
    rows = visits.selectExpr(*layout.visit_columns()).withColumn(TIME, F.timestamp_micros(F.col(AT)))
    rows = rows.withWatermark(TIME, seconds_of(sessions.lateness))
    gap: Column | str = seconds_of(sessions.gap)
    if sessions.gap_by is not None:
        gap = F.expr(f"make_interval(0, 0, 0, 0, 0, 0, CAST({GAP} / 1000000 AS DECIMAL(18, 6)))")
    keys = [quoted(key) for key in sessions.keys]
    found = (
        rows.groupBy(*keys, F.session_window(TIME, gap).alias(_WINDOW))
        .agg(
            F.min(AT).alias(START),
            F.max(AT).alias(END),
            F.count(F.lit(1)).alias(EVENTS),
            *_kept(layout),
        )
        .withColumn(EXPIRY, F.unix_micros(F.col(_WINDOW)["end"]))
    )
    return found.select(*keys, START, END, EXPIRY, EVENTS, *_lists(layout))


def seconds_of(length: str) -> str:
    """A length of time in the words that Spark takes."""
    return f"{parse_duration(length).total_seconds():.0f} seconds"


def _kept(layout: SessionLayout) -> list[Column]:
    """What Spark keeps of each session; of lists the visits themselves, once for all of them."""
    from pyspark.sql import functions as F

    visit = F.struct(AT, *[f"_lw_c{place}" for place in range(len(layout.carried))])
    by_kind = {"sum": F.sum, "min": F.min, "max": F.max}
    found = []
    for one, place in zip(layout.sessions.aggregates, layout.places, strict=True):
        column = f"_lw_c{place}"
        if one.kind == "first":
            found.append(F.min_by(column, visit).alias(one.name))
        elif one.kind == "last":
            found.append(F.max_by(column, visit).alias(one.name))
        elif one.kind != "collect":
            found.append(by_kind[one.kind](column).alias(one.name))
    if not layout.sessions.collect:
        return found
    most = layout.sessions.max_events
    rows = F.min_by(visit, visit, most) if most <= _MOST_HELD else F.collect_list(visit)
    return [*found, rows.alias(_ROWS)]


def _lists(layout: SessionLayout) -> list[Column]:
    from pyspark.sql import functions as F

    rows = f"slice(array_sort({_ROWS}), 1, {layout.sessions.max_events})"
    return [
        F.expr(f"transform({rows}, visit -> visit._lw_c{place})").alias(one.name)
        if one.kind == "collect"
        else F.col(quoted(one.name))
        for one, place in zip(layout.sessions.aggregates, layout.places, strict=True)
    ]
