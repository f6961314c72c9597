"""Of several matches of a row the newest: what makes a join of two streams one as of the row's own time.

Guarantee:
    One row comes out for each row that went in, told by its time and ``row_id``, when the watermark has passed its
    time: until then a newer match may come. Of matches of the same time the same one is kept, whatever the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.model.ddl import type_text
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.join_checks import hashable, kinds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["keep_newest_match", "untold_rows"]


def keep_newest_match(
    pairs: DataFrame, *, row_id: Sequence[str], at: str, newer: str, left: Sequence[str]
) -> DataFrame:
    """Keep the pair of each row whose match is the newest; a row without one has NULLs. Lazy, on streams too."""
    from pyspark.sql import functions as F

    kinds = kinds_of(pairs)
    columns = list(kinds)
    kept = [name for name in columns if name != at and name not in row_id]
    matches = [name for name in hashable(kinds) if name not in left]
    # A row without a match has no time to compare: it is older than any match.
    age = F.expr(
        f"struct(coalesce({quoted(newer)}, TIMESTAMP'0001-01-01 00:00:00') AS at, "
        f"xxhash64({', '.join(map(quoted, matches))}) AS content)"
    )
    values = F.struct(*[F.col(quoted(name)) for name in kept])
    grouped = pairs.groupBy(*map(quoted, (at, *row_id))).agg(F.max_by(values, age).alias("_lw_newest"))
    return grouped.selectExpr(
        *[quoted(name) if name == at or name in row_id else f"_lw_newest.{quoted(name)}" for name in columns]
    )


def untold_rows(left: DataFrame, pairs: DataFrame, told_by: Sequence[str]) -> DataFrame:
    """The rows of the left side without a time or an id: as of no time nothing is known, and nobody waits for them.

    Those without an id could not be told from each other, and all but one of a time would be lost.
    """
    there = left.columns
    return left.where(" OR ".join(f"{quoted(name)} IS NULL" for name in told_by)).selectExpr(
        *[
            quoted(field.name)
            if field.name in there
            else f"CAST(NULL AS {type_text(field.dataType)}) AS {quoted(field.name)}"
            for field in pairs.schema
        ]
    )
