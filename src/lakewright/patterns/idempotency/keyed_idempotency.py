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
    - A key is made of single values: of a struct name the fields (``user.id``), for a NULL within it would hide.
    - Choose columns that never change. An event time is not one of them: a late event becomes the first of its session,
      and the key changes. The time at which a record was appended (Kafka, an insertion column) is.
    - A store that does not replace by key needs help: PostgreSQL and Delta by ``Merger(keys=[...])``; in a topic
      duplicates stay, with equal keys: readers fold them (``keep_latest_per_key``), compaction does in its own time.
    - If the source loses its first records (retention, compaction), a build from scratch finds another first one, and
      the key changes. The data has changed: a repeat begins at bronze, and says so.
    - Times that a producer gave are no append times: ``KafkaTopic(..., producer_times="refuse")`` looks at the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import business_columns, taken_names
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.model.sql import quoted
from lakewright.patterns.idempotency.containers import container_name, write_container
from lakewright.patterns.idempotency.stable_hash import hash_columns, hash_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

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
        places = _places(frame, self.columns, self.into)
        key, lacks = _key(places, self.columns), _lacks(places, self.columns)
        # Where nothing else tells the record, all of it is kept.
        whole = [name for name in frame.columns if any(place.startswith(quoted(name)) for place in places.values())]
        keep = tuple(whole) if ctx.record_columns else tuple(business_columns(frame.columns))
        side = SideRows(
            broken=lacks,
            reasons=_missing_parts(places, self.columns),
            keep=keep,
            stop_above=self.stop_above,
            stop_above_rows=self.stop_above_rows,
        )
        return Guarded(kept=frame.withColumn(self.into, key).where(~lacks), side=side, added={self.into: key})


@dataclass(frozen=True, slots=True)
class KeySplit:
    """The rows that have a key, and those that can have none."""

    keyed: DataFrame
    rejected: DataFrame


def idempotent_key(*columns: str | Column) -> Column:
    """The key as an expression: a text of 64 hexadecimal digits; NULL where one of the columns is NULL.

    A text is the name of a column; of a field in a struct give ``F.col("user.id")``, not the struct.

    >>> visits = spark.createDataFrame([("u1", 7), ("u1", None)], "user string, visit int")
    >>> [row[0] and row[0][:12] for row in visits.select(idempotent_key("user", "visit")).collect()]
    ['0e806013fc42', None]
    """
    from pyspark.sql import functions as F

    if not columns:
        raise ConfigurationError("Keyed Idempotency: a key is made of at least one column.")
    return hash_columns([F.col(quoted(one)) if isinstance(one, str) else one for one in columns])


def add_idempotent_key(df: DataFrame, *, columns: Sequence[str], into: str = _KEY) -> DataFrame:
    """Add the key of each row; NULL where one of the columns is NULL. Lazy; refuses types whose text is not exact.

    A field in a struct is named with a dot: ``columns=["user.id"]``.
    """
    _check_names(columns, into)
    return df.withColumn(into, _key(_places(df, columns, into), columns))


def split_by_key(df: DataFrame, *, columns: Sequence[str], into: str = _KEY, reasons_column: str = "why") -> KeySplit:
    """Part the rows that have a key from those in which one of the columns is NULL; these tell which.

    >>> visits = spark.createDataFrame([("u1", 7), ("u1", None)], "user string, visit int")
    >>> split_by_key(visits, columns=["user", "visit"]).rejected.collect()
    [Row(user='u1', visit=None, why=['no key: visit is NULL'])]
    """
    _check_names(columns, into)
    places = _places(df, columns, into)
    _refuse_taken("reasons_column", reasons_column, df.schema)
    lacks = _lacks(places, columns)
    return KeySplit(
        df.withColumn(into, _key(places, columns)).where(~lacks),
        df.where(lacks).withColumn(reasons_column, _missing_parts(places, columns)),
    )


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
    places = _places(df, [*group, append_time, *then, *taken], into)
    in_order = [F.col(places[name]).asc_nulls_last() for name in (append_time, *then, *taken)]
    window = Window.partitionBy(*[F.col(places[name]) for name in group]).orderBy(*in_order)
    whole = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    firsts = [F.first(F.col(places[name])).over(whole) for name in taken]
    return df.withColumn(into, hash_columns([*[F.col(places[name]) for name in group], *firsts]))


