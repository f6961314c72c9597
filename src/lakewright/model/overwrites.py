"""A Delta write that replaces all rows, or those of its ``replaceWhere``: whatever the session says, and also where it
makes the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

__all__ = ["only_within", "overwriting"]


def overwriting(frame: DataFrame) -> DataFrameWriter:
    """The frame's writer, which overwrites a Delta table.

    Many clusters set ``spark.sql.sources.partitionOverwriteMode=dynamic``: a full overwrite would then keep every
    partition that the frame has no row of, and one that changes the schema would fail.
    """
    return frame.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")


def only_within(frame: DataFrame, where: str) -> DataFrame:
    """The same rows, failing where one lies outside: Delta checks a predicate only once the table is there."""
    from pyspark.sql import functions as F

    # Told by a column: as a filter Spark would push it below joins, and ask rows that are no part of the frame.
    first, *others = frame.schema
    outside = F.raise_error(F.lit("DELTA_REPLACE_WHERE_MISMATCH")).cast(first.dataType)
    checked = F.when(F.coalesce(F.expr(where), F.lit(False)), F.col(quoted(first.name))).otherwise(outside)
    kept = [F.col(quoted(field.name)) for field in others]
    return frame.select(checked.alias(first.name, metadata=first.metadata), *kept)
