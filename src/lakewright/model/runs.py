"""Run: one execution of a pipeline, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lakewright.model.times import Interval
from lakewright.model.triggers import Event

__all__ = ["Reason", "Run", "RunState", "StepState"]

Reason = Literal["scheduled", "manual", "backfill", "late", "replay", "trigger"]
RunState = Literal["running", "ok", "failed", "refused", "interrupted", "lost", "skipped"]
StepState = Literal["open", "ok", "recovered", "failed", "refused", "skipped", "interrupted", "lost"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a step may know of the run that calls it; ``time`` is the run's own clock, the same in each attempt."""

    run_id: str
    pipeline: str
    time: datetime
    reason: Reason = "manual"
    attempt: int = 1
    interval: Interval | None = field(default=None)
    """The event time of the slice being made, where it has one."""
    event: Event | None = field(default=None)
    """What started it, where its reason is ``trigger`` or ``replay``."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What it was told by name, or the defaults: ``run.parameters["output_type"]``."""
