"""Types and schemas from DDL text, without a Spark session.

PySpark parses DDL in the JVM, so a project file could not be checked before Spark starts. This reads the
types that a table can hold into PySpark's own JSON form, from which a ``StructType`` is made in Python alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from lakewright.errors import ConfigurationError, did_you_mean
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["data_type", "schema_from_ddl", "type_text"]

TypeJson: TypeAlias = "str | dict[str, object]"

_WORDS = {
    "tinyint": "byte", "byte": "byte", "smallint": "short", "short": "short", "int": "integer",
    "integer": "integer", "bigint": "long", "long": "long", "float": "float", "real": "float",
    "double": "double", "boolean": "boolean", "string": "string", "binary": "binary", "date": "date",
    "timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz",
    "variant": "variant", "void": "void",
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.|'')*')|(\w+)|([<>(),:]))", re.ASCII)


def schema_from_ddl(ddl: str) -> StructType:
    """The schema that a list of columns describes.

    >>> schema_from_ddl("id INT NOT NULL, tags ARRAY<STRING>").simpleString()
    'struct<id:int,tags:array<string>>'
    """
    from pyspark.sql.types import StructType

    reader = _Reader(ddl)
    fields = reader.fields(end=None)
    return StructType.fromJson({"type": "struct", "fields": fields})


def data_type(ddl: str) -> DataType:
    """The type that a text such as ``DECIMAL(10, 2)`` or ``ARRAY<INT>`` describes.

    >>> data_type("Decimal(10, 2)").simpleString()
    'decimal(10,2)'
    """
    from pyspark.sql.types import StructType

    reader = _Reader(ddl)
    kind = reader.type()
    reader.expect_end()
    field: dict[str, object] = {"name": "it", "type": kind, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType


def type_text(kind: DataType) -> str:
    """A type as SQL takes it, whatever signs the names of its fields hold: ``simpleString`` quotes none of them.

    >>> type_text(data_type("struct<`user-id`: int, tags: array<string>>"))
    'struct<`user-id`:int,`tags`:array<string>>'
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{quoted(one.name)}:{type_text(one.dataType)}' for one in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)},{type_text(kind.valueType)}>"
    return kind.simpleString()


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                sign = text[at:].strip()[0]
                hint = "Names with other signs than a-z, 0-9 and _ are written in backquotes: `a b`."
                raise self._wrong(f"'{sign}' is not understood", hint=hint)
            self._tokens.append(match.group().strip())
            at = match.end()
        self._at = 0

    def fields(self, *, end: str | None) -> list[dict[str, object]]:
        """Columns up to the closing sign, or the end of the text."""
        found: list[dict[str, object]] = []
        while self._peek() != end:
            if found:
                self._expect(",")
            found.append(self._field())
        self._at += 1
        if not found:
            raise self._wrong("there is no column")
        names = [str(field["name"]) for field in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self._wrong(f"the column '{twice[0]}' is there twice")
        return found

    def type(self) -> TypeJson:
        """One type; nested ones hold others."""
        word = self._next("a type").lower()
        if word in _DECIMALS:
            return self._decimal()
        if word in _TEXTS:
            length = self._numbers()
            if len(length) != 1:
                raise self._wrong(f"{word} needs a length, such as {word}(10)")
            return f"{'varchar' if word == 'varchar' else 'char'}({length[0]})"
        if word in _NESTED:
            return self._nested(word)
        if word not in _WORDS:
            known = [*_WORDS, *_DECIMALS, *_TEXTS, *_NESTED]
            raise self._wrong(f"'{word}' is not a type", hint=did_you_mean(word, known))
        return _WORDS[word]

    def expect_end(self) -> None:
        """Refuse anything that follows."""
        if self._peek() is not None:
            raise self._wrong(f"'{self._peek()}' follows the type")

    def _field(self) -> dict[str, object]:
        name = self._next("a column's name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            raise self._wrong(f"'{name}' is not a column's name")
        if self._peek() == ":":
            self._at += 1
        field: dict[str, object] = {"name": name, "type": self.type(), "nullable": True, "metadata": {}}
        if (self._peek() or "").lower() == "not":
            self._at += 1
            if self._next("NULL").lower() != "null":
                raise self._wrong(f"NOT after '{name}' must be followed by NULL")
            field["nullable"] = False
        if (self._peek() or "").lower() == "comment":
            self._at += 1
            field["metadata"] = {"comment": _unquoted(self._next("a comment in quotes"))}
        return field

    def _nested(self, word: str) -> TypeJson:
        self._expect("<")
        if word == "struct":
            return {"type": "struct", "fields": self.fields(end=">")}
        first = self.type()
        if word == "array":
            self._expect(">")
            return {"type": "array", "elementType": first, "containsNull": True}
        self._expect(",")
        second = self.type()
        self._expect(">")
        return {"type": "map", "keyType": first, "valueType": second, "valueContainsNull": True}

    def _decimal(self) -> str:
        precision, scale = ([*self._numbers(), 0] if self._peek() == "(" else [10, 0])[:2]
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self._wrong(f"decimal({precision},{scale}) is too wide; at most 38 digits, the scale among them")
        return f"decimal({precision},{scale})"

    def _numbers(self) -> list[int]:
        self._expect("(")
        found: list[int] = []
        while self._peek() != ")":
            if found:
                self._expect(",")
            number = self._next("a number")
            if not number.isdecimal():
                raise self._wrong(f"'{number}' is not a number")
            found.append(int(number))
        self._at += 1
        return found

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, wanted: str) -> str:
        token = self._peek()
        if token is None:
            raise self._wrong(f"it ends where {wanted} should be")
        self._at += 1
        return token

    def _expect(self, sign: str) -> None:
        token = self._next(f"'{sign}'")
        if token != sign:
            raise self._wrong(f"'{token}' is where '{sign}' should be")

    def _wrong(self, problem: str, hint: str | None = None) -> ConfigurationError:
        return ConfigurationError(f"'{self._text.strip()}' is no valid DDL: {problem}.", hint=hint)


def _unquoted(text: str) -> str:
    if not text.startswith("'"):
        raise ConfigurationError(f"A comment is written in quotes, but got {text}.")
    return text[1:-1].replace("\\'", "'").replace("''", "'")
