"""Salting: part what a dominating key holds into several groups, by a hash of the row's own columns.

Guarantee:
    The salt of a row is the same in every attempt, on every machine: a task that is repeated gives the same rows, which
    a random salt would not. Joined with a salt, the rows are those of the plain join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import taken_names
from lakewright.model.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["SALT_COLUMN", "Salt", "SkewedHow", "join_skewed"]

SALT_COLUMN = "_lw_salt"
SkewedHow = Literal["inner", "left", "left_semi", "left_anti"]
_HOWS = ("inner", "left", "left_semi", "left_anti")
_WHAT = "join_skewed"
_MOST_HOT = 1_000


@dataclass(frozen=True, slots=True)
class Salt:
    """Into how many groups a key is parted, and by which columns: such as differ among the rows of one key."""

    by: Sequence[str]
    buckets: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.by, str) or not self.by or not all(isinstance(name, str) and name for name in self.by):
            raise ConfigurationError(
                f"Salt: 'by' is a list of columns that differ among the rows of one key, not {self.by!r}.",
                hint='Take the identity of a row: Salt(by=["visit_id"]). A random salt changes with every attempt.',
            )
        if not isinstance(self.buckets, int) or isinstance(self.buckets, bool) or not 2 <= self.buckets <= 10_000:
            raise ConfigurationError(f"Salt: buckets is a number from 2 to 10,000, not {self.buckets!r}.")
        object.__setattr__(self, "by", tuple(self.by))

    @property
    def sql(self) -> str:
        """The salt of a row: a whole number from 0 up to and without ``buckets``."""
        columns = ", ".join(quoted(name) for name in self.by)
        return f"CAST(pmod(xxhash64({columns}), {self.buckets}) AS INT)"


def join_skewed(
    left: DataFrame,
    right: DataFrame,
    *,
    keys: Sequence[str],
    hot: Sequence[Any],
    salt: Salt | None = None,
    how: SkewedHow = "inner",
) -> DataFrame:
    """Join two frames of which a few keys hold most rows of the left side; lazy.

    ``hot`` are values of the key, or tuples where there are several columns; ``find_hot_keys`` finds them. Their rows
    on the right side are copied to every task, so that those of the left side need not move at all: it is read twice,
    once for the hot keys. With ``salt``, for many rows on the right side too, it is read once: the hot rows are parted
    by the salt, and their counterparts repeated once per bucket. All other keys are joined as ever, and without a hot
    key it is the plain join.

    >>> visits = spark.createDataFrame([("/", 1), ("/", 2), ("/a", 3)], "page string, visit int")
    >>> pages = spark.createDataFrame([("/", "home"), ("/a", "about")], "page string, title string")
    >>> joined = join_skewed(visits, pages, keys=["page"], hot=["/"], salt=Salt(by=["visit"], buckets=2))
    >>> sorted(tuple(row) for row in joined.collect())
    [('/', 1, 'home'), ('/', 2, 'home'), ('/a', 3, 'about')]
    """
    from pyspark.sql import functions as F

    values = _check(left, right, keys, hot, salt, how)
    if not values:
        return left.join(right, on=list(keys), how=how)
    is_hot = F.coalesce(_is_one_of(keys, values), F.lit(False))
    if salt is None:
        cold = left.where(~is_hot).join(right.where(~is_hot), on=list(keys), how=how)
        return left.where(is_hot).join(F.broadcast(right.where(is_hot)), on=list(keys), how=how).union(cold)
    parted = left.withColumn(SALT_COLUMN, F.when(is_hot, F.expr(salt.sql)).otherwise(F.lit(0)))
    every = F.when(is_hot, F.expr(f"sequence(0, {salt.buckets - 1})")).otherwise(F.array(F.lit(0)))
    repeated = right.withColumn(SALT_COLUMN, F.explode(every))
    return parted.join(repeated, on=[*keys, SALT_COLUMN], how=how).drop(SALT_COLUMN)


def _check(
    left: DataFrame, right: DataFrame, keys: Sequence[str], hot: Sequence[Any], salt: Salt | None, how: str
) -> list[tuple[Any, ...]]:
    if isinstance(keys, str) or not keys:
        raise ConfigurationError(f"{_WHAT}: 'keys' is a list of at least one column, such as keys=[\"page\"].")
    if how not in _HOWS:
        raise ConfigurationError(
            f"{_WHAT}: how is one of {', '.join(_HOWS)}, not {how!r}: the rows of the right side are copied or "
            "repeated, so that one without a match would come several times.",
            hint="Put the side with the dominating key on the left.",
        )
    own, other = left.columns, right.columns
    if missing := [name for name in (*keys, *(salt.by if salt else ())) if name not in own]:
        raise MissingColumnsError(pattern=f"{_WHAT} (left side)", missing=missing, present=own)
    if missing := [name for name in keys if name not in other]:
        raise MissingColumnsError(pattern=f"{_WHAT} (right side)", missing=missing, present=other)
    if clash := [name for name in taken_names(own, other) if name not in keys]:
        raise ConfigurationError(f"{_WHAT}: both sides have a column {clash[0]}. Rename or drop it on one side first.")
    if salt is not None and set(salt.by) <= set(keys):
        raise ConfigurationError(
            f"{_WHAT}: the salt is made of {', '.join(salt.by)}, which all rows of a key share: it would part nothing.",
            hint="Name columns that tell the rows of one key apart.",
        )
    if isinstance(hot, str) or len(hot) > _MOST_HOT:
        raise ConfigurationError(f"{_WHAT}: 'hot' is a list of at most {_MOST_HOT:,} keys, not {str(hot)[:60]!r}.")
    values = [tuple(one) if isinstance(one, tuple | list) else (one,) for one in hot]
    if wrong := [one for one in values if len(one) != len(keys)]:
        raise ConfigurationError(f"{_WHAT}: a hot key has {len(keys)} value(s), as 'keys' has, not {wrong[0]!r}.")
    return [one for one in values if None not in one]  # a NULL is joined with nothing


def _is_one_of(keys: Sequence[str], values: Sequence[tuple[Any, ...]]) -> Column:
    from functools import reduce

    from pyspark.sql import functions as F

    if len(keys) == 1:
        return F.col(quoted(keys[0])).isin([value for (value,) in values])
    each = [
        reduce(lambda one, two: one & two, [F.col(quoted(k)) == F.lit(v) for k, v in zip(keys, value, strict=True)])
        for value in values
    ]
    return reduce(lambda one, two: one | two, each)
