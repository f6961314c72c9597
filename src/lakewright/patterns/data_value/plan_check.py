"""Plan check: which exchanges (shuffles) a frame would cost, told from its plan before anything runs.

Guarantee:
    No job runs. Each exchange of the plan is told once, with its kind, its columns and whether rows are reduced before
    they travel. The plan is Spark's first one: while it runs, adaptive execution may still change it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lakewright.errors import ConfigurationError
from lakewright.patterns.data_value.plan_text import plan_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Exchange", "PlanReport", "check_plan", "refuse_exchanges"]

ExchangeKind = Literal["hash", "single", "range", "round robin", "broadcast", "other"]

_EXCHANGE = re.compile(r"(?<![A-Za-z])(Exchange|BroadcastExchange)\s+(.*)")
_HASH = re.compile(r"hashpartitioning\((.*), (\d+)\)")
_STARTS: dict[str, ExchangeKind] = {
    "hashpartitioning": "hash",
    "SinglePartition": "single",
    "rangepartitioning": "range",
    "RoundRobinPartitioning": "round robin",
}
_PARTIAL = re.compile(r"(Hash|ObjectHash|Sort)Aggregate.*\bpartial_")
_PASSES_ON = re.compile(r"(\*?\(\d+\) )?(Project|Sort|InputAdapter|WholeStageCodegen)\b")
_NUMBER = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange: rows go to other tasks, mostly on other machines."""

    kind: ExchangeKind
    columns: tuple[str, ...] = ()
    """By which they are brought together, for ``hash``."""
    is_reduced: bool = False
    """Whether a partial aggregate comes before it, so that partial results travel instead of rows."""

    def __str__(self) -> str:
        by = f" by {', '.join(self.columns)}" if self.columns else ""
        return f"{self.kind}{by}{', reduced before' if self.is_reduced else ''}"


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a plan costs in exchanges; ``text`` is the plan as Spark prints it."""

    exchanges: tuple[Exchange, ...]
    text: str

    @property
    def shuffles(self) -> tuple[Exchange, ...]:
        """The exchanges that move all rows; a broadcast copies the small side only."""
        return tuple(one for one in self.exchanges if one.kind != "broadcast")

    def __str__(self) -> str:
        told = "; ".join(str(one) for one in self.exchanges)
        return f"{len(self.exchanges)} exchange(s): {told}" if told else "no exchange"


def check_plan(df: DataFrame) -> PlanReport:
    """Tell the exchanges of a frame's plan; no job runs.

    >>> visits = spark.createDataFrame([("FR", 1)], "country string, pages int")
    >>> print(check_plan(visits.groupBy("country").count()))
    1 exchange(s): hash by country, reduced before
    """
    text = plan_text(df)
    lines = text.splitlines()
    found = []
    for place, line in enumerate(lines):
        if (told := _EXCHANGE.search(line)) is not None:
            found.append(_exchange(told[1], told[2], is_reduced=_is_reduced(lines, place)))
    return PlanReport(tuple(found), text)


def refuse_exchanges(df: DataFrame, *, pattern: str = "Plan check", allow_broadcast: bool = True) -> None:
    """Refuse a frame whose plan moves rows between tasks; no job runs."""
    report = check_plan(df)
    if moved := report.shuffles if allow_broadcast else report.exchanges:
        raise ConfigurationError(
            f"{pattern}: the plan moves rows between tasks: {'; '.join(str(one) for one in moved)}. Nothing was "
            "started.",
            hint="Lay the data out by these columns first, or use aggregate_by_key, which moves rows on purpose.",
        )


def _exchange(operator: str, rest: str, *, is_reduced: bool) -> Exchange:
    if operator == "BroadcastExchange":
        return Exchange("broadcast")
    kinds: list[ExchangeKind] = [kind for start, kind in _STARTS.items() if rest.startswith(start)]
    kind: ExchangeKind = kinds[0] if kinds else "other"
    columns = _HASH.match(rest)
    names = () if columns is None else tuple(_NUMBER.sub("", name) for name in columns[1].split(", "))
    return Exchange(kind, names, is_reduced)


def _is_reduced(lines: list[str], place: int) -> bool:
    for line in lines[place + 1 :]:
        operator = line.lstrip(" :+-")
        if _PASSES_ON.match(operator) is None:
            return _PARTIAL.search(operator) is not None
    return False
