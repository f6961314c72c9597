"""Late Data Detector: tell rows that come after their time from those that come in time, by a watermark.

Problem:
    Visits that were buffered on a telephone without a connection come hours later. Spark drops such rows behind its
    watermark and only counts them; whoever keeps them in changes figures that were reported.
Guarantee:
    Each row is in exactly one of ``on_time``, ``late`` and ``unusable``. A batch is judged by the watermark that it
    started with; a row exactly at it is in time, and without one every row is. The watermark never goes back. In a
    pipeline it travels in the commit of the batch that moved it, so that it survives a kill, and a repeated batch is
    judged alike. Rows without a usable event time never move it.
Consequences:
    - One narrow job per batch finds the greatest event time of each partition, and counts.
    - ``across="max"`` follows the fastest partition: the rows of a slow one are then all late. ``warn_above`` tells the
      share of late rows of each source that is above it, ``stop_above`` stops a batch by the share over all of them.
    - ``across="min"`` waits for the slowest: ``idle`` leaves out a partition that has fallen silent.
    - Late rows are kept, not lost: whoever wants them in the figures integrates them (Static or Dynamic Late Data
      Integrator).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import BATCH_TIME_COLUMN, PARTITION_COLUMN, TOPIC_COLUMN, business_columns, taken_names
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.model.sql import quoted, text_literal
from lakewright.model.times import parse_duration
from lakewright.model.watermarks import Judgement, Measured, Place, Tracking, Watermark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["UNUSABLE", "LateDataDetector", "LateSplit", "measure_event_times", "split_late_rows"]

UNUSABLE = "no usable event time"
"""The rule that a row breaks whose event time is missing, no time, or too far ahead."""
_NAME = "Late Data Detector"
_TIMES = ("timestamp", "timestamp_ntz", "date", "string")


@dataclass(frozen=True, slots=True)
class LateSplit:
    """The three parts of an input; ``late`` has the columns ``watermark`` and ``late_by_seconds`` too."""

    on_time: DataFrame
    late: DataFrame
    unusable: DataFrame


@dataclass(frozen=True, slots=True)
class LateDataDetector:
    """What is late, and the guard of the pipeline layer.

    The watermark is the tracked event time minus ``lateness``. Per partition the greatest event time is tracked
    (``per_partition`` is ``"max"``, always); over the partitions of a source the least or greatest of them
    (``across``), and over sources likewise (``over_sources``; ``"each"`` has a watermark of its own for every source).
    ``partition`` and ``source`` are columns that tell them; rows of a topic tell them by themselves.
    """

    lateness: str
    event_time: str | None = None
    partition: str | None = None
    source: str | None = None
    per_partition: Literal["max"] = "max"
    across: Literal["min", "max"] = "min"
    over_sources: Literal["min", "max", "each"] = "min"
    idle: str | None = None
    ahead: str = "1 day"
    late: Literal["capture", "count"] = "capture"
    stop_above: float | None = None
    warn_above: float | None = None

    def __post_init__(self) -> None:
        if self.per_partition != "max":
            raise ConfigurationError(
                f'{_NAME}: within a partition the greatest event time is tracked (per_partition="max"), not '
                f"{self.per_partition!r}: by the least one the watermark would fall back with every old row, open what "
                "was closed, or never move.",
                hint='To follow the slowest of several partitions: across="min".',
            )
        for option, known in (("across", ("min", "max")), ("over_sources", ("min", "max", "each"))):
            given = getattr(self, option)
            if given not in known:
                raise ConfigurationError(f"{_NAME}: {option} is one of {', '.join(known)}, not {given!r}.")
        if self.late not in ("capture", "count"):
            raise ConfigurationError(f"{_NAME}: late is 'capture' or 'count', not {self.late!r}.")
        for option in ("stop_above", "warn_above"):
            if (share := getattr(self, option)) is not None and not 0 <= share <= 1:
                raise ConfigurationError(f"{_NAME}: {option} is a share from 0 to 1, not {share}.")
        for text in (self.lateness, self.ahead, *([] if self.idle is None else [self.idle])):
            parse_duration(text)

    @property
    def tracking(self) -> Tracking:
        """How the watermark follows what batches bring."""
        idle = None if self.idle is None else parse_duration(self.idle)
        return Tracking(parse_duration(self.lateness), self.across, self.over_sources, idle)

    def measure(self, frame: DataFrame, ctx: GuardContext) -> Measured:
        assert ctx.lateness is not None
        return measure_event_times(frame, detector=self._for(ctx), judgement=ctx.lateness)

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        from pyspark.sql import functions as F

        judgement = ctx.lateness or Judgement(Watermark())
        told = _Told(frame, self._for(ctx), judgement)
        keep = tuple(business_columns(frame.columns))
        # Where none was counted, nobody looks for them: the pass that sets rows aside then reads nothing.
        unusable = SideRows(
            broken=F.expr("false" if judgement.unusable == 0 else told.unusable),
            reasons=F.array(F.lit(UNUSABLE)),
            keep=keep,
        )
        late = SideRows(
            broken=F.expr("false" if judgement.late == 0 else told.late),
            reasons=F.array(F.lit("late")),
            keep=keep,
            table="late_rows",
            told=told.columns(),
        )
        kept = frame.where(f"NOT ({told.unusable}) AND NOT ({told.late})")
        return Guarded(kept=kept, side=unusable, also=(late,) if self.late == "capture" else ())

    def _for(self, ctx: GuardContext) -> LateDataDetector:
        """The same, with the input's own event time where none is named."""
        return self if self.event_time is not None else replace(self, event_time=ctx.event_time)


