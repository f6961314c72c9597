"""Windows of a topic: by partition the offsets ``[from, to)``, and what became of them since they were recorded.

Offsets are places, not records: a transaction's own marks and what it took back have offsets too, so a window may hold
fewer records than offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from lakewright.connectors.kafka_client import TopicState
from lakewright.errors import InputError
from lakewright.model.arrivals import JsonValue, Window
from lakewright.model.columns import OFFSET_COLUMN, PARTITION_COLUMN

__all__ = [
    "IfLost",
    "after",
    "began_at",
    "go_on",
    "gone_of",
    "left_of",
    "listed",
    "lost_of",
    "origin_of",
    "ranges_of",
    "refuse_anew",
    "share",
    "window_of",
]

Ranges = Mapping[int, tuple[int, int]]
IfLost = Literal["fail", "go on"]
_NOWHERE: Mapping[int, int] = {}
_NEW_NAME = "Declare the source under a new name to take the new topic from its beginning."
_BEGAN = "began"


def window_of(
    state: TopicState, ranges: Ranges, lost: Ranges | None = None, *, began: Mapping[int, int] | None = None
) -> Window:
    """A window as it is recorded; every partition is in it, so that it also tells where to go on.

    ``began`` is where a stream began in the first place, told by a window where it begins to read again.
    """
    window: dict[str, JsonValue] = {
        "topic": state.topic,
        "topic_id": state.id,
        "partitions": {str(partition): [*ranges[partition]] for partition in sorted(ranges)},
    }
    if lost:
        window["lost"] = {str(partition): [*lost[partition]] for partition in sorted(lost)}
    if began is not None:
        window[_BEGAN] = {str(partition): began[partition] for partition in sorted(began)}
    return window


def ranges_of(window: Window) -> dict[int, tuple[int, int]]:
    """The offsets of a recorded window by partition."""
    partitions = cast(dict[str, list[int]], window["partitions"])
    return {int(partition): (first, end) for partition, (first, end) in partitions.items()}


def began_at(window: Window | None) -> dict[int, int]:
    """Where a stream began to read in the first place, by the window that its generation begins with.

    >>> began_at({"partitions": {"0": [17, 17]}, "began": {"0": 3}})
    {0: 3}
    >>> began_at({"partitions": {"0": [17, 17]}})
    {0: 17}
    """
    if window is None:
        return {}
    if _BEGAN in window:
        return {int(partition): at for partition, at in cast(dict[str, int], window[_BEGAN]).items()}
    return {partition: first for partition, (first, _) in ranges_of(window).items()}


def lost_of(window: Window) -> dict[int, tuple[int, int]]:
    """The offsets that were gone before a window, by partition."""
    lost = cast(dict[str, list[int]], window.get("lost", {}))
    return {int(partition): (first, end) for partition, (first, end) in lost.items()}


def origin_of(window: Window, *, began: bool = False) -> Window:
    """Of which topic a window is, and which records it lacks, without its places; on demand, where the stream began.

    >>> origin_of({"topic": "visits", "topic_id": "x1", "partitions": {"0": [17, 17]}})
    {'topic': 'visits', 'topic_id': 'x1', 'partitions': {}}
    """
    origin: dict[str, JsonValue] = {"topic": window["topic"], "topic_id": window["topic_id"], "partitions": {}}
    if "lost" in window:
        origin["lost"] = window["lost"]
    if began:
        origin[_BEGAN] = {str(partition): at for partition, at in began_at(window).items()}
    return origin


def listed(lost: Ranges) -> str:
    """Ranges of offsets in words.

    >>> listed({0: (2, 4), 1: (7, 9)})
    'partition 0, offsets 2 to 3; partition 1, offsets 7 to 8'
    """
    return "; ".join(f"partition {p}, offsets {a} to {b - 1}" for p, (a, b) in sorted(lost.items()))


def after(window: Window) -> str:
    """SQL that tells the rows at or after the place where a window begins; partitions that came later are after it.

    >>> after({"partitions": {"0": [17, 17], "1": [3, 9]}})
    '(_lw_partition = 0 AND _lw_offset >= 17) OR (_lw_partition = 1 AND _lw_offset >= 3) OR _lw_partition NOT IN (0, 1)'
    """
    ranges = ranges_of(window)
    known = [f"({PARTITION_COLUMN} = {p} AND {OFFSET_COLUMN} >= {first})" for p, (first, _) in ranges.items()]
    return " OR ".join([*known, f"{PARTITION_COLUMN} NOT IN ({', '.join(map(str, ranges))})"])


def go_on(
    who: str,
    positions: Mapping[int, int],
    topic_id: object,
    state: TopicState,
    ends: Mapping[int, int],
    if_lost: IfLost,
    *,
    stream: bool = False,
    way_on: str | None = None,
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Where each partition goes on, and which offsets are lost; refused where that is not for us to decide.

    ``ends`` are the true ends of the partitions, open transactions included. A new partition begins at its beginning.
    ``way_on`` is how to go on with what is left, where the source has no ``if_lost``.
    """
    refuse_anew(who, topic_id, state, positions, stream=stream)
    for partition, position in sorted(positions.items()):
        if position > ends[partition]:
            raise InputError(
                f"{who}: partition {partition} of '{state.topic}' ends at offset {ends[partition]}, but was already "
                f"read up to {position}: the broker has lost records, and gives their offsets to others. "
                "Nothing was read.",
                hint=_instead(who, stream=stream),
            )
    lost = {p: (at, state.low[p]) for p, at in positions.items() if at < state.low[p]}
    if lost and if_lost == "fail":
        noted = "tells the gap as a finding" if stream else "notes the gap in the arrival"
        way_on = way_on or f'KafkaTopic(..., if_lost="go on"), which {noted}'
        raise InputError(
            f"{who}: the topic '{state.topic}' has deleted records that were never read ({listed(lost)}). Nothing was "
            "read.",
            hint="They are lost unless their producer sends them again; the topic's retention was shorter than the "
            f"time since the last run. To go on with what is left: {way_on}.",
        )
    starts = {p: max(positions.get(p, low), low) for p, low in state.low.items()}
    return starts, lost


