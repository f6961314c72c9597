"""The options of a dataset as a project file gives them: unknown ones, lengths of time, and when slices close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any, get_args

from lakewright.errors import ConfigurationError, DefinitionError, did_you_mean
from lakewright.model.protocols import Load
from lakewright.model.times import parse_duration, parse_time
from lakewright.patterns.storage.skew_buffer import SkewBuffer
from lakewright.pipelines.definitions import Closes, Mode, Place, Settings

__all__ = [
    "NO_START",
    "as_length",
    "check_closing",
    "check_load",
    "check_mode",
    "check_options",
    "checked_end",
    "checked_skew_buffer",
]

NO_START = "1970-01-01"
"""The start of a pipeline that names none."""


def check_options(what: str, options: Mapping[str, Any], known: Iterable[str], place: Place) -> None:
    """Refuse an option that there is not, and offer the nearest."""
    allowed = set(known) - {"function"}
    if unknown := sorted(set(options) - allowed):
        raise DefinitionError(
            f"{what} has no option '{unknown[0]}'. It has {', '.join(sorted(allowed))}.",
            file=place.file,
            line=place.line,
            hint=did_you_mean(unknown[0], allowed),
        )


def as_length(name: str, option: str, text: str | None) -> timedelta | None:
    """An option such as ``"30 minutes"``; None stays None."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"{name}: {option} is a length of time such as '30 minutes', not {text!r}.")
    try:
        return parse_duration(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {option}: {error.message}") from None


def checked_end(start: str | date | datetime, end: str | date | datetime | None) -> datetime | None:
    """The end of a pipeline; one that does not come after its start is refused."""
    if end is None:
        return None
    if parse_time(end) <= parse_time(start):
        raise ConfigurationError(
            f"the pipeline ends at {end}, and starts at {start}: it would never make anything.",
            hint="Its slices are those of event times from start on, and before end.",
        )
    return parse_time(end)


def check_closing(
    name: str,
    *,
    closes: Closes,
    idle: timedelta | None,
    expect_within: timedelta | None,
    event_time: str | None,
    settings: Settings,
) -> None:
    """Refuse what says when a slice closes, or is expected, where it cannot mean anything."""
    if closes not in get_args(Closes):
        hint = did_you_mean(str(closes), get_args(Closes))
        raise ConfigurationError(f"{name}: closes is 'schedule' or 'watermark', not {closes!r}.", hint=hint)
    if idle is not None and closes != "watermark":
        raise ConfigurationError(
            f"{name}: idle says from when on a silent input holds no watermark back, but its slices close by schedule.",
            hint='Add closes="watermark", or leave idle out.',
        )
    given = ['closes="watermark"'] if closes == "watermark" else []
    given += [] if expect_within is None else ["expect_within"]
    if given and event_time is None:
        raise ConfigurationError(
            f"{name} has {given[0]}, but no event_time: only slices of event time have an end.",
            hint='Name the column: event_time="...".',
        )
    if expect_within is not None and settings.start == parse_time(NO_START):
        raise ConfigurationError(
            f"{name} has expect_within, but its pipeline has no start: every slice since 1970 would be missing.",
            hint=f'Say from when on rows are expected: Pipeline("{settings.pipeline}", start="2026-01-01").',
        )


def check_mode(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a dataset is a stream; what cannot go with one is refused."""
    mode, source = options.get("mode", "batch"), options.get("source")
    if mode not in get_args(Mode):
        raise ConfigurationError(f"{name}: mode is 'batch' or 'stream', not {mode!r}.")
    if mode == "batch":
        if getattr(source, "streams_only", False):
            raise ConfigurationError(f'{name}: {type(source).__name__} is read as a stream: mode="stream" is missing.')
        if options.get("every") is not None or (options.get("max_records") is not None and source is None):
            raise ConfigurationError(f'{name}: every and max_records say how a stream reads; mode="stream" is missing.')
        return False
    if source is not None and not hasattr(source, "stream"):
        raise ConfigurationError(
            f'{name}: {type(source).__name__} cannot be read as a stream. Leave mode="stream" out: each run takes what '
            "is new.",
        )
    most = options.get("max_records")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ConfigurationError(f"{name}: max_records is a number from 1 on, not {most!r}.")
    writer = options.get("writer")
    if writer is not None and getattr(writer, "history", None) is not None:
        raise ConfigurationError(
            f"{name}: Merger with a history (Scd2) cannot follow a stream: nothing tells the order of its changes.",
            hint="Below a captured table use writer=RowVersions(keys=[...]), which goes by the source's log; or leave "
            'mode="stream" out: each run takes the arrivals that are new, in order.',
        )
    if writer is not None and not writer.streams:
        raise ConfigurationError(
            f"{name}: {type(writer).__name__} cannot follow a stream: it would replace what earlier micro-batches "
            "wrote.",
            hint="Leave the writer out (each micro-batch is added once), or use Merger(keys=[...]).",
        )
    if writer is not None and options.get("event_time") is not None:
        raise ConfigurationError(
            f"{name}: a stream that merges has no slices of event time. Leave event_time out; whoever reads it reads "
            "it whole.",
        )
    if options.get("rows") == "preserve":
        raise ConfigurationError(
            f'{name}: rows="preserve" cannot be checked on a stream: no log tells how many rows a micro-batch held, '
            "and to count them would be a job of its own for each.",
            hint='Leave rows out, or declare the step without mode="stream", where it is checked.',
        )
    for option in ("outputs", "into", "sql", "late", "expect_within"):
        if options.get(option):
            raise ConfigurationError(f"{name}: a stream cannot have '{option}'.")
    return True


def check_load(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a loader that is none, or that cannot load this source."""
    load = options.get("load")
    if load is None:
        return
    if not isinstance(load, Load):
        raise ConfigurationError(f"{name}: {load!r} is no loader. Use FullLoader().")
    if options.get("mode", "batch") == "stream":
        raise ConfigurationError(f"{name}: a stream takes what is new by itself; {type(load).__name__} is not for it.")
    load.check_source(name, options["source"])


def checked_skew_buffer(name: str, options: Mapping[str, Any]) -> SkewBuffer | None:
    """The skew buffer of a stream with its columns filled in, or None; refused where it cannot mean anything."""
    given, source = options.get("skew_buffer"), options.get("source")
    if given is None:
        return None
    if not isinstance(given, SkewBuffer):
        raise ConfigurationError(f"{name}: skew_buffer is a SkewBuffer(quota=...), not {given!r}.")
    if options.get("mode", "batch") != "stream":
        raise ConfigurationError(
            f'{name}: skew_buffer bounds the micro-batches of a stream; mode="stream" is missing.',
        )
    if source is None:
        if given.by is None or given.order is None:
            raise ConfigurationError(
                f"{name} follows another dataset: its skew_buffer must say by which columns rows lie in partitions, "
                "and in which order they come.",
                hint=f'SkewBuffer(quota={given.quota}, by="country", order="event_time")',
            )
        return given
    place = getattr(source, "place_columns", None)
    if place is None:
        raise ConfigurationError(f"{name}: {type(source).__name__} has no partitions, so skew_buffer says nothing.")
    if given.by is not None or given.order is not None:
        raise ConfigurationError(
            f"{name}: the skew_buffer of {type(source).__name__} goes by its partitions and offsets, or else the "
            "stream could not be rewound. Leave by and order out.",
        )
    return replace(given, by=(place[0],), order=(place[1],))
