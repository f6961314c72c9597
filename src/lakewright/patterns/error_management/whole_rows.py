"""Rows as a whole: what tells whether two of them are the same in every column.

Guarantee:
    A NULL is the same as another NULL, as in DISTINCT. A map is the same as another one with the same entries, in
    whatever order they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted
from lakewright.patterns.idempotency.content_order import has_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["ALL", "comparable", "comparable_columns"]

ALL: Final[Literal["all"]] = "all"
"""Instead of a list of keys: all columns but the system's own."""


def comparable_columns(df: DataFrame, names: Sequence[str], *, pattern: str) -> dict[str, Column]:
    """Name -> the column as Spark can compare it; refused where it cannot. Lazy."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType for field in df.schema}
    found = {}
    for name in names:
        compared = comparable(F.col(quoted(name)), kinds[name])
        if compared is None:
            raise ConfigurationError(
                f"{pattern}: keys='{ALL}' compares every column, and Spark cannot compare '{name}': it is "
                f"{kinds[name].simpleString()}.",
                hint="Name the columns that tell whether two rows are the same: keys=[...].",
            )
        found[name] = compared
    return found


def comparable(column: Column, kind: DataType) -> Column | None:
    """A column as Spark can compare it; None where it cannot."""
    from pyspark.sql import functions as F

    told = kind.simpleString()
    if has_order(kind):
        return column
    if told.startswith("map<") and has_order(told.removeprefix("map<")):
        return F.sort_array(F.map_entries(column))
    return None