def _check_names(columns: Sequence[str], into: str) -> None:
    if isinstance(columns, str) or not columns:
        raise ConfigurationError(
            "Keyed Idempotency: 'columns' is a list of at least one column, such as columns=[\"user_id\"]."
        )
    if not into or taken_names([into], columns):
        raise ConfigurationError(f"Keyed Idempotency: the key needs a column of its own in 'into', not {into!r}.")


def _places(df: DataFrame, columns: Sequence[str], into: str) -> dict[str, str]:
    """How SQL names each of the columns; refuses what is not there, and what has no text of its own."""
    schema = df.schema
    present = business_columns(schema.fieldNames())
    found = {name: _find(schema, name) for name in columns}
    if missing := [name for name, field in found.items() if field is None]:
        raise MissingColumnsError(pattern="Keyed Idempotency", missing=missing, present=present)
    _refuse_taken("into", into, schema)
    known = {name: field for name, field in found.items() if field is not None}
    for name, (_, kind) in known.items():
        _refuse_inexact(name, kind)
    return {name: place for name, (place, _) in known.items()}


def _refuse_taken(option: str, name: str, schema: StructType) -> None:
    if taken := taken_names([name], schema.fieldNames()):
        raise ConfigurationError(
            f"Keyed Idempotency: the input already has a column '{taken[0]}'. Choose another name in '{option}'."
        )


def _find(schema: StructType, name: str) -> tuple[str, DataType] | None:
    """A column of this name or, by a name with dots, a field within structs: how SQL names it, and its type."""
    from pyspark.sql.types import StructType

    if (whole := next((field for field in schema if field.name == name), None)) is not None:
        return quoted(name), whole.dataType
    for field in schema:
        if isinstance(field.dataType, StructType) and name.startswith(f"{field.name}."):
            inner = _find(field.dataType, name[len(field.name) + 1 :])
            if inner is not None:
                return f"{quoted(field.name)}.{inner[0]}", inner[1]
    return None


def _refuse_inexact(name: str, kind: DataType) -> None:
    from pyspark.sql.types import ArrayType, StructType

    shown = kind.simpleString()
    if isinstance(kind, StructType):
        fields = ", ".join(f"{name}.{field.name}" for field in kind)
        raise ConfigurationError(
            f"Keyed Idempotency: {name} is {shown}, in which a NULL would hide.",
            hint=f"Name what counts of it: {fields}.",
        )
    if isinstance(kind, ArrayType):
        raise ConfigurationError(
            f"Keyed Idempotency: {name} is {shown}, in which a NULL would hide.",
            hint=f"Make one value of it before, such as F.array_join('{name}', ','), or choose another column.",
        )
    if any(one in shown for one in _INEXACT):
        raise ConfigurationError(
            f"Keyed Idempotency: {name} is {shown}, of which the same value may be written in several ways.",
            hint=f"Cast it to what it means: F.col('{name}').cast('decimal(18, 2)'), or choose another column.",
        )


def _key(places: Mapping[str, str], columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    return hash_columns([F.col(places[name]) for name in columns])


def _lacks(places: Mapping[str, str], columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    return F.expr(" OR ".join(f"{places[name]} IS NULL" for name in columns))


def _missing_parts(places: Mapping[str, str], columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    told = [F.when(F.col(places[name]).isNull(), F.lit(f"no key: {name} is NULL")) for name in columns]
    return F.array_compact(F.array(*told))
