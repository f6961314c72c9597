"""How Debezium writes a value into JSON, and how it is read back, by the type that the column is declared as.

| PostgreSQL | in the message | declare it as |
| --- | --- | --- |
| smallint, integer, bigint, real, double precision, boolean | a number, a truth value | the same |
| numeric | text | DECIMAL(p, s) or STRING |
| text, varchar, uuid, enum, json, jsonb, inet | text | STRING; JSON also VARIANT |
| timestamp with time zone | text in UTC | TIMESTAMP |
| timestamp | microseconds since 1970 | TIMESTAMP_NTZ, or TIMESTAMP as UTC |
| date | days since 1970 | DATE |
| time; interval | microseconds since midnight; text such as P1Y2M | BIGINT; STRING |
| bytea | base64 | BINARY |
| an array of these | an array | ARRAY of the same |

A value that the declared type cannot take is told, never cut or made NULL in silence.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakewright.errors import ConfigurationError
from lakewright.model.sql import text_literal

__all__ = ["converted", "is_placeholder", "misread", "wire_type"]

_AS_THEY_ARE = (BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, StringType)
_AS_TEXT = (DecimalType, BinaryType, DateType, TimestampType, TimestampNTZType, VariantType)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
# From the year 1 to 9999, which is what Spark's own texts and Python can hold: what lies beyond is "infinity".
_DAYS = "BETWEEN -719162 AND 2932896"
_MICROS = "BETWEEN -62135596800000000 AND 253402300799999999"
_MILLIS = "BETWEEN -62135596800000 AND 253402300799999"


def wire_type(field: StructField) -> DataType:
    """The type that the value of a column has in the JSON text."""
    found = _wire(field.dataType)
    if found is None:
        raise ConfigurationError(
            f"Change Data Capture: the column '{field.name}' is declared as {field.dataType.simpleString()}, which no "
            "change event holds.",
            hint="A JSON column is STRING or VARIANT; take it apart in a step of your own.",
        )
    return found


def _wire(kind: DataType) -> DataType | None:
    if isinstance(kind, _AS_THEY_ARE):
        return kind
    if isinstance(kind, _AS_TEXT):
        return StringType()
    if isinstance(kind, ArrayType) and not isinstance(kind.elementType, StructType):
        inner = _wire(kind.elementType)
        return None if inner is None else ArrayType(inner)
    return None


def converted(value: str, kind: DataType, *, millis: bool = False) -> str:
    """SQL for the value as it is declared; NULL also where it cannot be."""
    if isinstance(kind, ArrayType):
        if _wire(kind.elementType) == kind.elementType:
            return value
        return f"transform({value}, item -> {converted('item', kind.elementType, millis=millis)})"
    number = f"try_cast({value} AS BIGINT)"
    if isinstance(kind, DateType):
        day = f"date_add(DATE'1970-01-01', CAST({number} AS INT))"
        return f"CASE WHEN {number} {_DAYS} THEN {day} ELSE try_cast({value} AS DATE) END"
    if isinstance(kind, (TimestampType, TimestampNTZType)):
        has, factor = (f"{number} {_MILLIS}", " * 1000") if millis else (f"{number} {_MICROS}", "")
        moment = f"timestamp_micros({number}{factor})"
        if isinstance(
            kind, TimestampNTZType
        ):  # from the beginning of 1970: by way of a time zone it would depend on it
            seconds = f"CAST({number}{factor} AS DECIMAL(20, 0)) / 1000000"
            moment = (
                f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, CAST({seconds} AS DECIMAL(18, 6)))"
            )
        return f"CASE WHEN {has} THEN {moment} ELSE try_cast({value} AS {kind.simpleString()}) END"
    if isinstance(kind, DecimalType):
        exact = f"try_cast({value} AS {kind.simpleString()})"
        # A cast would round what has more digits than the declared type.
        return f"CASE WHEN {exact} = try_cast({value} AS DECIMAL(38, {_more_digits(kind)})) THEN {exact} END"
    if isinstance(kind, BinaryType):
        return f"try_to_binary({value}, 'base64')"
    if isinstance(kind, VariantType):
        return f"try_parse_json({value})"
    return value


def misread(value: str, kind: DataType, *, millis: bool = False) -> str | None:
    """SQL for whether a value is there and cannot be what it is declared as; None where it is read as it is."""
    made = converted(value, kind, millis=millis)
    if made == value:
        return None
    if isinstance(kind, ArrayType):
        lost = f"item IS NOT NULL AND ({converted('item', kind.elementType, millis=millis)}) IS NULL"
        return f"coalesce(exists({value}, item -> {lost}), false)"
    return f"({value} IS NOT NULL AND ({made}) IS NULL)"


def is_placeholder(value: str, kind: DataType, placeholder: str) -> str | None:
    """SQL for whether a value stands for one that was not sent; None where the type is never left out."""
    raw = placeholder.encode()
    if isinstance(kind, ArrayType):
        if isinstance(kind.elementType, _INTEGERS):
            inner = kind.elementType.simpleString()
            items = ", ".join(f"CAST({byte} AS {inner})" for byte in raw)
            return f"coalesce({value} = array({items}), false)"
        if not isinstance(_wire(kind.elementType), StringType):
            return None
        by_name = uuid.UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
        return (
            f"(coalesce(size({value}), 0) = 1 AND coalesce({_among(f'{value}[0]', placeholder, str(by_name))}, false))"
        )
    if isinstance(kind, BinaryType):
        return f"coalesce({_among(value, base64.b64encode(raw).decode())}, false)"
    if isinstance(_wire(kind), StringType):
        as_map = json.dumps({placeholder: placeholder}, separators=(",", ":"))  # hstore
        return f"coalesce({_among(value, placeholder, as_map)}, false)"
    return None


def _among(value: str, *texts: str) -> str:
    return f"{value} IN ({', '.join(text_literal(text) for text in texts)})"


def _more_digits(kind: DecimalType) -> int:
    """Room behind the point for digits that the declared type has none for."""
    return min(38 - (kind.precision - kind.scale), max(kind.scale, 18))
