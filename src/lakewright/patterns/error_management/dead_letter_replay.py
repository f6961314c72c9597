"""Replaying dead letters on frames, without a pipeline.

Guarantee:
    Each dead letter is in exactly one of ``repaired`` and ``rejected``. Repaired rows tell that they were dead letters,
    by which job and version they came back, and when; rejected ones keep their history: how often they were replayed,
    and the rules that they broke before. With ``known`` a row that is there already is not given again, so that a
    second replay adds nothing.
Consequences:
    - Repaired rows belong to slices that consumers have read: list them (``touched``) before you write.
    - Rows that were written in an order come back behind newer ones: sort again, or do not replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.patterns.error_management.dead_letter import MARKS, Rule, split_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    repaired = split.valid.drop(_ATTEMPTS, _EARLIER).select("*", *[value.alias(name) for name, value in marks])
    if known is not None:
        repaired = repaired.join(known.select(*keys), on=list(keys), how="left_anti")
    return DeadLetterReplay(repaired=repaired, rejected=split.rejected)
