"""Which filter cannot be computed, and for which row: asked only after a job has failed.

Spark tells that something could not be cast or divided, not which row it was. The rows are halved by their hash until
one is left: about twice as many small jobs as the number of rows has binary digits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.model.columns import RECORD_COLUMNS, business_columns
from lakewright.model.sql import quoted
from lakewright.patterns.error_management.filter_conditions import first_broken

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Blame", "find_failing_row"]


@dataclass(frozen=True, slots=True)
class Blame:
    """The filter, and the row as ``column=value`` words."""

    filter: str
    row: str


def find_failing_row(df: DataFrame, conditions: Mapping[str, Column], *, private: Collection[str] = ()) -> Blame | None:
    """Runs jobs that find the first filter that fails, and a row on which it does; None where none fails now.

    Of ``private`` columns the values are not told.
    """
    names = list(conditions)
    failing = next((place for place in range(len(names)) if _fails(df, _upto(conditions, place))), None)
    if failing is None:
        return None
    judged = first_broken(_upto(conditions, failing))
    rows = _one_of(df, judged, rows=df.count())
    return Blame(filter=names[failing], row=_in_words(rows, private))


def _upto(conditions: Mapping[str, Column], place: int) -> dict[str, Column]:
    return dict(list(conditions.items())[: place + 1])


def _fails(df: DataFrame, conditions: Mapping[str, Column]) -> bool:
    return _raises(df, first_broken(conditions))


def _raises(df: DataFrame, judged: Column) -> bool:
    from pyspark.sql import functions as F

    try:
        df.agg(F.max(judged)).collect()
    except Exception:  # whatever it is: the caller has the first error, and asks only where it comes from
        return True
    return False


def _one_of(df: DataFrame, judged: Column, *, rows: int) -> DataFrame:
    from pyspark.sql import functions as F

    text = F.to_json(F.struct(*[F.col(quoted(name)) for name in df.columns]))
    place = F.xxhash64(text)
    # Twice as many digits as the number of rows has: then hardly two different rows agree in all of them.
    for bit in range(min(2 * rows.bit_length() + 4, 63)):
        half = df.where(F.shiftright(place, bit).bitwiseAND(F.lit(1)) == 0)
        df = half if _raises(half, judged) else df.where(F.shiftright(place, bit).bitwiseAND(F.lit(1)) == 1)
    return df


def _in_words(rows: DataFrame, private: Collection[str]) -> str:
    found = rows.limit(1).collect()
    if not found:
        return "a row that is gone"
    known = {name: value for name, value in found[0].asDict().items() if value is not None}
    told = business_columns(known)[:8] + [name for name in RECORD_COLUMNS if name in known]
    return ", ".join(f"{name}={'***' if name in private else repr(str(known[name])[:60])}" for name in told)
