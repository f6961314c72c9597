"""Skew: how unevenly the rows lie over keys and tasks, measured by a narrow pass when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.salting import SALT_COLUMN, Salt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Skew", "find_hot_keys", "measure_skew"]


@dataclass(frozen=True, slots=True)
class Skew:
    """How rows would lie over tasks if they were brought together by key."""

    rows: int
    tasks: int
    largest_task_share: float
    largest_key: tuple[Any, ...] | None
    largest_key_share: float

    @property
    def times_the_mean(self) -> float:
        """How much larger the largest task is than a task on average: 1 is even."""
        return self.largest_task_share * self.tasks


def measure_skew(
    df: DataFrame, *, keys: Sequence[str], tasks: int, salt: Salt | None = None, sample: float | None = None
) -> Skew:
    """Runs a job that counts the rows of each key, and tells how they would lie over so many tasks.

    Keys go to tasks as in Spark's own exchange. With ``salt`` it tells how they would lie salted, with ``sample`` (a
    share of the rows, such as 0.01) it counts only some of the rows, the same in every call.

    >>> visits = spark.createDataFrame([("/",)] * 9 + [("/a",)], "page string")
    >>> found = measure_skew(visits, keys=["page"], tasks=4)
    >>> found.largest_key, found.largest_key_share, found.rows
    (('/',), 0.9, 10)
    """
    from pyspark.sql import functions as F

    _check(df, "measure_skew", [*keys, *(salt.by if salt else ())], sample)
    if not isinstance(tasks, int) or tasks < 1:
        raise ConfigurationError(f"measure_skew: tasks is a number from 1 on, not {tasks!r}.")
    seen = df if sample is None else df.sample(fraction=sample, seed=0)
    if salt is not None:
        seen = seen.withColumn(SALT_COLUMN, F.expr(salt.sql))
    groups = [quoted(name) for name in (*keys, SALT_COLUMN)[: None if salt else -1]]
    counted = seen.groupBy(*[F.col(name) for name in groups]).agg(F.count(F.lit(1)).alias("_lw_rows"))
    per_task = counted.groupBy(F.expr(f"pmod(hash({', '.join(groups)}), {tasks})").alias("_lw_task")).agg(
        F.sum("_lw_rows").alias("rows"),
        F.max("_lw_rows").alias("most"),
        F.expr(f"max_by(struct({', '.join(quoted(name) for name in keys)}), _lw_rows)").alias("key"),
    )
    found = per_task.collect()
    total = sum(row["rows"] for row in found)
    if not total:
        return Skew(0, tasks, 0.0, None, 0.0)
    largest = max(found, key=lambda row: int(row["most"]))
    return Skew(total, tasks, max(row["rows"] for row in found) / total, tuple(largest["key"]), largest["most"] / total)


def find_hot_keys(
    df: DataFrame, *, keys: Sequence[str], above: float = 0.05, sample: float | None = 0.01, limit: int = 100
) -> list[tuple[Any, ...]]:
    """Runs a job that counts the keys of a sample, and gives those that hold more than a share of its rows.

    The largest come first. NULL is never one of them: it is joined with nothing.

    >>> visits = spark.createDataFrame([("/",)] * 9 + [("/a",)], "page string")
    >>> find_hot_keys(visits, keys=["page"], above=0.5, sample=None)
    [('/',)]
    """
    from pyspark.sql import functions as F

    _check(df, "find_hot_keys", keys, sample)
    if not 0 < above < 1:
        raise ConfigurationError(f"find_hot_keys: above is a share of the rows between 0 and 1, not {above!r}.")
    seen = df if sample is None else df.sample(fraction=sample, seed=0)
    columns = [F.col(quoted(name)) for name in keys]
    # The total is one more group of the same pass.
    counted = seen.groupingSets([columns, []], *columns).agg(
        F.count(F.lit(1)).alias("_lw_rows"), F.grouping_id().alias("_lw_id")
    )
    first = counted.orderBy(F.desc("_lw_id"), F.desc("_lw_rows"), *columns).limit(limit + 1).collect()
    if not first:
        return []
    least = above * first[0]["_lw_rows"]
    hot = [tuple(row[: len(keys)]) for row in first[1:] if row["_lw_rows"] > least]
    return [key for key in hot if None not in key]


def _check(df: DataFrame, what: str, keys: Sequence[str], sample: float | None) -> None:
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{what}: 'keys' is a list of at least one column, such as keys=[\"page\"].")
    if missing := [name for name in keys if name not in (present := df.columns)]:
        raise MissingColumnsError(pattern=what, missing=missing, present=present)
    if sample is not None and not 0 < sample <= 1:
        raise ConfigurationError(f"{what}: sample is a share of the rows up to 1, such as 0.01, not {sample!r}.")
