"""Status: how everything stands, from the store alone; needs neither Spark nor the project's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from lakewright.errors import first_words
from lakewright.model.findings import Finding
from lakewright.model.receipts import Receipt
from lakewright.store import HeldLease, Pause, RunRecord, StepRecord, Store

__all__ = ["DatasetStatus", "Status", "read_status"]


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """One dataset as its receipts tell it."""

    name: str
    slices: int
    last_slice: str | None
    last_commit: datetime | None
    version: int | None
    rows: int | None
    """Rows written by the newest receipt."""
    state: str
    """ok, failed, refused, skipped, running, or lost: how its newest step ended."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What ``lakewright status`` shows."""

    runs: list[RunRecord]
    datasets: list[DatasetStatus]
    leases: list[HeldLease]
    open_steps: list[StepRecord]
    findings: list[Finding]
    paused: list[Pause] = field(default_factory=list)


def read_status(store: Store, now: datetime) -> Status:
    """A few indexed queries, and two per dataset, however many receipts there are."""
    return Status(
        runs=store.runs.latest(limit=5),
        datasets=_datasets(store),
        leases=store.leases.held(now),
        open_steps=store.steps.open_steps(),
        findings=store.findings.latest(limit=5),
        paused=store.schedules.paused(),
    )


def _datasets(store: Store) -> list[DatasetStatus]:
    receipts, steps, slices = store.receipts.newest(), store.steps.newest(), store.receipts.count_live()
    found = []
    known = {*receipts, *(name for name in steps if not name.startswith("source:"))}
    for name in sorted(name for name in known if not name.startswith("_lakewright/")):
        newest, step = receipts.get(name), steps.get(name)
        ended = "ok" if step is None or step.state == "recovered" else step.state
        found.append(
            DatasetStatus(
                name=name,
                slices=slices.get(name, 0),
                last_slice=None if newest is None else newest.slice_id,
                last_commit=None if newest is None else newest.committed_at,
                version=None if newest is None else newest.version,
                rows=None if newest is None else newest.rows,
                state="running" if ended == "open" else ended,
                note=_note(newest, step),
            )
        )
    return found


def _note(newest: Receipt | None, step: StepRecord | None) -> str:
    """What went wrong last, why a slice was left out, or that the newest one is partial."""
    if step is not None and step.error is not None:
        return first_words(step.error, most=None)
    if step is not None and step.state == "skipped":
        return f"{step.slice_id} {step.reason}"
    if newest is not None and newest.counters.is_partial and newest.counters.completeness is not None:
        return f"{newest.slice_id} is partial: {newest.counters.completeness.in_words()}"
    return ""
