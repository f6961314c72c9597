"""Side rows that are no dead letters: late rows, and repeats that are to be kept. Committed before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import TargetError
from lakewright.lake.side_tables import LATE_ROWS, REPEATS, aside_rows, write_side_rows
from lakewright.pipelines.inputs import InputFrame
from lakewright.pipelines.lateness import refuse_too_late
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["set_others_aside"]

_TABLES = {"late_rows": LATE_ROWS, "repeats": REPEATS}


def set_others_aside(current: Attempt, inputs: Sequence[InputFrame]) -> None:
    """Runs a job per table that has rows to be kept; then the limit of late rows decides."""
    for part, table in _TABLES.items():
        identity = current.identity().as_judge(part)
        rows: DataFrame | None = None
        for one in inputs:
            for judged, side in one.side:
                if side.table != part:
                    continue
                found = aside_rows(
                    judged.where(side.broken),
                    reasons=side.reasons,
                    identity=identity,
                    input_name=one.given.dataset,
                    keep=side.keep,
                    told=side.told,
                )
                rows = found if rows is None else rows.unionByName(found)
        if rows is None:
            continue
        beside = current.published_number()
        if write_side_rows(current.shop.lake, table, rows, identity, beside=beside) is None:
            raise TargetError(
                f"{current.dataset.name}, slice {current.slice.id}: a newer attempt is at work. Nothing was written."
            )
    refuse_too_late(current)
