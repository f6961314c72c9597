"""Keyed Idempotency: give the same thing the same key at every attempt, so that a store writes it once.

Problem:
    A job turns visits into sessions and writes them to a store. Its retries write them again, under new keys, and
    nobody can tell which rows are the same session.
Guarantee:
    A key depends on the values of the chosen columns alone: not on the attempt, the executor, the time zone, the seed
    of an interpreter or the names of the columns. A row in which one of them is NULL gets no key: it is set aside (in a
    pipeline in the dead letters), never hashed. The key of a group is made of what was *appended* first; rows that are
    appended later, late events too, never change it.
Consequences:
    - Choose columns that never change. An event time is not one of them: a late event becomes the first of its session,
      and the key changes. The time at which a record was appended (Kafka, an insertion column) is.
    - A store that does not replace by key needs help: PostgreSQL and Delta by ``Merger(keys=[...])``; in a topic
      duplicates stay, with equal keys: readers fold them (``keep_latest_per_key``), compaction does in its own time.
    - If the source loses its first records (retention, compaction), a build from scratch finds another first one, and
      the key changes. The data has changed: a repeat begins at bronze, and says so.
    - Times that a producer gave are no append times: ``KafkaTopic(..., producer_times="refuse")`` looks at the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import business_columns
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.patterns.idempotency.containers import container_name, write_container
from lakewright.patterns.idempotency.stable_hash import hash_columns, hash_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "KeySplit",
    "KeyedIdempotency",
    "add_idempotent_key",
    "container_name",
    "hash_values",
    "idempotent_key",
    "key_by_first_append",
    "split_by_key",
    "write_container",
]

_INEXACT = ("float", "double", "map", "variant", "interval", "void")
_KEY = "idempotent_key"


@dataclass(frozen=True, slots=True)
class KeyedIdempotency:
    """The guard of the pipeline layer: the step sees the input with one column more, the key.

    Rows without a key, since one of ``columns`` is NULL, go to the dead letters. ``stop_above`` is the share of such
    rows (0 to 1), ``stop_above_rows`` their number, above which the step stops and publishes nothing.
    """

    columns: Sequence[str]
    into: str = _KEY
    stop_above: float | None = None
    stop_above_rows: int | None = None

    def __post_init__(self) -> None:
        _check_names(self.columns, self.into)
        if self.stop_above is not None and not 0 <= self.stop_above <= 1:
            raise ConfigurationError(f"Keyed Idempotency: stop_above is a share from 0 to 1, not {self.stop_above}.")
        if self.stop_above_rows is not None and self.stop_above_rows < 0:
            raise ConfigurationError(f"Keyed Idempotency: stop_above_rows is 0 or more, not {self.stop_above_rows}.")
        object.__setattr__(self, "columns", tuple(self.columns))

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        split = split_by_key(frame, columns=self.columns, into=self.into)
        # Where nothing else tells the record, all of it is kept.
        keep = tuple(self.columns) if ctx.record_columns else tuple(business_columns(frame.columns))
        side = SideRows(
            broken=_lacks(self.columns),
            reasons=_missing_parts(self.columns),
            keep=keep,
            stop_above=self.stop_above,
            stop_above_rows=self.stop_above_rows,
        )
        return Guarded(kept=split.keyed, side=side, added={self.into: idempotent_key(*self.columns)})


@dataclass(frozen=True, slots=True)
class KeySplit:
    """The rows that have a key, and those that can have none."""

    keyed: DataFrame
    rejected: DataFrame


def idempotent_key(*columns: str | Column) -> Column:
    """The key as an expression: a text of 64 hexadecimal digits; NULL where one of the columns is NULL.

    >>> visits = spark.createDataFrame([("u1", 7), ("u1", None)], "user string, visit int")
    >>> [row[0] and row[0][:12] for row in visits.select(idempotent_key("user", "visit")).collect()]
    ['0e806013fc42', None]
    """
    from pyspark.sql import functions as F

    if not columns:
        raise ConfigurationError("Keyed Idempotency: a key is made of at least one column.")
    return hash_columns([F.col(f"`{one}`") if isinstance(one, str) else one for one in columns])


def add_idempotent_key(df: DataFrame, *, columns: Sequence[str], into: str = _KEY) -> DataFrame:
    """Add the key of each row; NULL where one of the columns is NULL. Lazy; refuses types whose text is not exact."""
    _check_names(columns, into)
    _check_frame(df, columns, into)
    return df.withColumn(into, idempotent_key(*columns))


def split_by_key(df: DataFrame, *, columns: Sequence[str], into: str = _KEY, reasons_column: str = "why") -> KeySplit:
    """Part the rows that have a key from those in which one of the columns is NULL; these tell which.

    >>> visits = spark.createDataFrame([("u1", 7), ("u1", None)], "user string, visit int")
    >>> split_by_key(visits, columns=["user", "visit"]).rejected.collect()
    [Row(user='u1', visit=None, why=['no key: visit is NULL'])]
    """
    keyed = add_idempotent_key(df, columns=columns, into=into)
    lacks = _lacks(columns)
    return KeySplit(keyed.where(~lacks), df.where(lacks).withColumn(reasons_column, _missing_parts(columns)))


def key_by_first_append(
    df: DataFrame,
    *,
    group: Sequence[str],
    append_time: str,
    then: Sequence[str] = (),
    first: Sequence[str] = (),
    into: str = _KEY,
) -> DataFrame:
    """Add the key of each row's group: of ``group`` and of what the row says that was appended first.

    The first row is the first by ``append_time``, then by ``then`` (such as the time of the visit); of it the columns
    ``first`` (by default its append time) are part of the key. Rows that are appended later leave the key as it is.

    >>> visits = spark.createDataFrame([("u1", 1, 10), ("u1", 2, 5)], "user string, appended int, visited int")
    >>> keyed = key_by_first_append(visits, group=["user"], append_time="appended")
    >>> keyed.select("idempotent_key").distinct().count()
    1
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    taken = list(first) or [append_time]
    _check_names([*group, append_time], into)
    _check_frame(df, [*group, append_time, *then, *taken], into)
    in_order = [F.col(f"`{name}`").asc_nulls_last() for name in (append_time, *then, *taken)]
    window = Window.partitionBy(*[F.col(f"`{name}`") for name in group]).orderBy(*in_order)
    whole = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    firsts = [F.first(F.col(f"`{name}`")).over(whole) for name in taken]
    return df.withColumn(into, hash_columns([*[F.col(f"`{name}`") for name in group], *firsts]))


