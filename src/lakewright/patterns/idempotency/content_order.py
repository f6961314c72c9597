"""An order among rows that are alike in all that orders them: by what they hold, so that the same one always wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["content_order", "has_order"]

_WITHOUT_ORDER = ("map<", "variant")


def content_order(df: DataFrame, *, but: Sequence[str] = ()) -> list[Column]:
    """All columns of a frame, to come last in an ORDER BY. Nothing is computed for them, and Spark compares them only
    where everything before is equal; a hash is computed for every row, and does not tell NULL, 'a' from 'a', NULL.
    """
    from pyspark.sql import functions as F

    fields = [field for field in df.schema if field.name not in but]
    columns = [(F.col(quoted(field.name)), field.dataType) for field in fields]
    return [column if has_order(kind) else column.cast("string") for column, kind in columns]


def has_order(kind: DataType | str) -> bool:
    """Whether Spark can compare and sort values of this type (its object, or its name)."""
    told = kind if isinstance(kind, str) else kind.simpleString()
    return told != "interval" and not any(word in told for word in _WITHOUT_ORDER)
