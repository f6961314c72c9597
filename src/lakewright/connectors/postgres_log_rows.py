"""Texts of a log as changes: the declared columns, those that tell of the change, and those that tell the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.connectors.postgres_log_values import is_lost, restored
from lakewright.model.columns import FILE_COLUMN, RAW_COLUMN, VERSION_COLUMN
from lakewright.model.sql import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["as_changes"]


def as_changes(texts: DataFrame, own: StructType, schema: StructType, *, dataset: str, table: str) -> DataFrame:
    """The rows that changed; lazy.

    ``own`` are the columns of the table, ``schema`` those and the change's. A row with a value that its declared type
    cannot take has its texts in ``_lw_raw`` and no ``_op``, as one of ``ChangeDataCapture``.
    """
    from lakewright.connectors.records import hash_column, refuse_system_columns

    refuse_system_columns(dataset, own)
    values = {f"v{place}": field for place, field in enumerate(own.fields)}
    lost = [sql for name, field in values.items() if (sql := is_lost(name, field)) is not None]
    judged = texts.selectExpr("*", f"NOT coalesce({' OR '.join(lost) or 'false'}, false) AS good")
    parts = ", ".join(f"{text_literal(field.name)}, {name}" for name, field in values.items())
    told = judged.selectExpr(
        *[f"{restored(name, field)} AS {quoted(field.name)}" for name, field in values.items()],
        "CASE WHEN good THEN op END AS _op",
        "lsn AS _lsn",
        "nullif(number, 0) AS _transaction",
        "timestamp_micros(at) AS _committed_at",
        "op = 'snapshot' AS _snapshot",
        "left_out AS _not_sent",
        f"CASE WHEN NOT good THEN to_json(named_struct('_op', op, '_lsn', lsn, {parts})) END AS {RAW_COLUMN}",
        f"{text_literal(table)} AS {FILE_COLUMN}",
        f"CAST(lsn AS STRING) AS {VERSION_COLUMN}",
    )
    return told.select("*", hash_column(schema))
