"""Range partitions of a PostgreSQL table: one per hour, day or month in UTC, made as rows need them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from lakewright.connectors.postgres_connection import Session, TableName, ask, quoted, words
from lakewright.errors import ConfigurationError, InputError, LimitExceeded
from lakewright.model.times import parse_time

if TYPE_CHECKING:  # a project file names partitions before Spark is there
    from lakewright.connectors.postgres_staging import Stage

__all__ = ["RangePartitions", "ensure_partitions"]

_NAMES = {"hour": "%Y%m%dt%H", "day": "%Y%m%d", "month": "%Y%m"}


@dataclass(frozen=True, slots=True)
class RangePartitions:
    """``PARTITION BY RANGE`` on a date or time column.

    A row lies outside where its value is NULL, before ``start`` or not before ``end``; such rows are refused, or kept
    in a default partition. ``limit`` bounds the partitions that one write may need, since a wrong clock would make
    thousands.
    """

    by: str
    every: Literal["hour", "day", "month"] = "day"
    start: str | date | datetime | None = None
    end: str | date | datetime | None = None
    outside: Literal["refuse", "default"] = "refuse"
    limit: int = 400

    def __post_init__(self) -> None:
        if self.every not in _NAMES:
            raise ConfigurationError(f"RangePartitions: every is 'hour', 'day' or 'month', not {self.every!r}.")
        if self.outside not in ("refuse", "default"):
            raise ConfigurationError(f"RangePartitions: outside is 'refuse' or 'default', not {self.outside!r}.")
        for bound in (self.start, self.end):
            if bound is not None:
                parse_time(bound)

    def inside(self, column: str) -> str:
        """The rows that get a partition, as SQL."""
        parts = [f"{column} IS NOT NULL"]
        if self.start is not None:
            parts.append(f"{column} >= {words(f'{parse_time(self.start):%Y-%m-%d %H:%M:%S}')}::timestamp")
        if self.end is not None:
            parts.append(f"{column} < {words(f'{parse_time(self.end):%Y-%m-%d %H:%M:%S}')}::timestamp")
        return " AND ".join(parts)


def ensure_partitions(session: Session, table: TableName, stage: Stage, partitions: RangePartitions) -> None:
    """Make the partitions that the staged rows need, in a transaction of its own; refuse what lies outside."""
    from lakewright.connectors.postgres_shape import lock_key, stored_columns

    stored = stored_columns(session, table) or {}
    kind = stored[partitions.by].kind if partitions.by in stored else "?"
    if not kind.startswith(("date", "timestamp")):
        raise ConfigurationError(
            f"{stage.what}: partitions go by '{partitions.by}', which is no date or time column ({kind})."
        )
    zoned = "with time zone" in kind
    column = f"({quoted(partitions.by)}{' AT TIME ZONE ' + words('UTC') if zoned else '::timestamp'})"
    with session.transaction():
        ask(session, f"SELECT pg_advisory_xact_lock({lock_key(f'shape of {table}')})")
        _settle_outside(session, table, stage, partitions, column)
        found = ask(
            session,
            f"SELECT DISTINCT date_trunc({words(partitions.every)}, {column}) FROM {stage.rows()} "
            f"WHERE {partitions.inside(column)} ORDER BY 1 LIMIT {partitions.limit + 1}",
        ).fetchall()
        if len(found) > partitions.limit:
            raise LimitExceeded(
                f"{stage.what}: the rows need more than {partitions.limit:,} partitions of {table} (one per "
                f"{partitions.every}). Nothing was written. Look for a wrong clock, or raise limit.",
                dataset=stage.what,
                slice_id="",
                rows=len(found),
            )
        for (begin,) in found:
            _create(session, table, begin, partitions, zoned)


def _settle_outside(session: Session, table: TableName, stage: Stage, partitions: RangePartitions, column: str) -> None:
    if partitions.outside == "default":
        name = table.beside(f"{table.name}_default")
        ask(session, f"CREATE TABLE IF NOT EXISTS {name.sql} PARTITION OF {table.sql} DEFAULT")
        return
    row = ask(
        session,
        f"SELECT count(*), min({quoted(partitions.by)}::text) FROM {stage.rows()} "
        f"WHERE NOT ({partitions.inside(column)})",
    ).fetchone()
    if row is not None and row[0]:
        raise InputError(
            f"{stage.what}: {row[0]:,} rows lie outside every partition of {table}: {partitions.by} is "
            f"{'NULL' if row[1] is None else row[1]}. Nothing was written.",
            hint='Correct the rows, widen start and end, or keep them with outside="default".',
        )


def _create(session: Session, table: TableName, begin: datetime, partitions: RangePartitions, zoned: bool) -> None:
    end = _next(begin, partitions.every)
    name = table.beside(f"{table.name}_{begin.strftime(_NAMES[partitions.every])}")
    zone = "+00" if zoned else ""
    bounds = [words(f"{at:%Y-%m-%d %H:%M:%S}{zone}") for at in (begin, end)]
    ask(
        session,
        f"CREATE TABLE IF NOT EXISTS {name.sql} PARTITION OF {table.sql} "
        f"FOR VALUES FROM ({bounds[0]}) TO ({bounds[1]})",
    )


def _next(begin: datetime, every: str) -> datetime:
    """Where the next partition begins.

    >>> _next(datetime(2026, 12, 1), "month")
    datetime.datetime(2027, 1, 1, 0, 0)
    """
    if every == "month":
        return (begin.replace(day=1) + timedelta(days=32)).replace(day=1)
    return begin + (timedelta(hours=1) if every == "hour" else timedelta(days=1))
