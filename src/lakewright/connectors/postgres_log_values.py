"""Values of the log, which are PostgreSQL's texts: on the way to Spark, and back to the declared types there.

The texts are made as Debezium writes them (see `cdc_types`), so that a table gives the same rows by either way. What
the declared type cannot take is told, never cut or made NULL in silence.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from lakewright.model.sql import text_literal

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

__all__ = ["is_lost", "restored", "way_of", "worded"]

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def way_of(kind: DataType) -> str:
    """How texts of a column are made ready: a plain word, which travels to a worker without Spark's types."""
    from pyspark.sql.types import ArrayType, BinaryType, LongType, TimestampNTZType, TimestampType

    if isinstance(kind, ArrayType):
        return f"array of {way_of(kind.elementType)}"
    ways: dict[type[DataType], str] = {
        BinaryType: "binary",
        LongType: "whole",
        TimestampNTZType: "local",
        TimestampType: "moment",
    }
    return ways.get(type(kind), "text")


def worded(text: str | None, way: str) -> str | None:
    """A text of PostgreSQL (in UTC, ISO dates, bytes in hex) as it is handed to Spark.

    >>> worded("2026-01-05 10:00:00.5+00", "moment"), worded("10:00:00", "whole"), worded("{1,NULL}", "array of text")
    ('2026-01-05 10:00:00.5Z', '36000000000', '["1", null]')
    """
    if text is None or way == "text":
        return text
    if way == "moment":
        return f"{text.removesuffix('+00')}Z"
    if way == "local":
        return text.removesuffix("+00")
    if way == "whole":
        return _micros(text)
    if way == "binary":
        return base64.b64encode(bytes.fromhex(text[2:])).decode() if text.startswith("\\x") else text
    try:
        items, _ = _array(text, text.index("{"))
        return json.dumps(_each(items, way), ensure_ascii=False)
    except (ValueError, IndexError):
        return text  # no array: told as a value that the declared type cannot take


def restored(value: str, field: StructField) -> str:
    """SQL for a column as it is declared, from its text; NULL also where it cannot be."""
    return _restored(_parsed(value, field.dataType), field, field.dataType, 0)


def is_lost(value: str, field: StructField) -> str | None:
    """SQL for whether a text is there and cannot be what it is declared as; None where any can."""
    from pyspark.sql.types import ArrayType, StringType

    kind = field.dataType
    if isinstance(kind, StringType):
        return None
    if not isinstance(kind, ArrayType):
        return f"({value} IS NOT NULL AND ({restored(value, field)}) IS NULL)"
    parsed = _parsed(value, kind)
    item = f"item IS NOT NULL AND ({_restored('item', field, kind.elementType, 1)}) IS NULL"
    return f"({value} IS NOT NULL AND ({parsed} IS NULL OR exists({parsed}, item -> {item})))"


def _parsed(value: str, kind: DataType) -> str:
    return f"from_json({value}, {text_literal(_texts(kind))})" if _texts(kind) != "STRING" else value


def _texts(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType

    return f"ARRAY<{_texts(kind.elementType)}>" if isinstance(kind, ArrayType) else "STRING"


def _restored(value: str, field: StructField, kind: DataType, depth: int) -> str:
    from pyspark.sql.types import ArrayType, StringType, StructField

    from lakewright.connectors.cdc_types import converted, wire_type

    if isinstance(kind, ArrayType):
        item = f"item{depth}"
        return f"transform({value}, {item} -> {_restored(item, field, kind.elementType, depth + 1)})"
    if not isinstance(kind, StringType) and wire_type(StructField(field.name, kind)) == kind:
        return f"try_cast({value} AS {kind.simpleString()})"
    return converted(value, kind)


def _micros(text: str) -> str:
    """A time of day as microseconds since midnight; a number as it is."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    hours, minutes, seconds, rest = found.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return str(whole * 1_000_000 + int((rest or "").ljust(6, "0")))


def _each(items: list[Any], way: str) -> list[Any]:
    inner = way.removeprefix("array of ")
    return [_each(one, inner) if isinstance(one, list) else worded(one, inner) for one in items]


def _array(text: str, at: int) -> tuple[list[Any], int]:
    """The items of ``{1,NULL,"a, b",{2}}`` from its opening bracket on, and where it ends."""
    items: list[Any] = []
    at += 1
    if text[at] == "}":
        return items, at + 1
    while True:
        item: Any
        if text[at] == "{":
            item, at = _array(text, at)
        elif text[at] == '"':
            item, at = _quoted_item(text, at + 1)
        else:
            begun = at
            while text[at] not in ",}":
                at += 1
            item = None if text[begun:at].upper() == "NULL" else text[begun:at]
        items.append(item)
        at += 1
        if text[at - 1] == "}":
            return items, at


def _quoted_item(text: str, at: int) -> tuple[str, int]:
    found: list[str] = []
    while text[at] != '"':
        at += text[at] == "\\"
        found.append(text[at])
        at += 1
    return "".join(found), at + 1
