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
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import business_columns
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.whole_rows import ALL, comparable_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NAME", "drop_repeats_on_stream", "without_key"]

NAME = "Windowed Deduplicator"


def drop_repeats_on_stream(
    df: DataFrame,
    *,
    keys: Sequence[str] | Literal["all"],
    event_time: str,
    window: str,
    time_in_key: bool = False,
    apart: Column | None = None,
) -> DataFrame:
    """Keep the first row of each key on a stream, among those at most ``window`` apart in event time; lazy.

    ``time_in_key`` takes two rows for the same only if their event times are equal too, and forgets a key sooner: as
    soon as the watermark has passed its time; so does ``keys="all"``, which compares every column. ``apart`` tells rows
    that are left alone.
    """
    if not df.isStreaming:
        raise ConfigurationError(f"{NAME}: this frame is no stream.", hint="Use drop_repeats(...).")
    whole = keys == ALL
    if (isinstance(keys, str) and not whole) or not keys:
        raise ConfigurationError(f"{NAME}: 'keys' is a list of at least one column, or '{ALL}'.")
    seconds = parse_duration(window).total_seconds()
    if seconds <= 0:
        raise ConfigurationError(f"{NAME}: window is longer than nothing, not '{window}'.")
    schema = df.schema
    names = business_columns(schema.names) if whole else list(keys)
    if missing := [name for name in (*names, event_time) if name not in schema.names]:
        raise MissingColumnsError(pattern=NAME, missing=missing, present=schema.names)
    kind = schema[event_time].dataType.simpleString()
    if not kind.startswith("timestamp"):
        raise ConfigurationError(
            f"{NAME}: the event time '{event_time}' is {kind}, and a watermark needs a timestamp.",
            hint=f'Cast it before: F.try_to_timestamp("{event_time}").',
        )
    passing = without_key([event_time] if whole else [*names, event_time])
    if apart is not None:
        passing = passing | apart
    marked = df.where(~passing).withWatermark(event_time, f"{seconds:.0f} seconds")
    if whole:
        marked, names = _with_comparable(marked, names)
    same = list(dict.fromkeys([*names, event_time] if whole or time_in_key else names))
    unique = marked.dropDuplicates(same) if whole or time_in_key else marked.dropDuplicatesWithinWatermark(same)
    return unique.select(*map(quoted, schema.names)).unionByName(df.where(passing))


def _with_comparable(df: DataFrame, names: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """The stream with a column beside each that Spark cannot compare as it is, and the names to compare."""
    columns = comparable_columns(df, names, pattern=NAME)
    maps = [name for name in names if df.schema[name].dataType.simpleString().startswith("map<")]
    beside = {name: f"_lw_same_{place}" for place, name in enumerate(maps)}
    added = df.withColumns({beside[name]: columns[name] for name in maps}) if maps else df
    return added, [beside.get(name, name) for name in names]


def without_key(keys: Sequence[str]) -> Column:
    """Whether a part of the key is NULL; never NULL itself."""
    from pyspark.sql import functions as F

    return F.expr(" OR ".join(f"{quoted(key)} IS NULL" for key in keys))
