"""History of a row (slowly changing dimension, type 2): every version, with the time it was valid.

Guarantee:
    Per key the versions form one chain without gap or overlap, with exactly one current row, whatever the
    order in which the changes arrive: an older change is put where it belongs. The same changes twice leave
    the same chain. Changes that have a column of the history's own already are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, InputError, MissingColumnsError
from lakewright.model.columns import taken_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Scd2", "chain_versions"]


@dataclass(frozen=True, slots=True)
class Scd2:
    """Which column of the feed tells when a version begins, and how the history's columns are called."""

    valid_from: str
    valid_to: str = "valid_to"
    current: str = "is_current"

    def __post_init__(self) -> None:
        if len({name.lower() for name in (self.valid_from, *self.adds_columns)}) < 3:
            raise ConfigurationError("Scd2: valid_from, valid_to and current are three different columns.")

    @property
    def source_column(self) -> str:
        return self.valid_from

    @property
    def adds_columns(self) -> tuple[str, str]:
        """The columns that the history makes."""
        return self.valid_to, self.current

    def refuse_taken_columns(self, columns: Sequence[str], what: str) -> None:
        """Refuse changes with a column that the history makes: their values would be lost without a word."""
        if taken := taken_names(self.adds_columns, columns):
            raise InputError(
                f"{what}: the changes have a column {', '.join(taken)}, which Scd2 makes itself. Nothing was written.",
                hint="Rename it in the changes, or choose other names for valid_to and current.",
            )


def chain_versions(df: DataFrame, known: DataFrame | None, *, keys: Sequence[str], history: Scd2) -> DataFrame:
    """The whole chain of every key in ``df``, made of its new versions and those already known.

    >>> users = spark.createDataFrame([(1, "PL", 5), (1, "FR", 1)], "user int, country string, since int")
    >>> chain = chain_versions(users, None, keys=["user"], history=Scd2(valid_from="since"))
    >>> chain.orderBy("since").collect()[0]
    Row(user=1, country='FR', since=1, valid_to=5, is_current=False)
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns = df.columns
    if missing := [name for name in (*keys, history.valid_from) if name not in columns]:
        raise MissingColumnsError(pattern="Scd2", missing=missing, present=columns)
    history.refuse_taken_columns(columns, "Scd2")
    quoted = [f"`{key}`" for key in keys]
    versions = df.withColumn("_lw_new", F.lit(1))
    if known is not None:
        touched = df.select(*quoted).distinct()
        same_key = reduce(and_, [F.col(f"known.{key}") == F.col(f"touched.{key}") for key in quoted])
        before = known.alias("known").join(touched.alias("touched"), on=same_key, how="left_semi")
        before = before.select(*[f"`{name}`" for name in columns]).withColumn("_lw_new", F.lit(0))
        versions = before.unionByName(versions)
    # A change that comes again replaces what is known of the same moment.
    since = f"`{history.valid_from}`"
    same_moment = Window.partitionBy(*quoted, since).orderBy(F.col("_lw_new").desc())
    one_each = versions.withColumn("_lw_rank", F.row_number().over(same_moment)).where("_lw_rank = 1")
    in_order = Window.partitionBy(*quoted).orderBy(since)
    chained = one_each.withColumn(history.valid_to, F.lead(since).over(in_order))
    return chained.withColumn(history.current, F.col(f"`{history.valid_to}`").isNull()).drop("_lw_rank", "_lw_new")
