"""Identity: what a commit carries of what was known before the write.

It travels as versioned JSON in Delta's ``userMetadata``; the transaction's application id and version make
Delta skip a commit whose number is not higher than the last one of the same slice and part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from lakewright.model.arrivals import JsonValue
from lakewright.model.completeness import Completeness
from lakewright.model.receipts import Filtered, ReceiptKind

__all__ = ["RESTORE_PART", "REWIND_PART", "Identity", "app_id"]

RESTORE_PART = "restore"
"""The part under which an attempt tells that the table went back before it was merged into."""

REWIND_PART = "rewind"
"""The part under which a stream's rewind deletes what will be read again."""

_VERSION = 1
_LAST_JUDGED = 2**31 - 1
"""The highest place that fits beside a lease's number."""
_JUDGED = "judged."
"""How the part begins under which a micro-batch sets rows aside."""


def app_id(dataset: str, slice_id: str, part: str) -> str:
    """The name under which Delta remembers the highest number of one slice in one table."""
    return f"lw:{dataset}:{slice_id}:{part}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes what: the owner dataset, its slice, the lease's number and the pinned inputs."""

    dataset: str
    slice_id: str
    number: int
    run_id: str
    kind: ReceiptKind = "data"
    attempt: int = 1
    part: str = "main"
    inputs: Mapping[str, int] = field(default_factory=dict)
    code: str | None = None
    run_time: str | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    """What recovery needs and the log alone cannot tell: an arrival's window, a restore's target."""

    @property
    def app_id(self) -> str:
        return app_id(self.dataset, self.slice_id, self.part)

    @property
    def transaction(self) -> tuple[str, int]:
        """What Delta compares: a name, and a number that must rise.

        An attempt counts by its lease's number; a micro-batch by its place in its generation, so that a repeat of the
        same one, by whomever, is skipped; a rewind, whatever it deletes, by its number among all of the dataset's.
        """
        if "batch" in self.details:
            name = app_id(self.dataset, f"generation-{self.details['generation']}", self.part)
            place = int(str(self.details["batch"]))
            # One name for all batches of a generation, since Delta keeps every name: the number rises with both.
            judged = (min(place, _LAST_JUDGED) << 32) + self.number
            return name, judged if self.part.startswith(_JUDGED) else place
        if self.part == REWIND_PART:
            # One name for all rewinds of a dataset, wherever they go back to: a later one counts.
            return app_id(self.dataset, self.part, self.part), self.number
        return self.app_id, self.number

    @property
    def made_from(self) -> str | None:
        """A name for what decides on the rows: code, inputs and run time. None where the code is not known."""
        if self.code is None:
            return None
        told = json.dumps([self.dataset, self.slice_id, self.code, self.run_time, dict(self.inputs)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def filtered(self) -> Filtered | None:
        """What the step's filters removed, counted before the write."""
        found = self.details.get("filtered")
        return Filtered(**found) if isinstance(found, dict) else None  # type: ignore[arg-type]

    @property
    def filtered_by_input(self) -> dict[str, Filtered]:
        """The same of the inputs that the step's account is not about."""
        found = self.details.get("filtered_by_input")
        return {name: Filtered(**one) for name, one in found.items()} if isinstance(found, dict) else {}  # type: ignore[arg-type]

    @property
    def proof(self) -> str | None:
        """Of a copy that was proven before it was committed: what both sides have in common."""
        found = self.details.get("proof")
        return found if isinstance(found, str) else None

    @property
    def completeness(self) -> Completeness | None:
        """Of which of its parts the slice was made, where it may lack some."""
        return Completeness.from_told(self.details.get("completeness"))

    @property
    def watermark(self) -> Mapping[str, JsonValue]:
        """The watermark that a batch left which a detector of late rows judged; empty where none did."""
        found = self.details.get("lateness")
        after = found.get("after") if isinstance(found, dict) else None
        return after if isinstance(after, dict) else {}

    def as_part(self, part: str, kind: ReceiptKind | None = None) -> Identity:
        """The same attempt, writing another table."""
        return replace(self, part=part, kind=kind or self.kind)

    def as_judge(self, part: str) -> Identity:
        """The same attempt, setting rows aside.

        Of a micro-batch its lease's number counts here as well: one that was not published is judged anew by its next
        attempt, perhaps by other rules, and what was set aside of it then replaces what was before.
        """
        return self.as_part(f"{_JUDGED}{part}" if "batch" in self.details else part)

    def to_json(self) -> str:
        return json.dumps(
            {
                "lakewright": _VERSION,
                "kind": self.kind,
                "dataset": self.dataset,
                "slice": self.slice_id,
                "part": self.part,
                "number": self.number,
                "attempt": self.attempt,
                "run": self.run_id,
                "run_time": self.run_time,
                "inputs": dict(self.inputs),
                "code": self.code,
                "details": dict(self.details),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | None) -> Identity | None:
        """The identity in a commit's metadata, or None where somebody else wrote it."""
        if not text or '"lakewright"' not in text:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("lakewright") != _VERSION:
            return None
        return cls(
            dataset=found["dataset"],
            slice_id=found["slice"],
            number=found["number"],
            run_id=found["run"],
            kind=cast(ReceiptKind, found["kind"]),
            attempt=found["attempt"],
            part=found["part"],
            inputs=found["inputs"],
            code=found["code"],
            run_time=found.get("run_time"),
            details=found.get("details", {}),
        )
