"""What a run tells while it goes: events for whoever listens (a terminal, a test, a log)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lakewright.model.receipts import Receipt
from lakewright.model.runs import RunState, StepState

__all__ = [
    "DatasetDone",
    "DatasetStarted",
    "Event",
    "Listener",
    "Note",
    "Outcome",
    "RunSummary",
    "SliceDone",
    "SliceStarted",
]


@dataclass(frozen=True, slots=True)
class DatasetStarted:
    """A dataset has slices to make."""

    dataset: str
    slices: int


@dataclass(frozen=True, slots=True)
class SliceStarted:
    """One slice is being made."""

    dataset: str
    slice_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one slice ended."""

    dataset: str
    slice_id: str
    state: StepState
    reason: str
    seconds: float
    attempts: int = 1
    receipt: Receipt | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class SliceDone:
    """One slice has ended, well or not."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class DatasetDone:
    """Nothing is left to do for a dataset."""

    dataset: str
    state: Literal["ok", "fresh", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a line: a take-over, a retry, a recovered step, a warning."""

    message: str
    severity: Literal["info", "warning"] = "info"


Event: TypeAlias = DatasetStarted | SliceStarted | SliceDone | DatasetDone | Note
Listener: TypeAlias = Callable[[Event], None]


@dataclass
class RunSummary:
    """What a run did."""

    run_id: str
    state: RunState = "running"
    outcomes: list[Outcome] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def errors(self) -> list[BaseException]:
        return [o.error for o in self.outcomes if o.error is not None]

    @property
    def made(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.state in ("ok", "recovered")]

    def count(self, state: StepState) -> int:
        return sum(o.state == state for o in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed, 3 a guard refused and nothing else failed, 130 interrupted."""
        if self.state == "interrupted":
            return 130
        if self.state == "ok":
            return 0
        codes = {getattr(error, "exit_code", 1) for error in self.errors}
        return 3 if codes == {3} else 1

    def closing_line(self) -> str:
        """For people: `Done in 14.2 s. 6 ok, 1 warning, 0 failed, 0 skipped.`"""
        warnings = sum(note.severity == "warning" for note in self.notes)
        word = {"ok": "Done", "interrupted": "Interrupted"}.get(self.state, "Failed")
        skipped = len(self.skipped) + self.count("skipped")
        failed = len(self.outcomes) - len(self.made) - self.count("skipped")
        return (
            f"{word} in {self.seconds:.1f} s. {len(self.made)} ok, {warnings} warning{'s' if warnings != 1 else ''}, "
            f"{failed} failed, {skipped} skipped."
        )
