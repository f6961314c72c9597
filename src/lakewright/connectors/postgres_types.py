"""Spark's types and PostgreSQL's: what a column becomes, what it fits into, and how a value is written for COPY.

| Spark | PostgreSQL |
| --- | --- |
| boolean; byte, short; int; long | boolean; smallint; integer; bigint |
| float; double; decimal(p, s) | real; double precision; numeric(p, s) |
| string; binary | text; bytea |
| date; timestamp; timestamp_ntz | date; timestamp with time zone; timestamp without time zone |
| array of one of these | an array of its type |
| struct, map, variant, array of arrays or structs | jsonb |

Anything else (intervals, void) is refused with the column's name.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from lakewright.errors import SchemaChangeError
from lakewright.patterns.data_value.json_text import JSON_OPTIONS

__all__ = ["NUL_WORDS", "copy_line", "fits", "postgres_type"]

NUL_WORDS = "a text holds the character NUL, which PostgreSQL cannot store"
_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    StringType: "text",
    CharType: "text",
    VarcharType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
}
_WIDER = {
    "smallint": ("integer", "bigint", "real", "double precision", "numeric"),
    "integer": ("bigint", "double precision", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "jsonb": ("json",),
    # The text is read by the column's own type; one that it cannot read is refused by the server, with the row.
    "text": ("character varying", "character", "uuid", "json", "jsonb", "citext", "inet", "cidr", "name"),
}


def postgres_type(dataset: str, field: StructField) -> str:
    """The type of the column that is made for a field."""
    found = _type(field.dataType)
    if found is None:
        raise SchemaChangeError(
            f"{dataset}: the column '{field.name}' is {field.dataType.simpleString()}, which PostgreSQL has no type "
            "for. Nothing was written.",
            hint=f'Cast it, such as F.col("{field.name}").cast("string"), or leave it out.',
        )
    return found


def _type(kind: DataType) -> str | None:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType):
        if isinstance(kind.elementType, (ArrayType, StructType, MapType, VariantType)):
            return "jsonb"
        inner = _type(kind.elementType)
        return None if inner is None else f"{inner}[]"
    if isinstance(kind, (StructType, MapType, VariantType)):
        return "jsonb"
    return _PLAIN.get(type(kind))


def fits(wanted: str, stored: str, *, is_enum: bool = False) -> bool:
    """Whether a column of type ``stored`` takes every value that would be made a ``wanted``.

    >>> fits("integer", "bigint"), fits("bigint", "integer"), fits("text", "character varying(20)")
    (True, False, True)
    """
    if wanted == stored or (is_enum and wanted == "text"):
        return True
    if wanted.endswith("[]") and stored.endswith("[]"):
        return fits(wanted[:-2], stored[:-2])
    base = re.sub(r"\([\d,]+\)", "", stored).strip()
    if wanted.startswith("numeric("):
        return base == "numeric" and (base == stored or _numeric_fits(wanted, stored))
    return base == wanted or base in _WIDER.get(wanted, ())


def _numeric_fits(wanted: str, stored: str) -> bool:
    (p, s), (q, r) = _digits(wanted), _digits(stored)
    return p - s <= q - r and s <= r


def _digits(text: str) -> tuple[int, int]:
    found = [int(number) for number in re.findall(r"\d+", text)]
    return found[0], found[1] if len(found) > 1 else 0


def copy_line(schema: StructType) -> Column:
    """A row as one line of COPY's text format, its end included; NULL, tabs, line ends and backslashes are told apart.

    Spark writes the text, so that a worker has nothing to do but to pass it on.
    """
    values = [_copied(F.col(f"`{field.name.replace('`', '``')}`"), field.dataType) for field in schema.fields]
    return F.concat(F.concat_ws("\t", *[F.coalesce(value, F.lit("\\N")) for value in values]), F.lit("\n"))


def _copied(value: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType) and _type(kind) != "jsonb":
        element = kind.elementType
        items = F.transform(value, lambda item: F.coalesce(_in_array(item, element), F.lit("NULL")))
        # array_join of NULL is NULL, so the whole stays NULL.
        return _escaped(F.concat(F.lit("{"), F.array_join(items, ","), F.lit("}")))
    text = _text(value, kind)
    return _escaped(text) if _may_hold_anything(kind) else text


def _in_array(item: Column, kind: DataType) -> Column:
    text = _text(item, kind)
    if not _may_hold_anything(kind):
        return F.concat(F.lit('"'), text, F.lit('"'))
    inner = F.replace(F.replace(text, F.lit("\\"), F.lit("\\\\")), F.lit('"'), F.lit('\\"'))
    return F.concat(F.lit('"'), inner, F.lit('"'))


def _may_hold_anything(kind: DataType) -> bool:
    return isinstance(
        kind, (StringType, BinaryType, StructType, MapType, VariantType, ArrayType, CharType, VarcharType)
    )


def _text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(value))
    if isinstance(kind, TimestampType):
        # With its offset, so that the session's time zone does not matter.
        return F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    if isinstance(kind, (StructType, MapType, ArrayType)):
        return F.to_json(value, JSON_OPTIONS)
    if isinstance(kind, VariantType):
        return F.to_json(value)
    return value.cast("string")


def _escaped(text: Column) -> Column:
    for character, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = F.replace(text, F.lit(character), F.lit(written))
    refused = F.raise_error(F.lit(NUL_WORDS)).cast("string")
    return F.when(F.contains(text, F.lit("\0")), refused).otherwise(text)
