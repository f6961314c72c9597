"""Windowed Deduplicator: keep one row of each key within a slice, a window of event time, or a stream.

Problem:
    A producer that retries sends some records twice.
Guarantee:
    Of the rows with equal keys one is kept, always the same one: the first (or last) by ``order_by``, then by
    content. With ``window`` a key that earlier slices hold within it is dropped too; a repeat of a slice knows only
    slices before it, and so never drops its own rows. On a stream the first that comes is kept, and its key remembered
    for the window, also across a kill. Rows whose key is NULL are all kept, or set aside, and never taken for one.
    With ``keys="all"`` rows are the same when they are in every column, and a NULL is the same as a NULL.
Consequences:
    - Without ``window`` only repeats within the slice are found. With it slices are made one at a time, in order, and
      the keys of the window are read: partitions before it are not.
    - A long window on a stream costs state, a short one misses repeats: `lakewright stream show` tells how large the
      state is, the receipts how many rows were dropped.
    - On a stream rows behind the watermark are dropped, repeats or not, and counted. Let a Late Data Detector on the
      stream above capture them, with ``across="max"`` and a lateness shorter than ``window``.
    - It is not exactly-once delivery: the output still needs an idempotent writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import ARRIVAL_COLUMN, business_columns, system_columns
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.whole_rows import ALL, comparable_columns
from lakewright.patterns.error_management.windowed_deduplicator_stream import (
    NAME,
    drop_repeats_on_stream,
    without_key,
)
from lakewright.patterns.idempotency.content_order import content_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NO_KEY", "RepeatSplit", "WindowedDeduplicator", "drop_repeats", "drop_repeats_on_stream", "split_repeats"]

NO_KEY = "no key"
"""The rule that a row without a key breaks, where such rows are set aside."""
_REPEAT, _KNOWN, _RANK = "_lw_repeat", "_lw_known", "_lw_rank"
_WORDS = {"asc": False, "desc": True}


class RepeatSplit(NamedTuple):
    """The two parts of a frame; both are lazy."""

    kept: DataFrame
    repeats: DataFrame


@dataclass(frozen=True, slots=True)
class WindowedDeduplicator:
    """The guard of the pipeline layer: ``keep`` says which of the repeats stays, by ``order_by``.

    ``keys`` are the columns that tell whether two rows are the same; ``"all"`` takes all of them, as DISTINCT does.
    An entry of ``order_by`` may end with ``desc``: ``["quality desc", "received"]`` keeps the best. ``window`` is how
    far apart in event time repeats are found: across slices in batch, and needed on a stream, where ``event_time`` is
    the input's own unless it is named, and ``time_in_key`` takes rows for the same only if their times are equal too.
    """

    keys: Sequence[str] | Literal["all"]
    order_by: Sequence[str] = ()
    keep: Literal["first", "last"] = "first"
    window: str | None = None
    event_time: str | None = None
    time_in_key: bool = False
    nulls: Literal["keep", "set aside"] = "keep"
    dropped: Literal["count", "keep"] = "count"

    def __post_init__(self) -> None:
        whole = self.keys == ALL
        if (isinstance(self.keys, str) and not whole) or not self.keys:
            raise ConfigurationError(
                f"{NAME}: 'keys' is a list of at least one column, or '{ALL}' where every column counts."
            )
        if isinstance(self.order_by, str):
            raise ConfigurationError(f"{NAME}: 'order_by' is a list of columns, such as ['{self.order_by}'].")
        if whole and self.order_by:
            raise ConfigurationError(
                f"{NAME}: rows that are the same in every column have no order. Leave order_by out."
            )
        if whole and self.nulls != "keep":
            raise ConfigurationError(
                f"{NAME}: with keys='{ALL}' no row is without a key: a NULL is the same as a NULL. Leave nulls out.",
                hint='DeadLetter(rules={"has_id": "id IS NOT NULL"}) before it sets rows with a NULL aside.',
            )
        if self.keep not in ("first", "last"):
            raise ConfigurationError(f"{NAME}: keep is 'first' or 'last', not {self.keep!r}.")
        if self.nulls not in ("keep", "set aside"):
            raise ConfigurationError(f"{NAME}: nulls is 'keep' or 'set aside', not {self.nulls!r}.")
        if self.dropped not in ("count", "keep"):
            raise ConfigurationError(f"{NAME}: dropped is 'count' or 'keep', not {self.dropped!r}.")
        if self.window is not None and parse_duration(self.window) <= timedelta(0):
            raise ConfigurationError(f"{NAME}: window is longer than nothing, not '{self.window}'.")
        object.__setattr__(self, "keys", ALL if whole else tuple(self.keys))
        object.__setattr__(self, "order_by", tuple(self.order_by))

    @property
    def reads_earlier_slices(self) -> bool:
        """Whether a slice depends on those before it."""
        return self.window is not None

    @property
    def drops_duplicates(self) -> bool:
        """Whether rows go that nothing counts but the commit: how many, recovery has to work out as well."""
        return True

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        from pyspark.sql import functions as F

        unknown = _no_key(self)
        keyed, side = frame, None
        if self.nulls == "set aside":
            keyed = frame.where(~unknown)
            keep = tuple(business_columns(frame.columns))
            side = SideRows(broken=unknown, reasons=F.array(F.lit(NO_KEY)), keep=keep)
        if ctx.streamed:  # the stream itself remembers the keys
            return Guarded(kept=keyed, side=side, drops_duplicates=True)
        known = None
        if self.window is not None and ctx.earlier is not None:
            known = ctx.earlier(parse_duration(self.window))
        if self.dropped == "count":
            kept = drop_repeats(keyed, keys=self.keys, order_by=self.order_by, keep=self.keep, known=known)
            return Guarded(kept=kept, side=side, drops_duplicates=True)
        marked = _marked(frame, self, known)
        repeat = F.col(_REPEAT)
        aside = SideRows(
            broken=repeat,
            reasons=F.array(F.lit("repeat")),
            keep=tuple(business_columns(frame.columns)),
            table="repeats",
        )
        kept = marked.where(~repeat if side is None else ~repeat & ~unknown).drop(_REPEAT)
        return Guarded(kept=kept, side=side, drops_duplicates=True, judged=marked, also=(aside,))

    def check_stream(self, event_time: str | None) -> None:
        if self.window is None:
            raise ConfigurationError(
                f'{NAME}: a stream needs window="10 minutes" or the like: without it every key would be remembered '
                "for ever.",
            )
        if (self.event_time or event_time) is None:
            raise ConfigurationError(
                f"{NAME}: a stream forgets keys by event time, and its input names none.",
                hint='Give the input an event_time, or the guard: WindowedDeduplicator(..., event_time="...").',
            )
        if self.order_by or self.keep != "first":
            raise ConfigurationError(
                f"{NAME}: a stream keeps the first that comes: a later one cannot take its place any more.",
                hint='Leave order_by and keep out, or write by Merger(keys=[...], sequence="...").',
            )
        if self.dropped == "keep":
            raise ConfigurationError(f"{NAME}: what a stream drops is counted, and cannot be kept. Leave dropped out.")

    def on_stream(self, frame: DataFrame, ctx: GuardContext) -> DataFrame:
        self.check_stream(ctx.event_time)
        event_time = self.event_time or ctx.event_time
        assert event_time is not None
        assert self.window is not None
        return drop_repeats_on_stream(
            frame,
            keys=self.keys,
            event_time=event_time,
            window=self.window,
            time_in_key=self.time_in_key,
            apart=ctx.apart,
        )


def drop_repeats(
    df: DataFrame,
    *,
    keys: Sequence[str] | Literal["all"],
    order_by: Sequence[str] = (),
    keep: Literal["first", "last"] = "first",
    known: DataFrame | None = None,
) -> DataFrame:
    """Keep one row per key, and none whose key ``known`` (rows loaded earlier, not those of this batch) has.

    With ``keys="all"`` one row is kept of those that are the same in every column, where a NULL is like another NULL.

    >>> visits = spark.createDataFrame([("v1", 2), ("v1", 1), (None, 1), (None, 1)], "visit string, page int")
    >>> sorted(drop_repeats(visits, keys=["visit"], order_by=["page"]).collect(), key=str)
    [Row(visit='v1', page=1), Row(visit=None, page=1), Row(visit=None, page=1)]
    """
    from pyspark.sql import functions as F

    rule = WindowedDeduplicator(keys=keys, order_by=order_by, keep=keep)
    columns = _check_columns(df, rule, known)
    if known is not None:
        seen, same = _seen(df, rule, known)
        df = df.join(seen, on=same, how="left_anti").select(*map(quoted, columns))
    ranked = df.withColumn(_RANK, _rank(df, columns, rule))
    return ranked.where((F.col(_RANK) == 1) | _no_key(rule)).drop(_RANK)


def split_repeats(
    df: DataFrame,
    *,
    keys: Sequence[str] | Literal["all"],
    order_by: Sequence[str] = (),
    keep: Literal["first", "last"] = "first",
    known: DataFrame | None = None,
) -> RepeatSplit:
    """Part the one row of each key that is kept from its repeats; each row is in one of the two.

    >>> visits = spark.createDataFrame([("v1", 2), ("v1", 1), ("v2", 1)], "visit string, page int")
    >>> split_repeats(visits, keys=["visit"], order_by=["page"]).repeats.collect()
    [Row(visit='v1', page=2)]
    """
    from pyspark.sql import functions as F

    marked = _marked(df, WindowedDeduplicator(keys=keys, order_by=order_by, keep=keep), known)
    repeat = F.col(_REPEAT)
    return RepeatSplit(marked.where(~repeat).drop(_REPEAT), marked.where(repeat).drop(_REPEAT))


def _marked(df: DataFrame, rule: WindowedDeduplicator, known: DataFrame | None) -> DataFrame:
    """The rows with whether each is a repeat, of another among them or of one that is known; never NULL."""
    from pyspark.sql import functions as F

    columns = _check_columns(df, rule, known)
    told = F.lit(False)
    if known is not None:
        seen, same = _seen(df, rule, known)
        told_once = seen.distinct().withColumn(_KNOWN, F.lit(True))
        df = df.join(told_once, on=same, how="left").select(*map(quoted, columns), _KNOWN)
        told = F.coalesce(F.col(_KNOWN), F.lit(False))
    ranked = df.withColumn(_RANK, _rank(df, columns, rule))
    again = ((F.col(_RANK) > 1) | told) & ~_no_key(rule)
    return ranked.withColumn(_REPEAT, again).select(*map(quoted, columns), _REPEAT)


def _key_columns(rule: WindowedDeduplicator, columns: Sequence[str]) -> list[str]:
    # System columns tell where a row came from: they never count.
    return business_columns(columns) if rule.keys == ALL else list(rule.keys)


def _no_key(rule: WindowedDeduplicator) -> Column:
    """Whether a row cannot be told from others; never NULL itself."""
    from pyspark.sql import functions as F

    return F.lit(False) if rule.keys == ALL else without_key(rule.keys)


def _seen(df: DataFrame, rule: WindowedDeduplicator, known: DataFrame) -> tuple[DataFrame, list[str] | Column]:
    """The keys that are known, and what to join them on."""
    from pyspark.sql import functions as F

    if rule.keys != ALL:  # a join on columns never matches NULL, so that rows without a key stay
        return known.select(*map(quoted, rule.keys)), list(rule.keys)
    names = _key_columns(rule, df.columns)
    here, there = (comparable_columns(frame, names, pattern=NAME) for frame in (df, known))
    seen = known.select(*[there[name].alias(f"{_KNOWN}_{place}") for place, name in enumerate(names)])
    alike = [here[name].eqNullSafe(F.col(f"{_KNOWN}_{place}")) for place, name in enumerate(names)]
    return seen, reduce(lambda one, other: one & other, alike)


def _check_columns(df: DataFrame, rule: WindowedDeduplicator, known: DataFrame | None) -> list[str]:
    columns = df.columns
    named = (*_key_columns(rule, columns), *(_parts(one, columns)[0] for one in rule.order_by))
    if missing := [name for name in named if name not in columns]:
        raise MissingColumnsError(pattern=NAME, missing=missing, present=columns)
    if known is not None:
        present = known.columns
        if missing := [name for name in _key_columns(rule, columns) if name not in present]:
            raise MissingColumnsError(pattern=f"{NAME} (known)", missing=missing, present=present)
    return columns


def _rank(df: DataFrame, columns: Sequence[str], rule: WindowedDeduplicator) -> Column:
    """The place of a row among those of its key; no two have the same, unless they are the same in every column."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    last = rule.keep == "last"
    order = []
    kinds = {field.name: field.dataType.simpleString() for field in df.schema} if rule.order_by else {}
    for name, descending in (_parts(one, columns) for one in rule.order_by):
        column = F.col(quoted(name))
        if kinds[name] in ("float", "double"):  # to Spark, what is no number is greater than any
            column = F.nanvl(column, F.lit(None))
        # A row of which the order is unknown stays only where there is no other.
        order.append(column.desc_nulls_last() if descending != last else column.asc_nulls_last())
    if ARRIVAL_COLUMN in columns:
        # In a pipeline the delivery that came first is the original, and a later one the repeat.
        order.append(F.col(ARRIVAL_COLUMN).desc() if last else F.col(ARRIVAL_COLUMN))
    if rule.keys == ALL:
        same = Window.partitionBy(*comparable_columns(df, business_columns(columns), pattern=NAME).values())
    else:
        # Rows without a key are spread by their content: together they would be one huge partition.
        same = Window.partitionBy(*map(quoted, rule.keys), F.when(_no_key(rule), _content(df)))
    # System columns tell where a row came from, which differs between two lakes with the same rows.
    ties = content_order(df, but=[*_key_columns(rule, columns), *system_columns(columns)])
    # Where the keys are all columns nothing is left to order by: the rows are the same, and any of them will do.
    return F.row_number().over(same.orderBy(*(order + ties or [F.lit(1)])))


def _parts(entry: str, columns: Sequence[str]) -> tuple[str, bool]:
    """A column of the order, and whether the greatest comes first."""
    name, _, word = entry.rpartition(" ")
    if entry in columns or word.lower() not in _WORDS:
        return entry, False
    return name.strip(), _WORDS[word.lower()]


def _content(df: DataFrame) -> Column:
    from pyspark.sql import functions as F

    names = set(business_columns(df.columns))
    fields = [field for field in df.schema if field.name in names]
    # A map has no hash, and its text does.
    columns = [(F.col(quoted(field.name)), field.dataType.simpleString()) for field in fields]
    return F.xxhash64(*[column.cast("string") if "map<" in kind else column for column, kind in columns])
