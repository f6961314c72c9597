"""Findings: what checks, guards and detectors noticed, kept for those who look later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select

from lakewright.model.findings import Finding
from lakewright.store.dialect import reading, writing
from lakewright.store.tables import findings

__all__ = ["Findings"]


class Findings:
    """A list that only grows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(
        self, found: Sequence[Finding], *, run_id: str | None, now: datetime, conn: Connection | None = None
    ) -> None:
        """Keep what was found; one without a time of its own was found now."""
        rows = [
            {
                "dataset": finding.dataset,
                "slice_id": finding.slice_id,
                "subject": finding.subject,
                "severity": finding.severity,
                "message": finding.message,
                "cure": finding.cure,
                "found_at": finding.found_at or now,
                "run_id": run_id,
            }
            for finding in found
        ]
        if rows:
            with writing(self._engine, conn) as c:
                c.execute(insert(findings), rows)

    def latest(self, dataset: str | None = None, *, run_id: str | None = None, limit: int = 50) -> list[Finding]:
        """The newest first."""
        columns = [column for column in findings.c if column.name not in ("finding_id", "run_id")]
        query = select(*columns).order_by(findings.c.finding_id.desc()).limit(limit)
        if dataset is not None:
            query = query.where(findings.c.dataset == dataset)
        if run_id is not None:
            query = query.where(findings.c.run_id == run_id)
        with reading(self._engine) as c:
            return [Finding(**row._mapping) for row in c.execute(query)]
