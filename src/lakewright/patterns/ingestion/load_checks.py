"""Judging a load before it replaces the one before it: one pass over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewright.errors import InputError
from lakewright.model.columns import FILE_COLUMN, RAW_COLUMN
from lakewright.model.loads import LoadLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["judge_rows"]


def judge_rows(
    frame: DataFrame, limits: LoadLimits, *, what: str, rows_before: int | None = None, keep_unreadable: bool = True
) -> None:
    """Runs one job that counts, and refuses the load by the first thing that is wrong with it."""
    judges_text = not keep_unreadable and {RAW_COLUMN, FILE_COLUMN} <= set(frame.columns)
    if not (judges_text or limits.asks_for_rows(rows_before)):
        return
    found = _counted(frame, limits, judges_text=judges_text)
    if judges_text and found["unreadable"]:
        _refuse_unreadable(what, found)
    broken = {name: found[f"broken_{position}"] for position, name in enumerate(limits.rules)}
    limits.refuse_bad(what=what, rows=found["rows"], rows_before=rows_before, broken=broken)


def _counted(frame: DataFrame, limits: LoadLimits, *, judges_text: bool) -> Any:
    from pyspark.sql import functions as F

    counted = [F.count(F.lit(1)).alias("rows")]
    if judges_text:
        unreadable = F.col(RAW_COLUMN).isNotNull()
        first = F.min(F.when(unreadable, F.struct(FILE_COLUMN, RAW_COLUMN)))
        counted += [F.count_if(unreadable).alias("unreadable"), first.alias("first")]
    for position, rule in enumerate(limits.rules.values()):
        broken = ~F.coalesce(F.expr(rule).cast("boolean"), F.lit(False))
        counted.append(F.count_if(broken).alias(f"broken_{position}"))
    return frame.agg(*counted).first()


def _refuse_unreadable(what: str, found: Any) -> None:
    file, raw = found["first"]
    text = raw if len(raw) <= 80 else f"{raw[:77]}..."
    many = "1 record" if found["unreadable"] == 1 else f"{found['unreadable']:,} records"
    raise InputError(
        f"{what}: {many} of {found['rows']:,} cannot be read, the first in {file}: {text!r}. "
        "The data was kept as it was.",
        hint='Deliver the file again, whole; or keep such records with their text: FullLoader(unreadable="keep").',
    )
