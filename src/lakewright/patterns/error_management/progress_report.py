"""What keeping progress costs a stream, and what a crash would repeat: the two ends of one choice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ProgressReport", "has_run", "keeping_millis", "progress_report", "report_of", "told_of_batch"]

_KEEPING = ("walCommit", "commitOffsets", "commitBatch")


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Over the micro-batches that Spark remembers (the last hundred)."""

    batches: int
    rows: int
    seconds: float
    keeping_seconds: float
    """Spent on the record of progress alone, all micro-batches together."""
    repeated_rows: int
    """What a crash at the worst moment reads again: the rows of the largest micro-batch."""
    state_rows: int
    state_bytes: int

    @property
    def keeping_seconds_per_row(self) -> float:
        return self.keeping_seconds / self.rows if self.rows else 0.0


def progress_report(query: StreamingQuery) -> ProgressReport:
    """What a stream that runs or has ended tells of itself."""
    return report_of([told_of_batch(one) for one in query.recentProgress])


def report_of(told: Iterable[Mapping[str, Any]]) -> ProgressReport:
    """The same, of progress as Spark writes it."""
    batches = [{**one, "numInputRows": rows} for one in told if (rows := _rows(one))]
    state = (batches[-1].get("stateOperators") or []) if batches else []
    return ProgressReport(
        batches=len(batches),
        rows=sum(one["numInputRows"] for one in batches),
        seconds=sum((one.get("durationMs") or {}).get("triggerExecution", 0) for one in batches) / 1000,
        keeping_seconds=sum(map(keeping_millis, batches)) / 1000,
        repeated_rows=max((one["numInputRows"] for one in batches), default=0),
        state_rows=sum(one.get("numRowsTotal", 0) for one in state),
        state_bytes=sum(one.get("memoryUsedBytes", 0) for one in state),
    )


def keeping_millis(told: Mapping[str, Any]) -> int:
    """What a micro-batch spent on the record of progress alone."""
    return sum(int((told.get("durationMs") or {}).get(name, 0)) for name in _KEEPING)


def has_run(told: Mapping[str, Any]) -> bool:
    """Whether a micro-batch was run. A stream that is idle also tells something now and then: the number of the batch
    that it waits for, and the state of the one before it.
    """
    return "addBatch" in (told.get("durationMs") or {})


def _rows(told: Mapping[str, Any]) -> int:
    """Over Connect the sum is left out, and its parts are told."""
    if "numInputRows" in told:
        return int(told["numInputRows"])
    return sum(int(source.get("numInputRows") or 0) for source in told.get("sources") or ())


def told_of_batch(progress: Any) -> dict[str, Any]:
    """What Spark tells of a micro-batch, in whatever form it does."""
    told = getattr(progress, "json", None)
    found: dict[str, Any] = json.loads(told) if isinstance(told, str) else dict(progress)
    return found
