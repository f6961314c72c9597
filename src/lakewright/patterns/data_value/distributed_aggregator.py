"""Distributed Aggregator: sum up rows that lie on many machines, also when one key is far larger than the rest.

Problem:
    A dashboard needs counts and averages by country and device, per day and per week. The rows lie on many machines and
    must be brought together, one country holds most of them, and the mean of seven averages is not the week's average.
Guarantee:
    Every cell is the aggregate of exactly its rows. NULL is a group of its own, and in a cube it is told from the total
    over that axis by ``grouping_id``. With a salt the result is the same as without. What is made of kept parts
    (``combine_parts``) is what the rows themselves would give. A measure that cannot be put together from parts is
    refused by its name wherever parts are needed.
Consequences:
    - Rows travel. Where a measure can be made of parts Spark reduces them first (``check_plan`` tells), so that a
      dominating key hardly hurts; a salt pays where much is kept per key, such as sets. Measure it first
      (``measure_skew``). In a join nothing is reduced: there a salt for the hot keys helps (``join_skewed``).
    - A cube of n axes has up to 2 to the n levels: name the ``levels`` that somebody reads.
    - Exact distinct counts keep every value where parts are kept; ``approx_count_distinct`` keeps a small sketch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.sql import quoted
from lakewright.patterns.data_value.cubes import all_levels, checked_levels, keep_level
from lakewright.patterns.data_value.measures import Measure, parse_measures
from lakewright.patterns.data_value.plan_check import check_plan
from lakewright.patterns.data_value.salting import SALT_COLUMN, Salt, join_skewed
from lakewright.patterns.data_value.skew import find_hot_keys, measure_skew

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData

__all__ = [
    "DistributedAggregator",
    "Salt",
    "aggregate_by_key",
    "check_plan",
    "combine_parts",
    "find_hot_keys",
    "join_skewed",
    "keep_level",
    "measure_skew",
]

_WHAT = "Distributed Aggregator"


@dataclass(frozen=True, slots=True)
class DistributedAggregator:
    """What is aggregated by what: a declaration for the daily and the weekly step, checked on loading."""

    measures: Mapping[str, str]
    by: Sequence[str] = ()
    cube: Sequence[str] = ()
    """The axes over which there are totals too."""
    levels: Sequence[Sequence[str]] | None = None
    """The sets of axes that are wanted; all of them where nothing is said. ``[]`` is the total over all axes."""
    salt: Salt | None = None
    keep_parts: bool = False
    """Keep the columns of which coarser cells can be made, such as ``seconds_sum`` beside an average ``seconds``."""
    id_column: str = "grouping_id"

    def __post_init__(self) -> None:
        for option in ("by", "cube"):
            given = getattr(self, option)
            if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
                raise ConfigurationError(f"{_WHAT}: '{option}' is a list of columns, not {given!r}.")
            object.__setattr__(self, option, tuple(given))
        parsed = parse_measures(self.measures, pattern=_WHAT)
        object.__setattr__(self, "levels", checked_levels(self.cube, self.levels))
        if self.salt is not None:
            self._check_salt(self.salt)
        of_parts = self.salt is not None or self.keep_parts
        if of_parts:
            _refuse_whole(parsed, "a salt" if self.salt is not None else "keep_parts")
        made = [name for one in parsed for name in dict.fromkeys((one.name, *(one.parts if of_parts else ())))]
        names = [*self.by, *self.cube, *([self.id_column] if self.cube else ()), *made]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"{_WHAT}: two columns of the result would be called {twice[0]}. Rename one.")

    def cells(self, df: DataFrame) -> DataFrame:
        """The cells of some rows; lazy."""
        self._check_frame(df)
        if self.salt is None and not self.keep_parts:
            direct = {one.name: one.direct for one in self._parsed()}
            made = self._grouped(df).agg(*self._id(), *_columns(direct))
            return made.selectExpr(*[quoted(name) for name in (*self._groups(), *direct)])
        if self.salt is None and not self.cube:
            return self._of_parts(self._grouped(df).agg(*_columns(self._parts())))
        # The finest cells first: a cube then repeats each of them once per level, not each row.
        fine = [*self.by, *self.cube, *([] if self.salt is None else [SALT_COLUMN])]
        rows = df if self.salt is None else df.withColumn(SALT_COLUMN, _column(self.salt.sql, SALT_COLUMN))
        finest = rows.groupBy(*_named(fine)).agg(*_columns(self._parts()))
        return self._of_parts(self._grouped(finest).agg(*self._id(), *_columns(self._united(finest))))

    def combined(self, cells: DataFrame, *, by: Sequence[str]) -> DataFrame:
        """The cells of coarser groups, made of cells that kept their parts; lazy."""
        parsed = self._parsed()
        _refuse_whole(parsed, "combine_parts")
        groups = self._groups(by)
        present = cells.columns
        if missing := [name for name in (*groups, *self._parts()) if name not in present]:
            error = MissingColumnsError(pattern=_WHAT, missing=missing, present=present)
            if set(missing) & {part for one in parsed for part in one.parts if part != one.name}:
                error.hint = "Keep the parts where the finer cells are made: keep_parts=True."
            raise error
        united = cells.groupBy(*_named(groups)).agg(*_columns(self._united(cells)))
        return self._of_parts(united, groups)

    def _check_salt(self, salt: Salt) -> None:
        if not isinstance(salt, Salt):
            raise ConfigurationError(f"{_WHAT}: salt is a Salt(by=[...]), not {salt!r}.")
        if set(salt.by) <= {*self.by, *self.cube}:
            raise ConfigurationError(
                f"{_WHAT}: the salt is made of {', '.join(salt.by)}, by which rows are grouped anyway: it would part "
                "nothing.",
                hint='Name columns that tell the rows of one key apart: Salt(by=["visit_id"]).',
            )

    def _check_frame(self, df: DataFrame) -> None:
        present = df.columns
        if missing := [n for n in (*self.by, *self.cube, *(self.salt.by if self.salt else ())) if n not in present]:
            raise MissingColumnsError(pattern=_WHAT, missing=missing, present=present)
        if not df.isStreaming:
            return
        if self.salt is not None or (self.keep_parts and self.cube):
            what = "a salt" if self.salt is not None else "a cube with keep_parts"
            raise ConfigurationError(
                f"{_WHAT}: {what} makes two aggregates of one, and a stream would hold the state of both.",
                hint="Leave it out: each micro-batch is reduced before its rows travel.",
            )
        if exact := [one.name for one in self._parsed() if one.kind == "distinct"]:
            raise ConfigurationError(
                f"{_WHAT}: {exact[0]} counts distinct values exactly, which a stream cannot do with a bounded state.",
                hint="Use approx_count_distinct, which keeps a small sketch.",
            )

    def _parsed(self) -> tuple[Measure, ...]:
        return parse_measures(self.measures, pattern=_WHAT)

    def _parts(self) -> dict[str, str]:
        return {column: text for one in self._parsed() for column, text in one.parts.items()}

    def _united(self, parts: DataFrame) -> dict[str, str]:
        types = {field.name: field.dataType for field in parts.schema}
        return {column: text for one in self._parsed() for column, text in one.united(types).items()}

    def _grouped(self, df: DataFrame) -> GroupedData:
        if not self.cube:
            return df.groupBy(*_named(self.by))
        levels = all_levels(self.cube) if self.levels is None else self.levels
        return df.groupingSets([_named([*self.by, *level]) for level in levels], *_named([*self.by, *self.cube]))

    def _id(self) -> list[Column]:
        return [_column("grouping_id()", self.id_column)] if self.cube else []

    def _of_parts(self, parts: DataFrame, groups: Sequence[str] | None = None) -> DataFrame:
        """The measures of united parts, and the parts where they are kept."""
        types = {field.name: field.dataType for field in parts.schema}
        parsed = self._parsed()
        kept = [quoted(column) for one in parsed for column in one.parts if column != one.name]
        return parts.selectExpr(
            *[quoted(name) for name in (self._groups() if groups is None else groups)],
            *[f"{one.result(types)} AS {quoted(one.name)}" for one in parsed],
            *(kept if self.keep_parts else ()),
        )

    def _groups(self, by: Sequence[str] | None = None) -> list[str]:
        return [*(self.by if by is None else by), *self.cube, *([self.id_column] if self.cube else [])]


def aggregate_by_key(
    df: DataFrame,
    *,
    by: Sequence[str] = (),
    measures: Mapping[str, str],
    cube: Sequence[str] = (),
    levels: Sequence[Sequence[str]] | None = None,
    salt: Salt | None = None,
    keep_parts: bool = False,
    id_column: str = "grouping_id",
) -> DataFrame:
    """Group rows by key and reduce each group to its measures (SQL aggregates); lazy.

    With ``cube`` there are totals over these axes too, each level told by ``grouping_id``. Without ``by`` and ``cube``
    it is one row for all.

    >>> visits = spark.createDataFrame([("FR", 10), ("FR", 20), (None, 60)], "country string, seconds int")
    >>> cells = aggregate_by_key(visits, cube=["country"], measures={"visits": "count(*)", "seconds": "avg(seconds)"})
    >>> sorted((tuple(row) for row in cells.collect()), key=str)
    [('FR', 0, 2, 15.0), (None, 0, 1, 60.0), (None, 1, 3, 30.0)]
    """
    options = DistributedAggregator(measures, by, cube, levels, salt, keep_parts, id_column)
    return options.cells(df)


def combine_parts(
    cells: DataFrame,
    *,
    by: Sequence[str],
    measures: Mapping[str, str],
    cube: Sequence[str] = (),
    keep_parts: bool = False,
    id_column: str = "grouping_id",
) -> DataFrame:
    """Put cells together to coarser ones, days to a week; lazy. They were made with ``keep_parts=True``.

    >>> measures = {"seconds": "avg(seconds)"}
    >>> visits = spark.createDataFrame([(1, 10), (1, 20), (2, 60)], "day int, seconds int")
    >>> days = aggregate_by_key(visits, by=["day"], measures=measures, keep_parts=True)
    >>> combine_parts(days, by=[], measures=measures).collect()
    [Row(seconds=30.0)]
    """
    options = DistributedAggregator(measures, (), cube, None, None, keep_parts, id_column)
    return options.combined(cells, by=by)


def _refuse_whole(measures: Sequence[Measure], what: str) -> None:
    if whole := [one for one in measures if not one.is_decomposable]:
        raise ConfigurationError(
            f"{_WHAT}: the measure {whole[0].name}, {whole[0].text}, cannot be put together from parts, and {what} "
            "makes parts first. The result would be wrong.",
            hint="Of parts can be made: count, count_if, sum, min, max, avg, count(DISTINCT one column) and "
            "approx_count_distinct, each on its own. For any other measure aggregate the rows directly.",
        )


def _columns(texts: Mapping[str, str]) -> list[Column]:
    return [_column(text, name) for name, text in texts.items()]


def _column(text: str, name: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text).alias(name)


def _named(names: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(quoted(name)) for name in names]
