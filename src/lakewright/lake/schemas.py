"""Fitting a frame to its table: a gained column is added first, a lost or retyped one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import SchemaChangeError
from lakewright.lake.tables import AttemptTable
from lakewright.model.columns import CONTEXT_COLUMN, CONTEXT_ID_COLUMN
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fit_to_table", "refuse_misfit"]


def fit_to_table(
    frame: DataFrame, table: AttemptTable, *, dataset: str, added_by_writer: Sequence[str] = ()
) -> DataFrame:
    """The frame in the table's column order; adds gained columns in a schema commit, before the data."""
    if not table.exists():
        return frame
    new, old = refuse_misfit(frame, table, dataset=dataset, added_by_writer=added_by_writer)
    if gained := [field for field in frame.schema if field.name not in old]:
        table.add_columns(gained)
    ordered = [*(name for name in old if name in new), *(field.name for field in gained)]
    return frame if ordered == list(new) else frame.select(*map(quoted, ordered))


def refuse_misfit(
    frame: DataFrame, table: AttemptTable, *, dataset: str, added_by_writer: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Refuse a frame that has lost or retyped a column; returns the columns of both, with their types."""
    new = {field.name: field.dataType.simpleString() for field in frame.schema}
    old = {field.name: field.dataType.simpleString() for field in table.schema()}
    spare = (*added_by_writer, CONTEXT_COLUMN, CONTEXT_ID_COLUMN)  # facts of the run may be told no longer
    if lost := [name for name in old if name not in new and name not in spare]:
        raise SchemaChangeError(
            f"{dataset}: the column {', '.join(lost)} is in the table and no longer in the rows. Nothing was written.",
            hint=f'Keep it as NULL (F.lit(None).cast("{old[lost[0]]}")), or give the new shape a new name.',
        )
    if retyped := [name for name in old if name in new and new[name] != old[name]]:
        name = retyped[0]
        raise SchemaChangeError(
            f"{dataset}: the column {name} is {old[name]} in the table and {new[name]} in the rows. "
            "Nothing was written.",
            hint=f'Cast it: F.col("{name}").cast("{old[name]}"), or give the new shape a new name.',
        )
    return new, old