def split_late_rows(
    df: DataFrame,
    *,
    event_time: str,
    watermark: datetime | Watermark | None,
    judged_at: datetime,
    ahead: str = "1 day",
    source: str | None = None,
) -> LateSplit:
    """Part the rows whose event time lies before the watermark, and those without a usable one, from the others; lazy.

    A time later than ``judged_at`` plus ``ahead`` is not usable. The watermark is that of before these rows; after
    them it is ``Tracking.advance(...)`` with what ``measure_event_times`` found.

    >>> from datetime import UTC, datetime
    >>> visits = spark.sql("SELECT * FROM VALUES ('v1', '2026-01-05 09:36:00'), ('v2', '2026-01-05 09:20:00'), "
    ...     "('v3', 'yesterday') AS t(visit, at)")
    >>> split = split_late_rows(visits, event_time="at", watermark=datetime(2026, 1, 5, 9, 36, tzinfo=UTC),
    ...     judged_at=datetime(2026, 1, 5, 10, tzinfo=UTC))
    >>> split.late.select("visit", "late_by_seconds").collect()
    [Row(visit='v2', late_by_seconds=960.0)]
    >>> [row.visit for row in split.on_time.collect() + split.unusable.collect()]
    ['v1', 'v3']
    """
    found = watermark if isinstance(watermark, Watermark) else Watermark(watermark)
    detector = LateDataDetector("0 seconds", event_time=event_time, source=source, ahead=ahead)
    told = _Told(df, detector, Judgement(found, judged_at))
    if taken := taken_names(("watermark", "late_by_seconds"), told.names):
        raise ConfigurationError(
            f"{_NAME}: the input already has a column '{taken[0]}', which the late rows are told by.",
            hint=f'Rename it before: df.withColumnRenamed("{taken[0]}", ...).',
        )
    columns = told.columns()
    more = [columns[name].alias(name) for name in ("watermark", "late_by_seconds")]
    return LateSplit(
        on_time=df.where(f"NOT ({told.unusable}) AND NOT ({told.late})"),
        late=df.where(told.late).select("*", *more),
        unusable=df.where(told.unusable),
    )


