"""Rows as records to deliver: laid out, numbered and sorted by Spark, then sent by its tasks.

Guarantee:
    All records of an entity are in one task, in the order of ``by``, then of ``then``, then of their content, so that
    two runs over the same rows send the same sequence. A row without an entity or a time is refused before any record
    is sent. An id depends on the row's content alone.
Consequences:
    - A task that Spark starts again sends its records again, with the same ids; a task that runs twice at once
      (``spark.speculation``) would mix both, and is refused.
    - Every task connects to the target, each worker of it once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, InputError, LakewrightError, MissingColumnsError, TargetError
from lakewright.model.columns import business_columns
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.json_text import JSON_OPTIONS
from lakewright.patterns.data_value.ordered_delivery import Patience
from lakewright.patterns.data_value.ordered_sinks import Delivered, Outgoing, Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["as_names", "check_names", "number_rows", "refuse_unordered", "send_rows", "sort_columns"]

_RECORD = ("key", "sequence", "id", "value", "output")
_MARK, _END = "lakewright-delivery-failed", "lakewright-delivery-end"
_FAILED = re.compile(rf"{_MARK} (\w+): (.*?) hint: (.*?) {_END}", re.DOTALL)


def as_names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """One column or several, as several."""
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def check_names(what: str, df: DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that the frame lacks."""
    columns = df.columns
    if missing := [name for name in dict.fromkeys(names) if name not in columns]:
        raise MissingColumnsError(pattern=what, missing=missing, present=business_columns(columns))


def refuse_unordered(df: DataFrame, *, per: Sequence[str], by: str | None, what: str) -> None:
    """Runs a job that stops at the first rows without an entity or a time, and refuses the frame."""
    names = [*per, *([] if by is None else [by])]
    lacking = " OR ".join(f"{quoted(name)} IS NULL" for name in names)
    if names and (found := df.where(lacking).select(*[quoted(name) for name in names]).limit(3).collect()):
        shown = ", ".join("(" + ", ".join(f"{n}={row[n]!r}" for n in names) + ")" for row in found)
        raise InputError(
            f"{what}: rows without an entity or a time have no place in any order: {shown}. Nothing was sent.",
            hint="Set such rows aside with a Dead-Letter rule.",
        )


def sort_columns(df: DataFrame, by: str | None, then: Sequence[str]) -> list[Column]:
    """What rows of an entity are sorted by; the last one is their content, so that no two runs differ."""
    from pyspark.sql import functions as F

    own = [F.col(quoted(name)) for name in business_columns(df.columns)]
    named = [F.col(quoted(name)) for name in (*([] if by is None else [by]), *then)]
    return [*named, F.to_json(F.struct(*own), JSON_OPTIONS)]


