"""Moments as numbers and as SQL, the same whatever the time zone of a session."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from lakewright.model.times import parse_time

__all__ = ["micros_of", "moment_sql"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_of(at: str | date | datetime) -> int:
    """Microseconds since 1970; a time without a zone is taken as UTC.

    >>> micros_of("1970-01-01T00:00:01.000001")
    1000001
    """
    return (parse_time(at) - _EPOCH) // timedelta(microseconds=1)


def moment_sql(at: str | date | datetime) -> str:
    """A moment as SQL takes it: a text would be read in the session's own time zone.

    >>> moment_sql("1970-01-01T00:00:01")
    'timestamp_micros(1000000)'
    """
    return f"timestamp_micros({micros_of(at)})"
