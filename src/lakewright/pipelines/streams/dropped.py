"""What the state of a query's guards has dropped: by micro-batch as long as its receipt may want it, then as a total.

Guarantee:
    A micro-batch counts once, however often it is looked at. What is kept does not grow with the micro-batches: those
    that are settled are one pair of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakewright.model.streams import Dropped, Progress
from lakewright.patterns.error_management.progress_report import has_run

__all__ = ["DroppedRows"]


class DroppedRows:
    """The account of one query, whose micro-batches go by Spark's numbers."""

    def __init__(self, before: Progress | None) -> None:
        """``before`` is how far the generation was: its last micro-batch may be repeated, and is counted there."""
        self._counted = -1 if before is None else before.batch
        self._duplicates = (before and before.duplicates) or 0
        self._behind = (before and before.behind_watermark) or 0
        self._settled = -1
        self._batches: dict[int, Dropped] = {}

    @property
    def batches(self) -> Mapping[int, Dropped]:
        """Those that are not settled, and the newest one."""
        return self._batches

    def look(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Take note of micro-batches that have ended. Spark itself remembers only the last hundred."""
        for one in told:
            number = int(one["batchId"])
            if number < self._settled or not has_run(one):
                continue
            state = one.get("stateOperators") or []
            self._batches[number] = Dropped(
                sum((of.get("customMetrics") or {}).get("numDroppedDuplicateRows", 0) for of in state),
                sum(of.get("numRowsDroppedByWatermark", 0) for of in state),
            )

    def settle(self, upto: int) -> None:
        """Those up to this one have their receipts. It stays itself, to tell how far the query is."""
        for number in [number for number in self._batches if number < upto]:
            gone = self._batches.pop(number)
            if number > self._counted:
                self._duplicates += gone.duplicates
                self._behind += gone.behind_watermark
        self._settled = max(self._settled, upto)

    def total(self) -> Dropped:
        """Of the generation, all its queries together."""
        since = [one for number, one in self._batches.items() if number > self._counted]
        return Dropped(
            self._duplicates + sum(one.duplicates for one in since),
            self._behind + sum(one.behind_watermark for one in since),
        )
