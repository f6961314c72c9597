"""What a join of two streams holds, has dropped and waits for, from what Spark tells of its micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakewright.patterns.error_management.progress_report import told_of_batch

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["JoinReport", "join_report", "report_of_join"]


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Over the micro-batches that Spark remembers (the last hundred)."""

    state_rows: int = 0
    """Rows that are held just now, of both sides."""
    state_bytes: int = 0
    most_state_rows: int = 0
    late_rows: int = 0
    """Rows that came later than the watermark, and were dropped."""
    watermark: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    """What each side has brought, by the source's own words."""

    @property
    def idle(self) -> tuple[str, ...]:
        """The sides that brought nothing while another did: nothing is released until they do."""
        return tuple(name for name, rows in self.rows.items() if not rows and any(self.rows.values()))


def join_report(query: StreamingQuery) -> JoinReport:
    """What a stream that runs or has ended tells of its join."""
    return report_of_join([told_of_batch(one) for one in query.recentProgress])


def report_of_join(told: Iterable[Mapping[str, Any]]) -> JoinReport:
    """The same, of progress as Spark writes it."""
    batches = list(told)
    rows: dict[str, int] = {}
    held = [sum(one.get("numRowsTotal", 0) for one in batch.get("stateOperators") or []) for batch in batches]
    for batch in batches:
        for source in batch.get("sources") or []:
            name = str(source.get("description"))
            rows[name] = rows.get(name, 0) + int(source.get("numInputRows") or 0)
    last = (batches[-1].get("stateOperators") or []) if batches else []
    return JoinReport(
        state_rows=held[-1] if held else 0,
        state_bytes=sum(one.get("memoryUsedBytes", 0) for one in last),
        most_state_rows=max(held, default=0),
        late_rows=sum(
            one.get("numRowsDroppedByWatermark", 0) for batch in batches for one in batch.get("stateOperators") or []
        ),
        watermark=(batches[-1].get("eventTime") or {}).get("watermark") if batches else None,
        rows=rows,
    )
