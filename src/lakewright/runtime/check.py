"""Check: one thing that was looked at before a run needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``cure`` says what to do unless it is ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    cure: str | None = None
