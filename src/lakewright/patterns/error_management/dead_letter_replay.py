"""Replaying dead letters on frames, without a pipeline.

Guarantee:
    Each dead letter is in exactly one of ``repaired`` and ``rejected``. Repaired rows tell that they were dead letters,
    by which job and version they came back, and when; rejected ones keep their history: how often they were replayed,
    and the rules that they broke before. With ``known`` a row that is there already is not given again, so that a
    second replay adds nothing; a row with a NULL among its keys is there where a row is the same in all columns.
Consequences:
    - Repaired rows belong to slices that consumers have read: list them (``touched``) before you write.
    - Rows that were written in an order come back behind newer ones: sort again, or do not replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.sql import quoted
from lakewright.patterns.error_management.dead_letter import MARKS, Rule, split_dead_letters
from lakewright.patterns.error_management.whole_rows import comparable
from lakewright.patterns.error_management.windowed_deduplicator_stream import without_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["DeadLetterReplay", "replay_dead_letters"]

_ATTEMPTS, _EARLIER = "replay_attempts", "earlier_rules"


@dataclass(frozen=True, slots=True)
class DeadLetterReplay:
    """Both halves of a replay. Lazy."""

    repaired: DataFrame
    rejected: DataFrame

    def touched(self, *columns: str) -> DataFrame:
        """The partitions that the repaired rows belong to, with the number of rows; lazy."""
        return self.repaired.groupBy(*columns).count()


def replay_dead_letters(
    df: DataFrame,
    *,
    rules: Mapping[str, Rule],
    job: str,
    version: str,
    replay_time: datetime,
    fix: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    known: DataFrame | None = None,
    keys: Sequence[str] = (),
    reasons_column: str = "broken_rules",
) -> DeadLetterReplay:
    """Judge dead letters again by the rules of now, after a ``fix`` of their rows if there is one.

    ``df`` are dead letters as ``split_dead_letters`` gives them, or as an earlier replay has rejected them. ``known``
    is the table that the repaired rows go to, and ``keys`` tell its rows.

    >>> dead = spark.createDataFrame([("v1", "home", ["known"]), ("v2", None, ["known"])],
    ...     "visit string, page string, broken_rules array<string>")
    >>> again = replay_dead_letters(dead, rules={"known": "page LIKE '/%'"}, job="visits", version="2",
    ...     replay_time=datetime(2026, 1, 5), fix=lambda df: df.selectExpr("* EXCEPT (page)", "'/' || page AS page"))
    >>> [(row.visit, row.page, row.was_dead_lettered) for row in again.repaired.collect()]
    [('v1', '/home', True)]
    >>> [(row.visit, row.replay_attempts, row.earlier_rules) for row in again.rejected.collect()]
    [('v2', 1, [['known']])]
    """
    from pyspark.sql import functions as F

    columns = df.columns
    if reasons_column not in columns:
        raise MissingColumnsError(pattern="Dead-Letter", missing=[reasons_column], present=columns)
    if (known is None) != (not keys):
        raise ConfigurationError(
            "Dead-Letter: a replay into a table that has rows needs 'known' (the table) and 'keys' (what tells its "
            "rows), both or none."
        )
    if _ATTEMPTS not in columns:
        df = df.selectExpr("*", f"0 AS {_ATTEMPTS}", f"CAST(array() AS ARRAY<ARRAY<STRING>>) AS {_EARLIER}")
    history = df.withColumns(
        {_ATTEMPTS: F.expr(f"{_ATTEMPTS} + 1"), _EARLIER: F.expr(f"array_append({_EARLIER}, {reasons_column})")}
    )
    split = split_dead_letters(fix(history.drop(reasons_column)), rules=rules, reasons_column=reasons_column)
    marks = zip(MARKS, (F.lit(True), F.lit(job), F.lit(version), F.lit(replay_time).cast("timestamp")), strict=True)
    valid = split.valid.drop(_ATTEMPTS, _EARLIER, *MARKS)  # of the replays of a row the last one is told
    if known is not None:
        valid = _without_known(valid, known, keys)
    repaired = valid.select("*", *[value.alias(name) for name, value in marks])
    return DeadLetterReplay(repaired=repaired, rejected=split.rejected)


def _without_known(rows: DataFrame, known: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that the table does not have. A NULL is no key: a row with one is told by all that the table holds."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType for field in rows.schema}
    there = {field.name: f"_lw_there_{place}" for place, field in enumerate(known.schema)}
    for frame, present in (("", kinds), (" (known)", there)):
        if missing := [key for key in keys if key not in present]:
            raise MissingColumnsError(pattern=f"Dead-Letter{frame}", missing=missing, present=list(present))
    held = {field.name: field.dataType for field in known.schema}
    whole = [name for name in held if name in kinds]

    def told(name: str, column: Column) -> Column:
        """As it can be compared with the other side; what it cannot be is compared as text."""
        fit = comparable(column, kinds[name]) if kinds[name] == held[name] else None
        return column.cast("string") if fit is None else fit

    def alike(names: Sequence[str]) -> Column:
        pairs = [(told(name, F.col(quoted(name))), told(name, F.col(there[name]))) for name in names]
        return reduce(and_, [one.eqNullSafe(other) for one, other in pairs], F.lit(True))

    same_keys = reduce(and_, [F.col(quoted(key)).eqNullSafe(F.col(there[key])) for key in keys])
    seen = known.select(*[F.col(quoted(name)).alias(other) for name, other in there.items()])
    return rows.join(seen, same_keys & (~without_key(keys) | alike(whole)), "left_anti")
