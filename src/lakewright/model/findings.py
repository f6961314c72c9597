"""Finding: what a check, guard or detector noticed, in words for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = ["Finding", "Severity"]

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about one dataset, with the cure where there is one."""

    dataset: str
    subject: str
    message: str
    severity: Severity = "warning"
    slice_id: str | None = None
    cure: str | None = None
    found_at: datetime | None = None
