"""Rows that do not fit the Delta table that they are written to, refused before the write.

Delta itself sets a column that the rows lack to NULL without a word, and refuses others in words for its developers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lakewright.errors import SchemaChangeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["refuse_misfit"]

_WHOLE = ("tinyint", "smallint", "int")
"""A shorter one is stored as a longer one; all others are taken as they are, or not at all."""
_FILLS_COLUMNS = {"generatedColumns", "identityColumns"}


def refuse_misfit(
    new: StructType,
    old: StructType,
    spark: SparkSession,
    path: str,
    *,
    what: str,
    new_columns: Literal["refuse", "add"],
) -> None:
    """Refuse rows that have lost or retyped a column of their table, or gained one that is not to be added.

    A name in other letters is the same column, and a NULL without a type fits every column, as it is for Delta.
    """
    rows, kept = _by_name(new), _by_name(old)
    lost = [one for name, one in kept.items() if name not in rows and not _has_default(one)]
    if lost and not _fills_columns(spark, path):
        raise SchemaChangeError(
            f"{what}: the column {', '.join(one.name for one in lost)} is in the table and no longer in the rows. "
            "Nothing was written.",
            hint=f'Keep it as NULL (F.lit(None).cast("{lost[0].dataType.simpleString()}")), or give the new shape a '
            "new path.",
        )
    for name, one in rows.items():
        if name in kept and not _fits(one.dataType, kept[name].dataType):
            kind = kept[name].dataType.simpleString()
            raise SchemaChangeError(
                f"{what}: the column {one.name} is {kind} in the table and {one.dataType.simpleString()} in the rows. "
                "Nothing was written.",
                hint=f'Cast it: F.col("{one.name}").cast("{kind}"), or give the new shape a new path.',
            )
    gained = [one.name for name, one in rows.items() if name not in kept]
    if gained and new_columns == "refuse":
        raise SchemaChangeError(
            f"{what}: the rows have a column {', '.join(gained)} that the table lacks. Nothing was written.",
            hint='Drop it from the rows, or let it be added: new_columns="add" of overwrite_slice, or ALTER TABLE ... '
            "ADD COLUMNS.",
        )


def _by_name(schema: StructType) -> dict[str, StructField]:
    return {field.name.lower(): field for field in schema}


def _fits(new: DataType, old: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(new, StructType) and isinstance(old, StructType):
        rows, kept = _by_name(new), _by_name(old)
        return rows.keys() == kept.keys() and all(_fits(rows[name].dataType, kept[name].dataType) for name in rows)
    if isinstance(new, ArrayType) and isinstance(old, ArrayType):
        return _fits(new.elementType, old.elementType)
    if isinstance(new, MapType) and isinstance(old, MapType):
        return _fits(new.keyType, old.keyType) and _fits(new.valueType, old.valueType)
    one, other = new.simpleString(), old.simpleString()
    if one in _WHOLE and other in _WHOLE:
        return _WHOLE.index(one) <= _WHOLE.index(other)
    return one in (other, "void")


def _has_default(field: StructField) -> bool:
    return "CURRENT_DEFAULT" in field.metadata


def _fills_columns(spark: SparkSession, path: str) -> bool:
    """Whether Delta computes columns of the table that the rows need not have; which ones a reader is not told."""
    found = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").select("tableFeatures").first()
    return found is not None and not _FILLS_COLUMNS.isdisjoint(found[0] or ())
