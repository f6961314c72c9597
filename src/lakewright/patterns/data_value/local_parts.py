"""The parts of measures, made partition by partition in Arrow, with the types that Spark's own aggregates have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.local_groups import Part, group_batches
from lakewright.patterns.data_value.measures import Measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["in_place_parts"]

_WHAT = "Local Aggregator"


def in_place_parts(
    df: DataFrame, *, by: Sequence[str], measures: Sequence[Measure], keep_parts: bool = False
) -> DataFrame:
    """The measures of each group of each partition; lazy. Rows are sorted within their partition and never moved."""
    prepared = df.selectExpr(*[quoted(name) for name in by], *_arguments(measures))
    types = {field.name: field.dataType for field in prepared.schema}
    _refuse_types(by, measures, types)
    parts = [part for place, one in enumerate(measures) for part in _parts(place, one)]
    read = prepared.selectExpr(*[_as_number(name, types[name], parts) for name in types])
    types |= {field.name: field.dataType for field in read.schema}
    placed = read.sortWithinPartitions(*[quoted(name) for name in by])
    made = placed.mapInArrow(group_batches(by, parts), _schema(by, parts, types))
    typed = made.selectExpr(*[quoted(name) for name in by], *[_as_spark_has_it(part, types) for part in parts])
    known = {field.name: field.dataType for field in typed.schema}
    extra = [quoted(name) for one in measures for name in one.parts if name != one.name]
    return typed.selectExpr(
        *[quoted(name) for name in by],
        *[f"{one.result(known)} AS {quoted(one.name)}" for one in measures],
        *(extra if keep_parts else ()),
    )


def _column(place: int) -> str:
    return f"_lw_value_{place}"


def _arguments(measures: Sequence[Measure]) -> list[str]:
    """What each measure is made of, computed by Spark: the Arrow side knows columns only."""
    found = []
    for place, one in enumerate(measures):
        if one.argument == "*":
            continue
        is_condition = one.text.lstrip().lower().startswith("count_if")
        value = f"if({one.argument}, 1, NULL)" if is_condition else one.argument
        found.append(f"{value} AS {_column(place)}")
    return found


def _parts(place: int, one: Measure) -> list[Part]:
    if one.argument == "*":
        return [Part(one.name, "rows")]
    if one.kind == "avg":
        total, count = one.parts
        return [Part(total, "sum", _column(place)), Part(count, "count", _column(place))]
    (name,) = one.parts
    assert one.kind in ("count", "sum", "min", "max", "distinct")
    return [Part(name, one.kind, _column(place))]


def _as_number(name: str, kind: DataType, parts: Sequence[Part]) -> str:
    """Text is added as Spark adds it: as a double."""
    summed = any(part.column == name and part.kind == "sum" for part in parts)
    if summed and kind.simpleString() == "string":
        return f"CAST({quoted(name)} AS DOUBLE) AS {quoted(name)}"
    return quoted(name)


def _refuse_types(by: Sequence[str], measures: Sequence[Measure], types: dict[str, DataType]) -> None:
    from pyspark.sql.types import AtomicType, NumericType, StringType, VariantType

    for name in by:
        if not isinstance(types[name], AtomicType) or isinstance(types[name], VariantType):
            raise ConfigurationError(f"{_WHAT}: {name} is {types[name].simpleString()}: nothing can be grouped by it.")
    for place, one in enumerate(measures):
        kind = types.get(_column(place))
        if kind is None or one.kind == "count":
            continue
        if one.kind in ("sum", "avg") and not isinstance(kind, NumericType | StringType):
            raise ConfigurationError(f"{_WHAT}: the measure {one.name}, {one.text}, adds {kind.simpleString()}.")
        if not isinstance(kind, AtomicType) or isinstance(kind, VariantType):
            raise ConfigurationError(
                f"{_WHAT}: the measure {one.name}, {one.text}, is made of {kind.simpleString()}, which cannot be "
                "compared here.",
                hint="Use aggregate_by_key.",
            )


def _schema(by: Sequence[str], parts: Sequence[Part], types: dict[str, DataType]) -> StructType:
    """What comes out of Arrow."""
    from pyspark.sql.types import ArrayType, DecimalType, DoubleType, FloatType, LongType, StructField, StructType

    def kind(part: Part) -> DataType:
        if part.kind in ("rows", "count"):
            return LongType()
        assert part.column is not None
        of = types[part.column]
        if part.kind == "distinct":
            return ArrayType(of)
        if part.kind != "sum":
            return of
        return DoubleType() if isinstance(of, FloatType | DoubleType) else DecimalType(38, getattr(of, "scale", 0))

    return StructType([StructField(name, types[name]) for name in by] + [StructField(p.name, kind(p)) for p in parts])


def _as_spark_has_it(part: Part, types: dict[str, DataType]) -> str:
    """A sum with the type that Spark's own has; one that does not fit fails there."""
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    name = quoted(part.name)
    if part.kind != "sum" or part.column is None or isinstance(types[part.column], DoubleType | FloatType):
        return name
    of = types[part.column]
    kind = f"decimal({min(38, of.precision + 10)}, {of.scale})" if isinstance(of, DecimalType) else "bigint"
    return f"CAST({name} AS {kind}) AS {name}"