def number_rows(
    df: DataFrame, *, per: Sequence[str], by: str, then: Sequence[str], into: str, together: bool
) -> DataFrame:
    """Give each row its place among those of its entity, from 1 on; lazy.

    Spark moves rows so that an entity is in one partition, unless it knows that it is. ``together`` promises that it
    is, and nothing is moved.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = sort_columns(df, by, then)
    entity = [F.col(quoted(name)) for name in per]
    if not together:
        return df.withColumn(into, F.row_number().over(Window.partitionBy(*entity).orderBy(*order)).cast("bigint"))
    from pyspark.sql.types import LongType, StructField, StructType

    key = F.to_json(F.struct(*entity)).alias("_lw_entity")
    schema = StructType([*df.schema.fields, StructField(into, LongType())])
    laid_out = df.select("*", key).sortWithinPartitions("_lw_entity", *order)
    return laid_out.mapInArrow(_numbering(into), schema)


def _numbering(into: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def number(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        last, count = None, 0
        for batch in batches:
            numbers = []
            for entity in batch.column(batch.num_columns - 1).to_pylist():
                count = count + 1 if entity == last else 1
                last = entity
                numbers.append(count)
            kept = batch.columns[:-1]
            names = [*batch.schema.names[:-1], into]
            yield pa.RecordBatch.from_arrays([*kept, pa.array(numbers, pa.int64())], names=names)

    return number


def records_of(
    df: DataFrame,
    *,
    per: Sequence[str],
    sequence: str | None,
    value: str | None,
    record: Sequence[str],
    output: str | None,
) -> DataFrame:
    """The frame's rows as records, in its order; lazy.

    The value is a column as it is, or all columns as JSON; the id a hash of ``record``, or of entity and value.
    """
    from pyspark.sql import functions as F

    own = [F.col(quoted(name)) for name in business_columns(df.columns) if name != sequence]
    body = F.to_json(F.struct(*own), JSON_OPTIONS) if value is None else F.col(quoted(value))
    key = F.concat_ws("/", *_entity(per)) if per else F.lit("")
    told = [F.col(quoted(name)).cast("string") for name in record] or [key, body.cast("binary").cast("string")]
    return df.select(
        key.alias("key"),
        (F.lit(0) if sequence is None else F.col(quoted(sequence))).cast("bigint").alias("sequence"),
        F.substring(F.sha2(F.to_json(F.array(*told)), 256), 1, 32).alias("id"),
        F.coalesce(body.cast("binary"), F.lit(b"")).alias("value"),
        (F.lit("") if output is None else F.col(quoted(output)).cast("string")).alias("output"),
    )


def _entity(per: Sequence[str]) -> list[Column]:
    """The parts of an entity as text. Where there are several, what parts them is written otherwise within one: two
    entities never have the same key.
    """
    from pyspark.sql import functions as F

    parts = [F.col(quoted(name)).cast("string") for name in per]
    if len(parts) == 1:
        return parts
    return [F.replace(F.replace(one, F.lit("%"), F.lit("%25")), F.lit("/"), F.lit("%2F")) for one in parts]


Deliver = Callable[["Iterator[Outgoing]", Sink, Patience], Delivered]


def send_rows(
    records: DataFrame,
    sink: Sink,
    deliver: Deliver,
    patience: Patience,
    *,
    what: str,
    producer: Mapping[str, str] = MappingProxyType({}),
) -> Delivered:
    """Runs a job whose tasks deliver the records of their partitions; what fails in one comes out in words."""
    _refuse_speculation(records, what)
    sink, began = sink.prepared(producer), time.monotonic()
    try:
        told = records.mapInArrow(_sender(sink, deliver, patience), "records bigint, requests bigint, again bigint")
        done = told.collect()
    except Exception as error:
        found = _FAILED.search(str(error))
        if found is None:
            raise
        kind = InputError if found.group(1) == "InputError" else TargetError
        hint = found.group(3)
        raise kind(f"{what}: {found.group(2)}", hint=None if hint == "None" else hint) from None
    seconds = time.monotonic() - began
    return sum((Delivered(row["records"], row["requests"], row["again"]) for row in done), Delivered(seconds=seconds))


def _sender(sink: Sink, deliver: Deliver, patience: Patience) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def send(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            done = deliver(_outgoing(batches), sink, patience)
        except LakewrightError as error:
            # Only text survives the way to the driver.
            told = f"{_MARK} {type(error).__name__}: {error.message} hint: {error.hint} {_END}"
            raise RuntimeError(told) from None
        yield pa.RecordBatch.from_pydict(
            {"records": [done.records], "requests": [done.requests], "again": [done.tried_again]}
        )

    return send


def _outgoing(batches: Iterator[Any]) -> Iterator[Outgoing]:
    count = 0
    for batch in batches:
        columns = [batch.column(place).to_pylist() for place in range(len(_RECORD))]
        for key, sequence, identity, value, output in zip(*columns, strict=True):
            count += 1
            # Without an entity there is one order, that of the task's rows.
            yield Outgoing(key, sequence or count, identity, value, output)


def _refuse_speculation(df: DataFrame, what: str) -> None:
    if df.sparkSession.conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError(
            f"{what}: with spark.speculation a task may run twice at once, and no order would be left.",
            hint="Set spark.speculation to false for this job.",
        )
