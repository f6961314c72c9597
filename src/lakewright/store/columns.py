"""The column types of the store: moments as integer microseconds of UTC, plain JSON values as text.

Both read the same in SQLite and PostgreSQL, sort as numbers, and need no time zone settings anywhere. Text is
compared by its characters in both, whatever the language of the PostgreSQL database.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from lakewright.masking import mask

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

__all__ = ["JsonText", "Moment", "Told", "Words"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """An aware datetime, stored as microseconds since 1970 in UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """To microseconds."""
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """From microseconds."""
        # Whole microseconds, never a float: a float of this size loses the last digits.
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class Words(TypeDecorator[str]):
    """Text that sorts by its characters; PostgreSQL would sort by the rules of a language, and knows no NUL."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """With the collation of plain characters."""
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """As it is, but for what PostgreSQL cannot keep."""
        return value.replace("\0", "\ufffd") if value and dialect.name == "postgresql" else value


class Told(Words):
    """Words for people, such as an error's: the values of secrets are masked before they are kept.

    Names and paths are ``Words``: they are compared with what is declared, and stay as they are.
    """

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Masked, and without what no database takes: halves of characters, as in file names that are no UTF-8."""
        told = None if value is None else mask(value).encode(errors="replace").decode()
        return super().process_bind_param(told, dialect)


class JsonText(TypeDecorator[Any]):
    """Plain JSON values as compact text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """To text."""
        return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """From text."""
        return None if value is None else json.loads(value)
