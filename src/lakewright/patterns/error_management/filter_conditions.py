"""Named conditions of a filter: checked, and told apart by what they say of a row: true, false or unknown.

A row is kept if every condition is true. One that is not counts for the first condition that is *false*; only where
none is, for the first that is unknown (NULL). So a missing value counts for the rule that asks for it, wherever that
rule stands, and ``length(type) > 1`` is not blamed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from lakewright.errors import ConfigurationError, first_words
from lakewright.model.columns import business_columns
from lakewright.patterns.error_management.steady_rules import refuse_unsteady

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Condition", "check_conditions", "conditions_of", "first_broken", "removed_by"]

Condition: TypeAlias = "str | Column | Callable[[], Column]"
"""What a row has to fulfil: SQL text, a column, or (in a project file, where no session runs yet) a function that
returns one."""

_NAME = "Filter Interceptor"


def check_conditions(filters: Mapping[str, Condition]) -> None:
    """Refuse what cannot be counted by name."""
    if not isinstance(filters, Mapping) or not filters:
        raise ConfigurationError(f"{_NAME}: 'filters' is a mapping of names to at least one condition.")
    for name in filters:
        if not name or len(name) > 100 or any(c in name for c in "/\\'\"`\n"):
            raise ConfigurationError(f"{_NAME}: {name!r} is no name for a filter; use words and underscores.")
    refuse_unsteady(_NAME, filters)


def conditions_of(df: DataFrame, filters: Mapping[str, Condition]) -> dict[str, Column]:
    """The conditions as columns, each proven to be one of this frame; no job runs."""
    from pyspark.sql import functions as F

    conditions = {}
    for name, given in filters.items():
        condition = given() if callable(given) else given
        conditions[name] = F.expr(condition) if isinstance(condition, str) else condition
    try:
        kinds = {field.name: field.dataType.simpleString() for field in _judged(df, conditions).schema}
    except Exception as error:
        raise _blamed(df, conditions, error) from error
    if wrong := next((name for name, kind in kinds.items() if kind != "boolean"), None):
        raise ConfigurationError(f"{_NAME}: the filter '{wrong}' gives {kinds[wrong]}, not true or false.")
    return conditions


def _judged(df: DataFrame, conditions: Mapping[str, Column]) -> DataFrame:
    return df.select(*[condition.alias(name) for name, condition in conditions.items()])


def _blamed(df: DataFrame, conditions: Mapping[str, Column], error: Exception) -> ConfigurationError:
    """Which of the conditions does not fit the frame; all of them together were asked first, for speed."""
    for name, condition in conditions.items():
        try:
            _judged(df, {name: condition}).schema  # noqa: B018  asking for it is what fails
        except Exception as alone:
            return ConfigurationError(
                f"{_NAME}: the filter '{name}' does not fit: {first_words(alone)}",
                hint=f"The input has {', '.join(business_columns(df.columns))}.",
            )
    return ConfigurationError(f"{_NAME}: the filters do not fit: {error}")


def first_broken(conditions: Mapping[str, Column]) -> Column:
    """The place (from 0) of the condition for which a row is removed; NULL where it is kept.

    Asked in order, and none after the answer: a condition that would fail on a row is not asked if an earlier one has
    removed it.
    """
    from pyspark.sql import functions as F

    false = [F.when(~condition, F.lit(place)) for place, condition in enumerate(conditions.values())]
    unknown = [F.when(condition.isNull(), F.lit(place)) for place, condition in enumerate(conditions.values())]
    all_true = reduce(lambda one, other: one & other, conditions.values())
    # Most rows are kept: for them each condition is asked once.
    return F.when(all_true, F.lit(None)).otherwise(F.coalesce(*false, *unknown))


def removed_by(name: str, conditions: Mapping[str, Column]) -> Column:
    """Whether a row breaks a condition: it is false, or it is unknown and no other is false."""
    from pyspark.sql import functions as F

    no_other_false = reduce(
        lambda one, other: one & other, [F.coalesce(other, F.lit(True)) for other in conditions.values()]
    )
    return F.when(conditions[name].isNull(), no_other_false).otherwise(~conditions[name])
