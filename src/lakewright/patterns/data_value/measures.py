"""Measures: SQL aggregates of which one knows whether, and how, they can be put together from parts.

Guarantee:
    A measure made of parts is the measure of all rows: a count is a sum of counts, an average is the sum of the sums
    by the sum of the counts (never the mean of averages), a distinct count is the size of the united sets, or comes
    from united sketches where ``approx_count_distinct`` was asked for. What is none of these cannot be put together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Kind", "Measure", "parse_measures"]

Kind = Literal["count", "sum", "min", "max", "avg", "distinct", "sketch", "other"]
_KINDS: dict[str, Kind] = {
    "count": "count",
    "count_if": "count",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "avg": "avg",
    "mean": "avg",
    "approx_count_distinct": "sketch",
}
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_DISTINCT = re.compile(r"\s*distinct\b\s*(.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: its column, its SQL, and what it is made of."""

    name: str
    text: str
    kind: Kind
    argument: str = ""

    @property
    def is_decomposable(self) -> bool:
        return self.kind != "other"

    @property
    def direct(self) -> str:
        """SQL over the rows."""
        if self.kind == "sketch":
            return f"hll_sketch_estimate({self.parts[f'{self.name}_sketch']})"
        return self.text

    @property
    def parts(self) -> dict[str, str]:
        """The columns that a part is kept in, and the SQL of each over the rows."""
        if self.kind == "avg":
            return {f"{self.name}_sum": f"sum({self.argument})", f"{self.name}_count": f"count({self.argument})"}
        if self.kind == "distinct":
            return {f"{self.name}_set": f"collect_set({self.argument})"}
        if self.kind == "sketch":
            # By its text, since sketches take only some types, and equal values have equal texts.
            return {f"{self.name}_sketch": f"hll_sketch_agg(CAST({self.argument} AS STRING))"}
        return {self.name: self.text}

    def united(self, types: Mapping[str, DataType]) -> dict[str, str]:
        """SQL over the columns of parts that gives the same columns for all of them together."""
        found = {}
        for column in self.parts:
            name = quoted(column)
            if self.kind == "distinct":
                found[column] = f"array_distinct(flatten(collect_list({name})))"
            elif self.kind == "sketch":
                found[column] = f"hll_union_agg({name})"
            elif self.kind in ("min", "max"):
                found[column] = f"{self.kind}({name})"
            elif self.kind == "count" or (self.kind == "avg" and column != f"{self.name}_sum"):
                found[column] = f"coalesce(sum({name}), 0)"
            else:
                # A sum of decimals has ten more digits than they have; the sum of sums is of the sums' own type.
                found[column] = f"CAST(sum({name}) AS {types[column].simpleString()})"
        return found

    def result(self, types: Mapping[str, DataType]) -> str:
        """SQL over the united columns that gives the measure."""
        if self.kind == "distinct":
            return f"CAST(size({quoted(f'{self.name}_set')}) AS BIGINT)"
        if self.kind == "sketch":
            return f"hll_sketch_estimate({quoted(f'{self.name}_sketch')})"
        if self.kind != "avg":
            return quoted(self.name)
        total, count = f"{self.name}_sum", f"{self.name}_count"
        divided = f"try_divide({quoted(total)}, {quoted(count)})"
        return f"CAST({divided} AS {_type_of_average(types[total])})"


def parse_measures(measures: Mapping[str, str], *, pattern: str) -> tuple[Measure, ...]:
    """The measures that a mapping of column and SQL aggregate names.

    >>> [(one.kind, one.argument) for one in parse_measures({"n": "count(*)", "u": "count(DISTINCT user)"}, pattern="")]
    [('count', '*'), ('distinct', 'user')]
    """
    if not isinstance(measures, Mapping) or not measures:
        raise ConfigurationError(
            f'{pattern}: \'measures\' names at least one column and its aggregate: measures={{"visits": "count(*)"}}.'
        )
    found = []
    for name, text in measures.items():
        if not isinstance(name, str) or not name or not isinstance(text, str) or not text.strip():
            raise ConfigurationError(
                f'{pattern}: a measure is a column and an SQL aggregate as text, such as "visits": "count(*)", not '
                f"{name!r}: {text!r}."
            )
        found.append(_parse(name, text))
    return tuple(found)


def _parse(name: str, text: str) -> Measure:
    called = _CALL.fullmatch(text)
    if called is None or not _is_one_argument(called[2]):
        return Measure(name, text, "other")
    function, argument = called[1].lower(), called[2].strip()
    if (distinct := _DISTINCT.fullmatch(argument)) is not None:
        if function == "count":
            return Measure(name, text, "distinct", distinct[1].strip())
        # Of a value that comes twice, the smallest and the largest are the same.
        return Measure(name, text, _KINDS[function] if function in ("min", "max") else "other", distinct[1].strip())
    return Measure(name, text, _KINDS.get(function, "other"), argument)


def _is_one_argument(text: str) -> bool:
    """Whether the parentheses around a text belong to each other, and no comma parts it."""
    depth, quote = 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"`":
            quote = sign
        elif sign in "([":
            depth += 1
        elif sign in ")]":
            depth -= 1
            if depth < 0:
                return False
        elif sign == "," and depth == 0:
            return False
    return depth == 0 and not quote and bool(text.strip())


def _type_of_average(total: DataType) -> str:
    """The type of Spark's own average, told by that of the sum: of decimals it has four more digits than they have."""
    from pyspark.sql.types import DecimalType, NumericType

    if not isinstance(total, DecimalType):
        return "double" if isinstance(total, NumericType) else total.simpleString()
    digits = 38 if total.precision == 38 else total.precision - 6
    return f"decimal({digits}, {min(total.scale + 4, digits)})"