def _check_names(columns: Sequence[str], into: str) -> None:
    if isinstance(columns, str) or not columns:
        raise ConfigurationError(
            "Keyed Idempotency: 'columns' is a list of at least one column, such as columns=[\"user_id\"]."
        )
    if not into or into in columns:
        raise ConfigurationError(f"Keyed Idempotency: the key needs a column of its own in 'into', not {into!r}.")


def _check_frame(df: DataFrame, columns: Sequence[str], into: str) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in df.schema}
    if missing := [name for name in dict.fromkeys(columns) if name not in kinds]:
        raise MissingColumnsError(pattern="Keyed Idempotency", missing=missing, present=business_columns(list(kinds)))
    if into in kinds:
        raise ConfigurationError(
            f"Keyed Idempotency: the input already has a column '{into}'. Choose another name in 'into'."
        )
    for name in columns:
        if any(kind in kinds[name] for kind in _INEXACT):
            raise ConfigurationError(
                f"Keyed Idempotency: {name} is {kinds[name]}, of which the same value may be written in several ways.",
                hint=f"Cast it to what it means: F.col('{name}').cast('decimal(18, 2)'), or choose another column.",
            )


def _lacks(columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    return F.expr(" OR ".join(f"`{name}` IS NULL" for name in columns))


def _missing_parts(columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    told = [F.when(F.col(f"`{name}`").isNull(), F.lit(f"no key: {name} is NULL")) for name in columns]
    return F.array_compact(F.array(*told))
