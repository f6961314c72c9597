"""The same text, and so the same hash, for the same values: on every executor, in every session, in plain Python.

The text is JSON of the values in their order (not of their names), times in UTC to the microsecond, so that neither a
time zone, nor the seed of an interpreter, nor a renamed column changes a key; the hash is SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["KeyValue", "canonical_text", "hash_columns", "hash_values"]

KeyValue = str | int | bool | date | datetime | Decimal | bytes | bytearray

_JSON = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",  # else it is as the session says, and a NULL in a struct is as good as no field
}
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r",
}  # fmt: skip


def hash_columns(columns: Sequence[Column]) -> Column:
    """The hash of some columns of a row; NULL where one of them is."""
    from functools import reduce

    from pyspark.sql import functions as F

    named = F.struct(*[column.alias(str(place)) for place, column in enumerate(columns)])
    known = reduce(lambda one, other: one & other, [column.isNotNull() for column in columns])
    return F.when(known, F.sha2(F.to_json(named, _JSON), 256))


def hash_values(values: Sequence[KeyValue | None]) -> str | None:
    """The same hash of the same values, without Spark: for a producer that makes the key itself.

    >>> hash_values(["u1", 7])[:12]
    '0e806013fc42'
    >>> hash_values(["u1", None]) is None
    True
    """
    if any(value is None for value in values):
        return None
    return hashlib.sha256(canonical_text([value for value in values if value is not None]).encode()).hexdigest()


def canonical_text(values: Sequence[KeyValue]) -> str:
    r"""What is hashed.

    >>> canonical_text(["a\"b", 5, True, date(2026, 1, 5)])
    '{"0":"a\\"b","1":5,"2":true,"3":"2026-01-05"}'
    """
    return "{" + ",".join(f'"{place}":{_shown(value)}' for place, value in enumerate(values)) + "}"


def _shown(value: KeyValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return _shown_decimal(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f'"{value.isoformat(timespec="microseconds")}"'
        return f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    if isinstance(value, bytes | bytearray):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    raise ConfigurationError(
        f"Keyed Idempotency: a key cannot be made of {type(value).__name__}: {value!r}.",
        hint="Use text, whole numbers, decimals, booleans, dates, times or bytes.",
    )


def _shown_decimal(value: Decimal) -> str:
    """As Java's BigDecimal shows it, and so Spark: 0.00000001 is 1E-8. Of whole numbers Spark knows no power of ten."""
    if not value.is_finite():
        raise ConfigurationError(f"Keyed Idempotency: {value} is no number that a key can be made of.")
    _, _, exponent = value.as_tuple()
    plain = value.copy_abs() if value.is_zero() else value  # Java knows no negative zero
    return format(plain, "f") if isinstance(exponent, int) and exponent > 0 else str(plain)
