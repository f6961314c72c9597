"""Receipt: what a commit did, read from the target's log.

Lineage, staleness, accounts, rollback and late repair are built on receipts alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from lakewright.model.completeness import Completeness

__all__ = [
    "NO_TABLE",
    "STALING_KINDS",
    "Change",
    "Commit",
    "Counters",
    "Filtered",
    "Receipt",
    "ReceiptKind",
    "ReceiptState",
]

NO_TABLE = -2
"""The version of an input that had no table when a slice was made without it: whatever comes there is newer."""

ReceiptKind = Literal["data", "maintenance", "schema", "restore", "erase", "rewind", "fence", "foreign"]
ReceiptState = Literal["live", "superseded", "rolled back"]

STALING_KINDS: tuple[ReceiptKind, ...] = ("data", "restore", "erase", "rewind", "foreign")
"""Only these make a reader stale; compaction and a gained column never do."""


@dataclass(frozen=True, slots=True)
class Change:
    """Rows added to and removed from one event cell by one commit; None where the log does not tell."""

    added: int | None = 0
    removed: int | None = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as the log of its table tells it."""

    version: int
    committed_at: datetime
    operation: str
    metadata: str | None
    """The raw ``userMetadata``."""
    metrics: Mapping[str, int]
    touched: Mapping[str | None, Change]
    """By event cell (the partition value of ``_lw_event``); the key None holds rows without a usable time."""
    bytes_added: int = 0
    data_change: bool = True
    schema_change: bool = False

    @property
    def rows(self) -> int | None:
        """Rows written by the statement, without those that it only copied."""
        counted = self.metrics
        if "numTargetRowsInserted" in counted:
            return counted["numTargetRowsInserted"] + counted.get("numTargetRowsUpdated", 0)
        if "numOutputRows" in counted:
            return counted["numOutputRows"] - counted.get("numCopiedRows", 0)
        # A write of no rows at all leaves its count out.
        return 0 if self.operation == "WRITE" and not any(change.added for change in self.touched.values()) else None


@dataclass(frozen=True, slots=True)
class Filtered:
    """What the filters of a step removed, of how many rows; in a sample, of the rows that were counted."""

    judged: int
    removed: Mapping[str, int] = field(default_factory=dict)
    """Rows per filter, by the first that a row broke, so that they add up."""
    breaks: Mapping[str, int] = field(default_factory=dict)
    """Rows that break a filter, whatever else they break; empty where nobody asked."""
    sample: float = 1.0

    @property
    def rows(self) -> int | None:
        """All rows removed; None where only a sample was counted."""
        return sum(self.removed.values()) if self.sample == 1 else None

    def shares(self) -> dict[str, float]:
        return {name: rows / self.judged for name, rows in self.removed.items()} if self.judged else {}

    def above(self, limits: Mapping[str, float]) -> dict[str, float]:
        """The shares that are above their limit, the largest first."""
        found = {name: share for name, share in self.shares().items() if share > limits.get(name, 1.0)}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def then(self, later: Filtered) -> Filtered:
        """With what further filters removed of the rows that these have kept."""
        return replace(self.plus(later), judged=self.judged)

    def plus(self, other: Filtered) -> Filtered:
        def sums(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
            return {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}

        return Filtered(
            judged=self.judged + other.judged,
            removed=sums(self.removed, other.removed),
            breaks=sums(self.breaks, other.breaks),
            sample=min(self.sample, other.sample),
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """The account of one step; None is unknown.

    If it preserves rows, ``read = written + rejected + filtered + duplicates + held``.
    """

    read: int | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rows per rule, by the first rule that a row broke, so that they add up."""
    duplicates: int | None = None
    corrected: int | None = None
    """Rows among those read that were dead letters and came back by a replay; of a source, those told no longer."""
    late: int | None = None
    """Rows among those read that came after the slice was first made."""
    held: int | None = None
    """Rows among those read that were late, and left out."""
    held_by_source: Mapping[str, int] = field(default_factory=dict)
    read_by_source: Mapping[str, int] = field(default_factory=dict)
    """Where a detector of late rows judged them: all rows that it judged, by source."""
    written: int | None = None
    deleted: int | None = None
    corrupt: int | None = None
    proof: str | None = None
    """Of a replica: what both sides were found to have in common."""
    filtered: Filtered | None = None
    filtered_by_input: Mapping[str, Filtered] = field(default_factory=dict)
    """The same of inputs that the account is not about: what was removed of them is not in ``read``."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """Of a join of two streams: ``pairs``, and rows of either side that were released ``unmatched``."""
    completeness: Completeness | None = None
    """Of a slice that may be made of some of its parts: which of them it was made of."""
    watermark: Mapping[str, Any] = field(default_factory=dict)
    """Where a detector of late rows judged them: the watermark that they left, which the next batch is judged by. It is
    kept here as well as in the commit, whose file Delta deletes in time."""

    @property
    def rejected_rows(self) -> int:
        return sum(self.rejected.values())

    @property
    def filtered_rows(self) -> int:
        return 0 if self.filtered is None else self.filtered.rows or 0

    @property
    def is_partial(self) -> bool:
        """Whether parts of the slice were missing when it was made."""
        return self.completeness is not None and not self.completeness.is_complete


@dataclass(frozen=True, slots=True)
class Receipt:
    """One commit into one dataset, with what it was made of."""

    dataset: str
    slice_id: str
    kind: ReceiptKind
    version: int
    version_before: int | None
    number: int
    committed_at: datetime
    run_id: str | None = None
    attempt: int = 1
    rows: int | None = None
    bytes: int | None = None
    counters: Counters = field(default_factory=Counters)
    touched: Mapping[str | None, Change] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    code: str | None = None
    state: ReceiptState = "live"
    valid_from: datetime | None = None
    """The earliest time from which a versioned reference reads differently; None is unknown."""
    recovered: bool = False
