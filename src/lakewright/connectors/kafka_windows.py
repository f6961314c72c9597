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

__all__ = ["IfLost", "after", "go_on", "gone_of", "origin_of", "ranges_of", "refuse_anew", "share", "window_of"]

Ranges = Mapping[int, tuple[int, int]]
IfLost = Literal["fail", "go on"]
_NOWHERE: Mapping[int, int] = {}
_NEW_NAME = "Declare the source under a new name to take the new topic from its beginning."


def window_of(state: TopicState, ranges: Ranges, lost: Ranges | None = None) -> Window:
    """A window as it is recorded; every partition is in it, so that it also tells where to go on."""
    window: dict[str, JsonValue] = {
        "topic": state.topic,
        "topic_id": state.id,
        "partitions": {str(partition): [*ranges[partition]] for partition in sorted(ranges)},
    }
    if lost:
        window["lost"] = {str(partition): [*lost[partition]] for partition in sorted(lost)}
    return window


def ranges_of(window: Window) -> dict[int, tuple[int, int]]:
    """The offsets of a recorded window by partition."""
    partitions = cast(dict[str, list[int]], window["partitions"])
    return {int(partition): (first, end) for partition, (first, end) in partitions.items()}


def origin_of(window: Window) -> Window:
    """Of which topic a window is, without its places.

    >>> origin_of({"topic": "visits", "topic_id": "x1", "partitions": {"0": [17, 17]}})
    {'topic': 'visits', 'topic_id': 'x1', 'partitions': {}}
    """
    return {"topic": window["topic"], "topic_id": window["topic_id"], "partitions": {}}


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
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Where each partition goes on, and which offsets are lost; refused where that is not for us to decide.

    ``ends`` are the true ends of the partitions, open transactions included. A new partition begins at its beginning.
    """
    refuse_anew(who, topic_id, state, positions)
    for partition, position in sorted(positions.items()):
        if position > ends[partition]:
            raise InputError(
                f"{who}: partition {partition} of '{state.topic}' ends at offset {ends[partition]}, but was already "
                f"read up to {position}: the broker has lost records, and gives their offsets to others. "
                "Nothing was read.",
                hint=_NEW_NAME,
            )
    lost = {p: (at, state.low[p]) for p, at in positions.items() if at < state.low[p]}
    if lost and if_lost == "fail":
        listed = "; ".join(f"partition {p}, offsets {a} to {b - 1}" for p, (a, b) in sorted(lost.items()))
        raise InputError(
            f"{who}: the topic '{state.topic}' has deleted records that were never read ({listed}). Nothing was read.",
            hint="They are lost unless their producer sends them again; the topic's retention was shorter than the "
            'time since the last run. To go on with what is left: KafkaTopic(..., if_lost="go on"), which notes the '
            "gap in the arrival.",
        )
    starts = {p: max(positions.get(p, low), low) for p, low in state.low.items()}
    return starts, lost


def refuse_anew(who: str, topic_id: object, state: TopicState, positions: Mapping[int, int] = _NOWHERE) -> None:
    """Refuse a topic that is not the one that was read: its offsets mean other records."""
    if topic_id != state.id or not positions.keys() <= state.low.keys():
        raise InputError(
            f"{who}: the topic '{state.topic}' was deleted and made anew since it was last read. Nothing was read.",
            hint=_NEW_NAME,
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
