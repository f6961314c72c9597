"""Bursts: visits of one entity that lie within a gap's length of each other become one row before they are exchanged.

Guarantee:
    The sessions are the same. Time is parted into stretches as long as the gap: two visits of one stretch are less than
    a gap apart, so one session has both. Spark counts them where it reads them, and what travels to an entity's other
    visits, is sorted and handed to Python is a row for each stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakewright.model.sql import quoted, text_literal
from lakewright.patterns.data_value.session_arrow import Rules, SessionRows, numbers_of, reduced
from lakewright.patterns.data_value.session_frames import AT, END, EVENTS, EXPIRY, SessionLayout
from lakewright.patterns.data_value.sessions import NAME

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["BurstRows", "bursts_of", "has_bursts"]

_TOO_LARGE = f"{NAME}: a sum is beyond 64 bits. Cast its column to double before."


def has_bursts(layout: SessionLayout) -> bool:
    """Whether the visits of a stretch can be told by one row.

    Not where a visit ends its session or has a gap of its own, nor where a session may be cut between two visits; nor
    where something depends on their order: lists, first and last values, and sums of broken numbers.
    """
    one = layout.sessions
    if one.gap_by is not None or one.ends is not None or one.max_duration is not None:
        return False
    kinds = zip((each.kind for each in one.aggregates), layout.places, strict=True)
    return all(
        kind in ("min", "max") or (kind == "sum" and layout.carried[place][1] == "bigint") for kind, place in kinds
    )


def bursts_of(visits: DataFrame, layout: SessionLayout, pending: DataFrame | None) -> DataFrame:
    """One row for each entity and stretch of time, and one for each session that is ``pending``; lazy.

    A row has the keys, when it starts and ends, how many visits it has, and the aggregates; with ``pending`` at last
    when it expires.
    """
    from pyspark.sql import functions as F

    one = layout.sessions
    keys = [quoted(key) for key in one.keys]
    stretch = F.expr(f"{AT} - pmod({AT}, {one.gap_micros}L)").alias("_lw_stretch")
    held = [
        F.expr(_held(each.kind, f"_lw_c{column}")).alias(f"_lw_a{place}")
        for place, (each, column) in enumerate(zip(one.aggregates, layout.places, strict=True))
    ]
    counted = visits.selectExpr(*layout.visit_columns()).groupBy(*keys, stretch)
    found = counted.agg(F.min(AT).alias(AT), F.max(AT).alias(END), F.count("*").alias(EVENTS), *held).drop(
        "_lw_stretch"
    )
    if pending is None:
        return found
    opened = pending.selectExpr(
        *keys,
        f"unix_micros(start_time) AS {AT}",
        f"unix_micros(end_time) AS {END}",
        f"events AS {EVENTS}",
        *(f"CAST({quoted(each.name)} AS {layout.held_type(n)}) AS _lw_a{n}" for n, each in enumerate(one.aggregates)),
        f"unix_micros(expires_at) AS {EXPIRY}",
    )
    return found.selectExpr("*", f"{END} + {one.gap_micros}L AS {EXPIRY}").unionByName(opened)


class BurstRows(SessionRows):
    """Rows that ``bursts_of`` made, in order of their entity and start."""

    def __init__(self, batch: pa.RecordBatch, rules: Rules, held: Sequence[pa.Array] | None) -> None:
        import numpy as np

        self.rules = rules
        columns = list(batch.columns)
        if held is not None:
            columns = _after(held, columns, rules)
        self.keys = columns[: rules.keys]
        fixed = [numbers_of(one) for one in columns[rules.keys : rules.keys + 3]]
        self.start, self.end, self.events = fixed
        self.expiry = numbers_of(columns.pop()) if rules.reopens else self.end + rules.gap
        self.in_order = not rules.reopens
        self.size = len(self.start)
        self.ended = np.zeros(self.size, dtype=bool)
        self._held = columns[rules.keys + 3 :]

    def aggregate(self, place: int, first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> pa.Array:
        return reduced(self.rules.aggregates[place][0], self._held[place], first)


def _after(held: Sequence[pa.Array], columns: Sequence[pa.Array], rules: Rules) -> list[pa.Array]:
    """The rows with the session that is open before them as the first."""
    import pyarrow as pa

    *keys_and_times, expiry, events = held[: rules.keys + 4]
    first = [*keys_and_times, events, *held[rules.keys + 4 : -1], *([expiry] if rules.reopens else [])]
    return [pa.concat_arrays([one.cast(rest.type), rest]) for one, rest in zip(first, columns, strict=True)]


def _held(kind: str, column: str) -> str:
    if kind != "sum":
        return f"{kind}({column})"
    refused = f"CAST(raise_error({text_literal(_TOO_LARGE)}) AS BIGINT)"
    return f"CASE WHEN count({column}) > 0 AND try_sum({column}) IS NULL THEN {refused} ELSE try_sum({column}) END"
