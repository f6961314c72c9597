"""Findings: what checks, guards and detectors noticed, kept for those who look later.

One that no run made or has told of yet has no run: it waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, insert, select, update

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
        query = select(*_COLUMNS).order_by(findings.c.finding_id.desc()).limit(limit)
        if dataset is not None:
            query = query.where(findings.c.dataset == dataset)
        if run_id is not None:
            query = query.where(findings.c.run_id == run_id)
        return self._many(query)

    def waiting(self, subject: str, limit: int = 50) -> list[Finding]:
        """What no run has told of yet, oldest first."""
        return self._many(select(*_COLUMNS).where(_waits(subject)).order_by(findings.c.finding_id).limit(limit))

    def tell(self, subject: str, *, run_id: str, conn: Connection | None = None) -> list[Finding]:
        """What no run has told of yet, oldest first; from now on it belongs to this run."""
        with writing(self._engine, conn) as c:
            query = select(*_COLUMNS).where(_waits(subject)).order_by(findings.c.finding_id)
            found = [Finding(**row._mapping) for row in c.execute(query)]
            c.execute(update(findings).where(_waits(subject)).values(run_id=run_id))
        return found

    def told(self, finding: Finding, *, run_id: str, conn: Connection | None = None) -> None:
        """One of those that waited was told by this run."""
        same = and_(findings.c.dataset == finding.dataset, findings.c.message == finding.message)
        with writing(self._engine, conn) as c:
            c.execute(update(findings).where(_waits(finding.subject), same).values(run_id=run_id))

    def _many(self, query: Select[Any]) -> list[Finding]:
        with reading(self._engine) as c:
            return [Finding(**row._mapping) for row in c.execute(query)]


_COLUMNS = [column for column in findings.c if column.name not in ("finding_id", "run_id")]


def _waits(subject: str) -> ColumnElement[bool]:
    return and_(findings.c.subject == subject, findings.c.run_id.is_(None))
