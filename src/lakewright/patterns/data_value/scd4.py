"""History of a row in two tables (slowly changing dimension, type 4): what is, and what was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.model.sql import quoted
from lakewright.patterns.data_value.join_checks import check_keys, comparable, kinds_of, refuse_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["versions_of_scd4"]


def versions_of_scd4(
    current: DataFrame,
    history: DataFrame,
    *,
    keys: Sequence[str],
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    current_in_history: bool = False,
) -> DataFrame:
    """Every version of both tables in the form that `join_as_of` takes, the columns of ``history``; lazy.

    The rows of ``current`` tell since when they hold, and have no end. With ``current_in_history`` the history may hold
    them too: a version that both tables have is taken from ``current``.

    >>> now = spark.sql("SELECT 1 AS user, 'PL' AS country, 4 AS valid_from")
    >>> before = spark.sql("SELECT 1 AS user, 'FR' AS country, 1 AS valid_from, 4 AS valid_to")
    >>> versions_of_scd4(now, before, keys=["user"]).collect()
    [Row(user=1, country='FR', valid_from=1, valid_to=4), Row(user=1, country='PL', valid_from=4, valid_to=None)]
    """
    what = "versions_of_scd4"
    keys = check_keys(keys, what)
    now, then = kinds_of(current), kinds_of(history)
    refuse_missing([*keys, valid_from, valid_to], then, f"{what} (history)")
    refuse_missing([name for name in then if name != valid_to], now, f"{what} (current)")
    for key in keys:
        comparable((key, now[key]), (key, then[key]), what)
    columns = {name: quoted(name) for name in then}
    columns[valid_to] = f"CAST(NULL AS {then[valid_to]}) AS {quoted(valid_to)}"
    if current_in_history:
        # What current tells again is left out by key and beginning: a history that is a moment behind lacks it.
        same = [*keys, valid_from]
        history = history.join(current.select(*map(quoted, same)), on=same, how="left_anti").select(*map(quoted, then))
    return history.unionByName(current.selectExpr(*columns.values()))
