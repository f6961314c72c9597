"""Data Overwrite: replace the data of a run, so that a repeat leaves what one run would have left.

Problem:
    A daily job appends, and each repeat or backfill doubles the day.
Guarantee:
    After any number of runs the slice holds exactly the rows of the last one; rows outside the slice are
    untouched, and a row that would fall outside makes the write fail before anything is changed.
Consequences:
    - Only the slice is rewritten if the table is partitioned by what tells slices apart: see Horizontal
      Partitioner. Pipelines partition event-sliced tables by the event cell by themselves.
    - Replaced files stay on disk until VACUUM passes the retention (``remove_unused_files``): *overwritten* is
      not *erased*. Until then ``read_version`` reads what was there before.
    - Plain files have no log: ``overwrite_files`` writes aside and swaps (see ``file_swap``).
    - An empty input would replace good data by nothing: ``empty="fail"`` refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.overwrites import only_within, overwriting
from lakewright.model.protocols import WriteContext
from lakewright.model.receipts import Commit
from lakewright.patterns.idempotency.delta_paths import add_missing_columns, table_schema
from lakewright.patterns.idempotency.file_swap import current_files, overwrite_files
from lakewright.patterns.idempotency.misfits import refuse_misfit
from lakewright.patterns.idempotency.refusals import refuse_empty
from lakewright.patterns.idempotency.versions import read_version, remove_unused_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "DataOverwrite",
    "current_files",
    "overwrite_files",
    "overwrite_slice",
    "read_version",
    "refuse_empty",
    "remove_unused_files",
]

_VECTORS = "delta.enableDeletionVectors"
_NULL_USING = "a column that rows are replaced by is NULL"


@dataclass(frozen=True, slots=True)
class DataOverwrite:
    """The writer of the pipeline layer: replaces the slice in one commit."""

    empty: Literal["allow", "fail"] = "allow"

    def __post_init__(self) -> None:
        if self.empty not in ("allow", "fail"):
            raise ConfigurationError(f"Data Overwrite: empty is 'allow' or 'fail', not {self.empty!r}.")

    @property
    def streams(self) -> bool:
        return False

    @property
    def replaces_slice(self) -> bool:
        return True

    def publish(self, frame: DataFrame, ctx: WriteContext) -> Commit | None:
        if self.empty == "fail":
            refuse_empty(frame, what=f"{ctx.dataset}, slice {ctx.slice.id}")
        # The layer below gave each row the slice's own constant, after a look at the row's time.
        return ctx.table.replace(frame, where=ctx.slice.predicate(), partition_by=ctx.partition_by, within=True)


def overwrite_slice(
    df: DataFrame,
    path: str,
    *,
    where: str | None = None,
    using: Sequence[str] = (),
    empty: Literal["allow", "fail"] = "fail",
    partition_by: Sequence[str] = (),
    new_columns: Literal["refuse", "add"] = "refuse",
) -> None:
    """Runs a job that replaces, in one Delta commit, the rows of the table that fulfil ``where`` by the frame's.

    With ``using`` (instead) those whose values in these columns occur in the frame: for a feed that brings whole days
    and does not say beforehand which. They must not be NULL, and the table needs deletion vectors, which one that is
    made here has. Without both the whole table is replaced.

    A column that the frame has lost, or has with another type, is refused before anything is written; so is one that
    the table lacks, or it is added first (``new_columns``), as NULL in the rows that stay.

    >>> visits = spark.createDataFrame([("v1", "2026-01-05")], "visit string, day string")
    >>> overwrite_slice(visits, folder, where="day = '2026-01-05'")
    >>> overwrite_slice(visits, folder, where="day = '2026-01-05'")
    >>> spark.read.format("delta").load(folder).count()
    1
    """
    if where is not None and using:
        raise ConfigurationError("Data Overwrite: say 'where' or 'using', not both.")
    if new_columns not in ("refuse", "add"):
        raise ConfigurationError(f"Data Overwrite: new_columns is 'refuse' or 'add', not {new_columns!r}.")
    if empty == "fail":
        refuse_empty(df, what="Data Overwrite")
    told = _told_apart(df, using) if using else df
    there = _fitted(df, path, new_columns)
    try:
        if using:
            _replace_using(told, path, using, there=there, partition_by=partition_by)
            return
        rows = df if where is None or there else only_within(df, where)
        writer = overwriting(rows) if where is None else overwriting(rows).option("replaceWhere", where)
        (writer.partitionBy(*partition_by) if partition_by else writer).save(path)
    except Exception as error:
        explained = _explained(error, where, using)
        if explained is None:
            raise
        raise explained from error


def _fitted(df: DataFrame, path: str, new_columns: Literal["refuse", "add"]) -> bool:
    """Whether there is a table; if so, the rows fit it, with the columns that it has gained for them."""
    spark, schema = df.sparkSession, df.schema
    kept = table_schema(spark, path)
    if kept is None:
        return False
    refuse_misfit(schema, kept, spark, path, what="Data Overwrite", new_columns=new_columns)
    if new_columns == "add":
        add_missing_columns(spark, path, schema)
    return True


def _explained(error: Exception, where: str | None, using: Sequence[str]) -> InputError | None:
    if "DELTA_REPLACE_WHERE_MISMATCH" in str(error):
        return InputError(
            f"Data Overwrite: a row lies outside the slice that is being replaced ({where}). Nothing was written.",
            hint="Filter the rows to the slice, or widen the predicate.",
        )
    if _NULL_USING in str(error):
        return InputError(
            f"Data Overwrite: {', '.join(using)} is NULL in a row: such rows would be added by each repeat, for NULL "
            "equals nothing. Nothing was written.",
            hint="Give them a value, set them aside, or say which rows are replaced: where=...",
        )
    return None


def _told_apart(df: DataFrame, using: Sequence[str]) -> DataFrame:
    """The same rows, failing where a column that they are replaced by is NULL."""
    from pyspark.sql import functions as F

    schema = df.schema
    if isinstance(using, str) or (missing := [name for name in using if name not in schema.names]):
        missing = [using] if isinstance(using, str) else missing
        raise MissingColumnsError(pattern="Data Overwrite (using)", missing=missing, present=schema.names)
    refusal = F.raise_error(F.lit(_NULL_USING))
    return df.withColumns({name: F.coalesce(F.col(f"`{name}`"), refusal.cast(schema[name].dataType)) for name in using})


def _replace_using(df: DataFrame, path: str, using: Sequence[str], *, there: bool, partition_by: Sequence[str]) -> None:
    if not there:
        writer = overwriting(df).option(_VECTORS, "true")
        (writer.partitionBy(*partition_by) if partition_by else writer).save(path)
        return
    detail = df.sparkSession.sql(f"DESCRIBE DETAIL delta.`{path}`").select("properties").first()
    if detail is None or dict(detail[0] or {}).get(_VECTORS) != "true":
        # Delta 4.4 fails half-way on such a table: it looks for files to rewrite and finds none.
        raise ConfigurationError(
            f"Data Overwrite: 'using' needs a table with deletion vectors, and {path} has none. Nothing was written.",
            hint=f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{_VECTORS}' = 'true'); or say which rows: where=...",
        )
    df.write.format("delta").mode("overwrite").option("replaceUsing", ",".join(using)).save(path)