def refuse_anew(
    who: str, topic_id: object, state: TopicState, positions: Mapping[int, int] = _NOWHERE, *, stream: bool = False
) -> None:
    """Refuse a topic that is not the one that was read: its offsets mean other records."""
    if topic_id != state.id or not positions.keys() <= state.low.keys():
        raise InputError(
            f"{who}: the topic '{state.topic}' was deleted and made anew since it was last read. Nothing was read.",
            hint=_instead(who, stream=stream),
        )


def _instead(who: str, *, stream: bool) -> str:
    """What to do where the offsets that were read mean other records now."""
    if not stream:
        return _NEW_NAME
    return (
        f"{_NEW_NAME} Or let this stream take it in place of the old one: `lakewright stream rewind {who} --all "
        "--lost delete`, which deletes for good what the old one gave."
    )


def gone_of(window: Window, state: TopicState, ends: Mapping[int, int]) -> list[str]:
    """What of a recorded window the topic no longer holds, in words."""
    if window["topic_id"] != state.id:
        return [f"the topic '{state.topic}' was deleted and made anew"]
    gone = []
    for partition, (first, end) in ranges_of(window).items():
        if first < end and state.low[partition] > first:
            upto = min(end, state.low[partition]) - 1
            gone.append(f"offsets {first} to {upto} of partition {partition} were deleted by the topic's retention")
        elif end > ends[partition]:
            gone.append(f"partition {partition} now ends at offset {ends[partition]}, before {end}")
    return gone


def left_of(
    who: str, window: Window, state: TopicState, ends: Mapping[int, int]
) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
    """The offsets of a recorded window that the topic still holds, and those that are lost.

    Refused where it was made anew, or has lost its end.
    """
    refuse_anew(who, window["topic_id"], state)
    left, lost = {}, lost_of(window)
    for partition, (first, end) in ranges_of(window).items():
        if end > ends[partition]:
            raise InputError(
                f"{who}: partition {partition} of '{state.topic}' ends at offset {ends[partition]}, but was already "
                f"recorded up to {end}: the broker has lost records, and gives their offsets to others. Nothing was "
                "read or given up.",
                hint=_NEW_NAME,
            )
        left[partition] = (max(first, min(state.low[partition], end)), end)
        if left[partition][0] > first:
            lost[partition] = (lost.get(partition, (first, first))[0], left[partition][0])
    return left, lost


def share(ranges: Ranges, most: int | None) -> dict[int, tuple[int, int]]:
    """The first ``most`` offsets of all partitions together, in proportion to what each has.

    At least one of each, so that no partition waits for ever behind a larger one.

    >>> share({0: (0, 90), 1: (5, 15), 2: (7, 7)}, 10)
    {0: (0, 8), 1: (5, 6), 2: (7, 7)}
    """
    total = sum(end - first for first, end in ranges.values())
    if most is None or total <= most:
        return dict(ranges)
    waiting = sum(end > first for first, end in ranges.values())
    free = max(most - waiting, 0)
    return {
        p: (first, first + (1 + (end - first - 1) * free // max(total - waiting, 1) if end > first else 0))
        for p, (first, end) in ranges.items()
    }
