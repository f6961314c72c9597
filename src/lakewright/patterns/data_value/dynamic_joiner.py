"""Dynamic Joiner: join two streams that run at different speeds, within a bounded time.

Problem:
    Both sides move, and the slower one comes later: a join without a match may only mean "not yet". To wait for ever
    fills the memory, and not to wait leaves most joins empty.
Guarantee:
    Two rows are joined, once, if their keys are equal and their times lie within the bounds, in whatever order and
    micro-batches they come, as long as neither comes later than its watermark allows; restarts included. What is
    waited for is bounded: a row is let go when the watermark has passed all that it could be joined with. With
    ``how="left"`` (``"right"``, ``"full"``) a row of that side that found no match is released then, once, with NULLs,
    and not before. A row whose key or time is NULL is joined with nothing: it is released at once, or left out where
    only pairs are wanted. With ``pick="latest"`` each row of the left side has at most one match, the newest at or
    before its own time, and comes out when no newer one can come any more; one without ``row_id`` is joined with
    nothing too.
Consequences:
    - Longer bounds and watermarks find more and hold more: `join_report` tells how much, and `lakewright stream show`.
    - Spark goes by one watermark, that of the slowest side: while one side is silent, nothing is released or let go.
      `join_report` names a silent side; in a pipeline so do `lakewright stream show` and a finding.
    - A query that starts again knows its watermark, and not how far each side was: it moves on when both have brought
      something since.
    - A row that comes later than its watermark is dropped by Spark, which counts it (``numRowsDroppedByWatermark``).
      Set such rows aside before, by a Late Data Detector with the same lateness, and repair what they belong to.
    - Several rows of one side within the bounds are several pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import taken_names
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration
from lakewright.patterns.data_value.join_report import JoinReport, join_report
from lakewright.patterns.data_value.newest_match import keep_newest_match, untold_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DynamicJoiner", "How", "JoinReport", "Pick", "join_report", "join_streams"]

How: TypeAlias = Literal["inner", "left", "right", "full"]
Pick: TypeAlias = Literal["all", "latest"]
_SIDES = {"inner": (), "left": ("left",), "right": ("right",), "full": ("left", "right")}


@dataclass(frozen=True, slots=True)
class DynamicJoiner:
    """How two streams are joined; refused where it would wait for ever.

    In a pipeline it is what a parameter of a stream's step refers to: ``inputs={"pairs": DynamicJoiner(...)}``.
    """

    keys: Sequence[str]
    left_time: str
    right_time: str
    within: str | tuple[str, str] | None = None
    """How far the times may lie apart: ``"2 minutes"`` either way, or how long the right one may come before the left
    one and how long after it: ``("0 seconds", "2 minutes")``. Both ends belong to it."""
    left_watermark: str | None = None
    """How late a row of the left side may come, by its time."""
    right_watermark: str | None = None
    how: How = "inner"
    pick: Pick = "all"
    """``"latest"``: of all matches at or before the left row's time, the newest one."""
    row_id: Sequence[str] = ()
    """With ``pick="latest"``: the columns that tell a row of the left side from all others of the same time."""
    left: str | None = None
    """In a pipeline: the dataset of the left side."""
    right: str | None = None
    idle: str = field(default="10 minutes", compare=False, repr=False)
    """How much longer one side may be silent than the other before people are told."""

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ConfigurationError("join_streams: 'keys' is a list of at least one column, such as keys=[\"page\"].")
        if self.how not in get_args(How):
            allowed = ", ".join(repr(one) for one in get_args(How))
            raise ConfigurationError(f"join_streams: how is one of {allowed}, not {self.how!r}.")
        if self.within is None:
            raise ConfigurationError(
                "join_streams: 'within' is missing. Without a bound of time every row would be held for ever: a "
                "match might still come.",
                hint='Say how far the times may lie apart: within="2 minutes", or ("0 seconds", "2 minutes").',
            )
        if not isinstance(self.within, str) and len(self.within) != 2:
            raise ConfigurationError(
                "join_streams: 'within' is one length of time, or two: how long before, and how long after."
            )
        for side in ("left", "right"):
            if getattr(self, f"{side}_watermark") is None:
                time = getattr(self, f"{side}_time")
                raise ConfigurationError(
                    f"join_streams: '{side}_watermark' is missing. Without it nobody knows when no earlier {time} can "
                    "come, and nothing would ever be let go.",
                    hint=f'Say how late a row of the {side} side may come: {side}_watermark="10 minutes".',
                )
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "row_id", (self.row_id,) if isinstance(self.row_id, str) else tuple(self.row_id))
        self._check_pick()
        for option in ("before", "after", "left_delay", "right_delay", "patience"):
            getattr(self, option)  # a length that is none is refused here

    def _check_pick(self) -> None:
        if self.pick not in get_args(Pick):
            raise ConfigurationError(f"join_streams: pick is 'all' or 'latest', not {self.pick!r}.")
        if self.pick == "all":
            if self.row_id:
                raise ConfigurationError('join_streams: row_id says nothing without pick="latest".')
            return
        if self.how not in ("inner", "left"):
            raise ConfigurationError(f"join_streams: pick='latest' goes with how='inner' or 'left', not {self.how!r}.")
        if not self.row_id:
            raise ConfigurationError(
                "join_streams: 'row_id' is missing: to keep one match for each row, rows must be told apart.",
                hint='Name what tells a row of the left side: row_id=["visit_id"].',
            )
        if not isinstance(self.within, str) and self.after > timedelta(0):
            raise ConfigurationError(
                "join_streams: pick='latest' takes what was known at the row's time; 'within' cannot reach after it.",
                hint='Say how old a match may be: within="1 hour".',
            )

    @property
    def before(self) -> timedelta:
        """How long before the left row the right one may come."""
        assert self.within is not None
        return _length("within", self.within if isinstance(self.within, str) else self.within[0])

    @property
    def after(self) -> timedelta:
        """How long after the left row the right one may come."""
        assert self.within is not None
        if self.pick == "latest" and isinstance(self.within, str):
            return timedelta(0)
        return _length("within", self.within if isinstance(self.within, str) else self.within[1])

    @property
    def left_delay(self) -> timedelta:
        return _length("left_watermark", self.left_watermark)

    @property
    def right_delay(self) -> timedelta:
        return _length("right_watermark", self.right_watermark)

    @property
    def patience(self) -> timedelta:
        return _length("idle", self.idle)

    @property
    def matched(self) -> str:
        """Whether a row of the result is a pair, as SQL."""
        return f"{quoted(self.left_time)} IS NOT NULL AND {quoted(self.right_time)} IS NOT NULL"

    def check_inputs(self) -> tuple[str, str]:
        """The two datasets of a pipeline; refused where they are not named."""
        for side in ("left", "right"):
            if not getattr(self, side):
                raise ConfigurationError(
                    f"DynamicJoiner: '{side}' is missing: in a pipeline it names the dataset of that side.",
                    hint=f'DynamicJoiner(left="visits", right="ads", ...); the one that is missing is {side}.',
                )
        if self.left == self.right:
            raise ConfigurationError(
                f"DynamicJoiner: left and right are both {self.left}; a stream is not joined twice."
            )
        return str(self.left), str(self.right)

    def join(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Both sides as one frame; lazy. On frames at rest it gives what the streams would in the end."""
        if self.pick == "all":
            return _pairs(left, right, self)
        told_by = (self.left_time, *self.row_id)
        told = left.where(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in told_by))
        pairs = _pairs(told, right, self)
        newest = keep_newest_match(
            pairs, row_id=self.row_id, at=self.left_time, newer=self.right_time, left=left.columns
        )
        return newest if self.how == "inner" else newest.unionByName(untold_rows(left, pairs, told_by))


def join_streams(
    left: DataFrame,
    right: DataFrame,
    *,
    keys: Sequence[str],
    left_time: str,
    right_time: str,
    within: str | tuple[str, str] | None = None,
    left_watermark: str | None = None,
    right_watermark: str | None = None,
    how: How = "inner",
    pick: Pick = "all",
    row_id: Sequence[str] = (),
) -> DataFrame:
    """Join two streaming frames by key and time; lazy. The columns of the left side come first, then those of the right
    side without the keys.

    Two frames at rest are joined as well, and give the pairs that the streams would: to try it out, or to fill up.

    >>> visits = spark.sql("SELECT '/a' AS page, TIMESTAMP'2026-01-01 10:00:00' AS seen")
    >>> ads = spark.sql("SELECT '/a' AS page, 'x' AS ad, TIMESTAMP'2026-01-01 10:01:30' AS shown")
    >>> pairs = join_streams(visits, ads, keys=["page"], left_time="seen", right_time="shown",
    ...     within=("0 seconds", "2 minutes"), left_watermark="10 minutes", right_watermark="10 minutes")
    >>> pairs.select("page", "ad").collect()
    [Row(page='/a', ad='x')]
    """
    options = DynamicJoiner(
        keys=keys,
        left_time=left_time,
        right_time=right_time,
        within=within,
        left_watermark=left_watermark,
        right_watermark=right_watermark,
        how=how,
        pick=pick,
        row_id=row_id,
    )
    return options.join(left, right)


def _pairs(left: DataFrame, right: DataFrame, options: DynamicJoiner) -> DataFrame:
    from pyspark.sql import functions as F

    carried = _check(left, right, options)
    names = {key: f"_lw_key_{place}" for place, key in enumerate(options.keys)}
    seen = left.withWatermark(options.left_time, _spark_length(options.left_delay))
    told = right.withWatermark(options.right_time, _spark_length(options.right_delay)).selectExpr(
        *[f"{quoted(key)} AS {name}" for key, name in names.items()], *[quoted(name) for name in carried]
    )
    at, other = quoted(options.left_time), quoted(options.right_time)
    conditions = [f"{quoted(key)} = {name}" for key, name in names.items()]
    conditions += [f"{other} >= {at} - {_interval(options.before)}", f"{other} <= {at} + {_interval(options.after)}"]
    # Said in so many words, a row that can be joined with nothing is not held: without a time it would be for ever.
    conditions += [f"{quoted(name)} IS NOT NULL" for name in (*options.keys, options.left_time)]
    conditions += [f"{name} IS NOT NULL" for name in (*names.values(), other)]
    joined = seen.join(told, on=F.expr(" AND ".join(conditions)), how=options.how)
    right_kept = "right" in _SIDES[options.how]
    shown = {key: f"coalesce({quoted(key)}, {name})" for key, name in names.items()} if right_kept else {}
    return joined.selectExpr(
        *[f"{shown[name]} AS {quoted(name)}" if name in shown else quoted(name) for name in left.columns],
        *[quoted(name) for name in carried],
    )


def _check(left: DataFrame, right: DataFrame, options: DynamicJoiner) -> list[str]:
    """The columns of the right side that come along; refused where the two cannot be joined."""
    if left.isStreaming != right.isStreaming:
        raise ConfigurationError(
            "join_streams: one side is a stream, and the other is at rest: there is nothing to wait for.",
            hint="Join a reference that is at rest with join_as_of, or read it as a stream too.",
        )
    found = []
    for side, frame, time in (("left", left, options.left_time), ("right", right, options.right_time)):
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        asked = (*options.keys, time, *(options.row_id if side == "left" else ()))
        if missing := [name for name in asked if name not in kinds]:
            raise MissingColumnsError(pattern=f"join_streams ({side} side)", missing=missing, present=list(kinds))
        if kinds[time] != "timestamp":
            raise ConfigurationError(
                f"join_streams: {time} of the {side} side is {kinds[time]}; a watermark goes by a TIMESTAMP.",
                hint=f'Cast it first: F.col("{time}").cast("timestamp").',
            )
        found.append([name for name in kinds if name not in options.keys])
    if clash := taken_names(found[0], found[1]):
        raise ConfigurationError(
            f"join_streams: both sides have a column {clash[0]}. Rename or drop it on one side first."
        )
    return found[1]


def _length(option: str, text: str | None) -> timedelta:
    try:
        return parse_duration(str(text))
    except ConfigurationError as error:
        raise ConfigurationError(f"join_streams: {option}: {error.message}") from None


def _spark_length(length: timedelta) -> str:
    return f"{int(length.total_seconds())} seconds"


def _interval(length: timedelta) -> str:
    return f"INTERVAL '{int(length.total_seconds())}' SECOND"
