"""Horizontal Partitioner: put whole rows that share a value in one physically separate place.

Problem:
    As a dataset grows, filtering out everything but the last days dominates each run.
Guarantee:
    A reader that filters by the partition columns reads only the files of those values. Rows whose value is
    NULL (or empty text, which Delta would turn into NULL) are refused or sent to a declared default, and more
    values than ``limit`` are refused before the write.
Consequences:
    - Many distinct values give many small files: partition by hour or day, never by an identifier (see Bucket).
    - Changing the columns means rewriting the table.
    - Partitioned by event time, one run may write several partitions: late rows go where they belong. A
      partition that is replaced holds only what the last write brought, so late rows alone are *added*.
    - One partition with most of a stream's rows holds the others up: give it a quota (``SkewBuffer``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError, LimitExceeded, MissingColumnsError
from lakewright.patterns.storage.partitions import Partition, list_partitions
from lakewright.patterns.storage.skew_buffer import QuotaSplit, SkewBuffer, split_by_quota

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "HorizontalPartitioner",
    "Partition",
    "QuotaSplit",
    "SkewBuffer",
    "explain_null_partition",
    "list_partitions",
    "partition_rows",
    "refuse_too_many_partitions",
    "split_by_quota",
    "write_partitioned",
]

_NULL_WORDS = "the partition column"


@dataclass(frozen=True, slots=True)
class HorizontalPartitioner:
    """The layout option of a dataset.

    ``derive`` lets the declaration own the rule (``{"event_date": "to_date(event_time)"}``), so that steps
    need not supply the column; ``default`` replaces a NULL value; ``limit`` bounds the number of values that
    one write may have (checking it costs a pass over the partition columns).
    """

    by: Sequence[str]
    derive: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.by, str) or not self.by:
            raise ConfigurationError("Horizontal Partitioner: 'by' is a list of at least one column.")
        if self.limit is not None and self.limit < 1:
            raise ConfigurationError(f"Horizontal Partitioner: limit is at least 1, not {self.limit}.")
        if self.default == "":
            raise ConfigurationError("Horizontal Partitioner: Delta reads an empty default as NULL; give it a word.")
        if strangers := [name for name in self.derive if name not in self.by]:
            raise ConfigurationError(
                f"Horizontal Partitioner: 'derive' names {strangers[0]}, which is not in 'by' ({', '.join(self.by)})."
            )
        object.__setattr__(self, "by", tuple(self.by))


def write_partitioned(
    df: DataFrame,
    path: str,
    *,
    layout: HorizontalPartitioner,
    run_value: Mapping[str, str] | None = None,
    mode: Literal["replace", "add"] = "replace",
    batch: tuple[str, int] | None = None,
) -> None:
    """Runs a job that writes the rows to their partitions of a Delta table, in one commit.

    Without ``run_value`` the rows themselves tell their partition (a column, or the layout's ``derive``); with it
    (``{"load_date": "2026-01-05"}``) every row goes to that one. ``mode="replace"`` replaces the partitions that
    the frame has rows for and no other; ``mode="add"`` adds to them, once per ``batch`` (name, rising number).

    >>> visits = spark.createDataFrame([("v1", "2026-01-05 23:10:00")], "visit string, at string")
    >>> layout = HorizontalPartitioner(by=["day"], derive={"day": "substr(at, 1, 10)"})
    >>> write_partitioned(visits, folder, layout=layout)
    >>> [(found.values, found.rows) for found in list_partitions(spark, folder)]
    [({'day': '2026-01-05'}, 1)]
    """
    from pyspark.sql import functions as F

    if mode not in ("replace", "add"):
        raise ConfigurationError(f"Horizontal Partitioner: mode is 'replace' or 'add', not {mode!r}.")
    if (mode == "add") != (batch is not None):
        raise ConfigurationError(
            'Horizontal Partitioner: mode="add" needs batch=(name, number), so that a repeat adds nothing; '
            'mode="replace" takes none.'
        )
    if strangers := [name for name in run_value or {} if name not in layout.by]:
        raise ConfigurationError(f"Horizontal Partitioner: run_value names {strangers[0]}, which is not in 'by'.")
    frame = df.withColumns({name: F.lit(value) for name, value in run_value.items()}) if run_value else df
    frame = partition_rows(frame, layout=layout)
    writer = frame.write.format("delta").partitionBy(*layout.by)
    if batch is not None:
        writer = writer.mode("append").option("txnAppId", batch[0]).option("txnVersion", batch[1])
    elif run_value and set(run_value) == set(layout.by):
        # The predicate replaces the partition also where this time no row is left for it.
        where = " AND ".join(f"`{name}` = '{value}'" for name, value in run_value.items())
        writer = writer.mode("overwrite").option("replaceWhere", where)
    else:
        # Spark's default, "static", would wipe every other partition.
        writer = writer.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    try:
        refuse_too_many_partitions(frame, layout=layout, what="Horizontal Partitioner")
        writer.save(path)
    except Exception as error:
        explained = explain_null_partition(error)
        if explained is None:
            raise
        raise explained from error


def partition_rows(df: DataFrame, *, layout: HorizontalPartitioner, what: str = "Horizontal Partitioner") -> DataFrame:
    """Add the derived partition columns and settle NULL values: the default, or a failure when it is written."""
    from pyspark.sql import functions as F

    columns = set(df.columns)
    new = {name: F.expr(rule) for name, rule in layout.derive.items() if name not in columns}
    if missing := [name for name in layout.by if name not in columns and name not in new]:
        raise MissingColumnsError(pattern=f"{what} (partition)", missing=missing, present=df.columns)
    if new:
        df = df.withColumns(new)
    schema = df.schema
    return df.withColumns({name: _settled(name, schema[name].dataType, layout, what) for name in layout.by})


def _settled(name: str, kind: DataType, layout: HorizontalPartitioner, what: str) -> Column:
    from pyspark.sql import functions as F

    value = F.col(f"`{name}`")
    if kind.simpleString() == "string":
        value = F.nullif(value, F.lit(""))
    if layout.default is not None:
        return F.coalesce(value, F.lit(layout.default).cast(kind))
    refusal = F.raise_error(
        F.lit(f"{what}: {_NULL_WORDS} {name} is NULL in a row; give it a value, or a default in the layout.")
    )
    return F.coalesce(value, refusal.cast(kind))


def refuse_too_many_partitions(df: DataFrame, *, layout: HorizontalPartitioner, what: str) -> None:
    """Runs a job over the partition columns, only if the layout has a limit; refuses more values than that."""
    from pyspark.sql import functions as F

    if layout.limit is None:
        return
    counts = df.agg(*[F.count_distinct(f"`{name}`").alias(name) for name in layout.by]).first()
    assert counts is not None
    for name in layout.by:
        if counts[name] > layout.limit:
            raise LimitExceeded(
                f"{what}: the partition column {name} has {counts[name]:,} distinct values, more than the limit of "
                f"{layout.limit:,}. Nothing was written. Round it (hour, day), raise the limit, or use Bucket for "
                "identifiers.",
                dataset=what,
                slice_id="",
                rows=counts[name],
            )


def explain_null_partition(error: BaseException) -> InputError | None:
    """The kind error for a NULL partition value that stopped a write, or None."""
    text = str(error)
    if _NULL_WORDS not in text or "is NULL in a row" not in text:
        return None
    start = text.index(_NULL_WORDS)
    end = text.index("in the layout", start) + len("in the layout")
    return InputError(f"Horizontal Partitioner: {text[start:end]}. Nothing was written.")
