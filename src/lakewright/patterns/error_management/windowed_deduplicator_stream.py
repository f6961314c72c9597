"""Dropping repeats on a stream: Spark remembers the keys of a window of event time in its state store.

Guarantee:
    Of the rows with equal keys the first that comes is kept; whoever is killed in between still knows its key from the
    checkpoint. Rows without a key, without an event time, or which are to be set aside anyway, pass.
Consequences:
    - Keys are forgotten once the watermark has passed their window, so that the state has a bound.
    - Rows behind the watermark are dropped, repeats or not. Spark's progress counts both
      (``numDroppedDuplicateRows``, ``numRowsDroppedByWatermark``).
    - Rows that pass are read by a second scan of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NAME", "drop_repeats_on_stream", "without_key"]

NAME = "Windowed Deduplicator"


def drop_repeats_on_stream(
    df: DataFrame,
    *,
    keys: Sequence[str],
    event_time: str,
    window: str,
    time_in_key: bool = False,
    apart: Column | None = None,
) -> DataFrame:
    """Keep the first row of each key on a stream, among those at most ``window`` apart in event time; lazy.

    ``time_in_key`` takes two rows for the same only if their event times are equal too, and forgets a key sooner: as
    soon as the watermark has passed its time. ``apart`` tells rows that are left alone.
    """
    if not df.isStreaming:
        raise ConfigurationError(f"{NAME}: this frame is no stream.", hint="Use drop_repeats(...).")
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{NAME}: 'keys' is a list of at least one column.")
    seconds = parse_duration(window).total_seconds()
    if seconds <= 0:
        raise ConfigurationError(f"{NAME}: window is longer than nothing, not '{window}'.")
    schema = df.schema
    if missing := [name for name in (*keys, event_time) if name not in schema.names]:
        raise MissingColumnsError(pattern=NAME, missing=missing, present=schema.names)
    kind = schema[event_time].dataType.simpleString()
    if not kind.startswith("timestamp"):
        raise ConfigurationError(
            f"{NAME}: the event time '{event_time}' is {kind}, and a watermark needs a timestamp.",
            hint=f'Cast it before: F.try_to_timestamp("{event_time}").',
        )
    passing = without_key([*keys, event_time])
    if apart is not None:
        passing = passing | apart
    same = list(dict.fromkeys([*keys, event_time] if time_in_key else keys))
    marked = df.where(~passing).withWatermark(event_time, f"{seconds:.0f} seconds")
    unique = marked.dropDuplicates(same) if time_in_key else marked.dropDuplicatesWithinWatermark(same)
    return unique.unionByName(df.where(passing))


def without_key(keys: Sequence[str]) -> Column:
    """Whether a part of the key is NULL; never NULL itself."""
    from pyspark.sql import functions as F

    return F.expr(" OR ".join(f"{quoted(key)} IS NULL" for key in keys))
