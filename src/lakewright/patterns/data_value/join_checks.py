"""What a join asks of both sides before Spark runs anything: the columns are there, and can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import taken_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["carried_columns", "check_keys", "comparable", "hashable", "kinds_of", "refuse_missing"]

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")


def kinds_of(df: DataFrame) -> dict[str, str]:
    """Column -> type, by one look at the schema."""
    return {field.name: field.dataType.simpleString() for field in df.schema}


def hashable(kinds: Mapping[str, str]) -> list[str]:
    """The columns that Spark can hash: all but maps and variants, and what holds one."""
    return [name for name, kind in kinds.items() if "map<" not in kind and "variant" not in kind]


def check_keys(keys: Sequence[str], what: str) -> tuple[str, ...]:
    """The keys as a tuple; refused where there are none, or one is given as plain text."""
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{what}: 'keys' is a list of at least one column, such as keys=[\"user_id\"].")
    return tuple(keys)


def refuse_missing(columns: Sequence[str], kinds: Mapping[str, str], what: str) -> None:
    """Refuse a side that lacks a column."""
    if missing := [name for name in columns if name not in kinds]:
        raise MissingColumnsError(pattern=what, missing=missing, present=list(kinds))


def comparable(left: tuple[str, str], right: tuple[str, str], what: str) -> None:
    """Refuse to compare what Spark would only compare by a cast, which takes '01' for 1 and 'x' for NULL."""
    (name, one), (other, two) = left, right
    if one == two or any(_of(kinds, one) and _of(kinds, two) for kinds in (_NUMBERS, _TIMES)):
        return
    raise ConfigurationError(
        f"{what}: {name} is {one} on the left side, and {other} of the reference is {two}: they cannot be compared.",
        hint="Has one side changed its schema? Cast one of them, so that equal values look alike.",
    )


def carried_columns(
    left: Mapping[str, str], right: Mapping[str, str], used: Sequence[str], columns: Sequence[str] | None, what: str
) -> list[str]:
    """The columns of the reference that come along: those named, or all that the join does not use itself."""
    if columns is not None:
        if isinstance(columns, str):
            raise ConfigurationError(f"{what}: 'columns' is a list, such as columns=[\"country\"].")
        refuse_missing(columns, right, f"{what} (reference)")
    carried = [name for name in (right if columns is None else columns) if name not in used]
    if clash := taken_names(left, carried):
        raise ConfigurationError(f"{what}: both sides have a column {clash[0]}. Rename or drop it on one side first.")
    return carried


def _of(kinds: Sequence[str], kind: str) -> bool:
    return kind.partition("(")[0] in kinds