def measure_event_times(df: DataFrame, *, detector: LateDataDetector, judgement: Judgement) -> Measured:
    """Runs a job that finds the greatest usable event time of each partition, and counts rows, late and unusable."""
    from pyspark.sql import functions as F

    told = _Told(df, detector, judgement)
    moment = F.expr(f"CASE WHEN NOT ({told.unusable}) THEN {told.moment} END")
    when = F.max(BATCH_TIME_COLUMN) if told.by_row else F.lit(None).cast("timestamp")
    found = (
        df.groupBy(F.expr(told.source).alias("source"), F.expr(told.partition).alias("partition"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.unix_micros(F.max(moment)).alias("newest"),
            F.count_if(F.expr(told.late)).alias("late"),
            F.count_if(F.expr(told.unusable)).alias("unusable"),
            F.unix_micros(when).alias("at"),
        )
        .collect()
    )
    seen: dict[Place, datetime] = {}
    late: dict[str, int] = {}
    of: dict[str, int] = {}
    for row in found:
        if row["newest"] is not None:
            seen[row["source"], row["partition"]] = _moment(row["newest"])
        late[row["source"]] = late.get(row["source"], 0) + row["late"]
        of[row["source"]] = of.get(row["source"], 0) + row["rows"]
    times = [_moment(row["at"]) for row in found if row["at"] is not None]
    return Measured(
        rows=sum(of.values()),
        seen=seen,
        late={source: count for source, count in late.items() if count},
        of=of,
        unusable=sum(row["unusable"] for row in found),
        judged_at=max(times, default=judgement.judged_at),
    )


class _Told:
    """The conditions on a frame's rows, as SQL: each is true or false, never NULL."""

    def __init__(self, df: DataFrame, detector: LateDataDetector, judgement: Judgement) -> None:
        schema = df.schema
        self.names = schema.names
        event_time = detector.event_time
        if event_time is None:
            raise ConfigurationError(
                f"{_NAME}: nothing tells when a row happened.",
                hint='Name the column: event_time="...". The time of processing is never late.',
            )
        asked = [name for name in (event_time, detector.partition, detector.source) if name is not None]
        if missing := [name for name in asked if name not in self.names]:
            raise MissingColumnsError(pattern=_NAME, missing=missing, present=business_columns(self.names))
        kind = schema[event_time].dataType.simpleString()
        if kind not in _TIMES:
            raise ConfigurationError(
                f"{_NAME}: the event time '{event_time}' is {kind}: nobody knows its unit.",
                hint=f'Make it a timestamp before: F.timestamp_millis("{event_time}") or F.timestamp_seconds(...).',
            )
        is_time = kind == "timestamp"
        self.moment = quoted(event_time) if is_time else f"try_cast({quoted(event_time)} AS TIMESTAMP)"
        self.source = _column(detector.source or self._own(TOPIC_COLUMN))
        self.partition = _column(detector.partition or self._own(PARTITION_COLUMN))
        self.by_row = BATCH_TIME_COLUMN in self.names
        latest = self._latest(parse_duration(detector.ahead), judgement.judged_at)
        self.unusable = f"{self.moment} IS NULL" + ("" if latest is None else f" OR {self.moment} > {latest}")
        self.watermark = _watermark(judgement.watermark, self.source)
        self.late = f"NOT ({self.unusable}) AND {_is_behind(self.moment, self.watermark, judgement.watermark)}"

    def _own(self, column: str) -> str | None:
        return column if column in self.names else None

    def _latest(self, ahead: timedelta, judged_at: datetime | None) -> str | None:
        if self.by_row:
            return f"({BATCH_TIME_COLUMN} + INTERVAL {ahead.total_seconds():.0f} SECONDS)"
        return None if judged_at is None else _literal(judged_at + ahead)

    def columns(self) -> dict[str, Column]:
        """What the late table tells beside the record."""
        from pyspark.sql import functions as F

        behind = f"(unix_micros({self.watermark}) - unix_micros({self.moment})) / 1000000D"
        texts = {"event_time": self.moment, "watermark": self.watermark, "late_by_seconds": behind}
        return {name: F.expr(text) for name, text in texts.items()}


def _column(name: str | None) -> str:
    return "''" if name is None else f"coalesce(CAST({quoted(name)} AS STRING), '')"


def _watermark(found: Watermark, source: str) -> str:
    """The watermark of a row, as SQL; NULL where there is none yet."""
    nothing = "CAST(NULL AS TIMESTAMP)"
    if found.by_source:
        cases = " ".join(f"WHEN {text_literal(name)} THEN {_literal(at)}" for name, at in found.by_source.items())
        return f"(CASE {source} {cases} ELSE {nothing} END)"
    return nothing if found.at is None else _literal(found.at)


def _is_behind(moment: str, watermark: str, found: Watermark) -> str:
    """Whether a usable time lies before the watermark: so plain that Delta skips files without one by statistics."""
    if found.by_source:  # of a source without a watermark nobody knows
        return f"coalesce({moment} < {watermark}, false)"
    return "false" if found.at is None else f"{moment} < {watermark}"


def _literal(at: datetime) -> str:
    micros = (at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    return f"timestamp_micros({micros})"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
