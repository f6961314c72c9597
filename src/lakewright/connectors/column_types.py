"""Whether columns that were found can be read as the declared ones."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakewright.errors import SchemaChangeError, did_you_mean

__all__ = ["refuse_changed_columns"]

_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, DoubleType),
    ShortType: (IntegerType, LongType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
    BinaryType: (StringType,),
    # INT96, in which Spark writes timestamps by default, does not tell whether it means UTC.
    TimestampNTZType: (TimestampType,),
    TimestampType: (TimestampNTZType,),
}


def refuse_changed_columns(
    dataset: str,
    schema: StructType,
    place: str,
    found: Mapping[str, DataType | None],
    *,
    missing_is_null: bool | None = None,
) -> None:
    """Refuse data that lost a declared column, or holds it in a type that cannot be read as declared.

    ``missing_is_null`` is what the source's option says of a lost one; None where it has no such option.
    """
    for field in schema.fields:
        if field.name not in found:
            if missing_is_null:
                continue
            hint = did_you_mean(field.name, set(found) - set(schema.names))
            cure = "Correct the data or the schema."
            if missing_is_null is not None:
                cure = "Correct the data or the schema, or set missing='null' to read the column as NULL."
            raise SchemaChangeError(
                f"{dataset}: {place} has no column '{field.name}'. It has {', '.join(found)}. Nothing was read.",
                hint=f"{hint} {cure}" if hint else cure,
            )
        kind = found[field.name]
        if kind is not None and not _reads_as(kind, field.dataType):
            raise SchemaChangeError(
                f"{dataset}: the column '{field.name}' of {place} is {kind.simpleString()}, but is declared "
                f"as {field.dataType.simpleString()}. Nothing was read.",
                hint="Deliver it with the declared type, or declare a column of the new type.",
            )


def _reads_as(found: DataType, declared: DataType) -> bool:
    if isinstance(found, StructType) and isinstance(declared, StructType):
        inner = {field.name: field.dataType for field in found.fields}
        return all(f.name in inner and _reads_as(inner[f.name], f.dataType) for f in declared.fields)
    if isinstance(found, ArrayType) and isinstance(declared, ArrayType):
        return _reads_as(found.elementType, declared.elementType)
    if isinstance(found, MapType) and isinstance(declared, MapType):
        return _reads_as(found.keyType, declared.keyType) and _reads_as(found.valueType, declared.valueType)
    if isinstance(found, DecimalType) and isinstance(declared, DecimalType):
        whole = found.precision - found.scale <= declared.precision - declared.scale
        return whole and found.scale <= declared.scale
    return type(found) is type(declared) or type(declared) in _WIDER.get(type(found), ())
