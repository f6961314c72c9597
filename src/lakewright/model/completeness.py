"""Completeness: how many of the parts that a slice should be made of are there, and which are not.

It travels in the commit and is kept with the receipt, so that it is known without reading a row, and stays known after
the slice was made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakewright.errors import InputError

__all__ = ["Completeness", "measure_completeness"]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Completeness:
    """``present`` of ``expected`` parts; ``missing`` names the others, where they have names."""

    expected: int
    present: int
    missing: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.expected < 1:
            raise InputError(f"Completeness: {self.expected} parts are expected. There must be at least one.")
        if not 0 <= self.present <= self.expected:
            raise InputError(
                f"Completeness: {self.present} parts are there, and {self.expected} are expected. A count that cannot "
                "be is not taken as complete. Nothing was published.",
                hint="Are parts counted twice, or of another day?",
            )

    @property
    def share(self) -> float:
        return self.present / self.expected

    @property
    def is_complete(self) -> bool:
        return self.present == self.expected

    def in_words(self) -> str:
        """For people.

        >>> Completeness(4, 2, ("2026-01-05T01", "2026-01-05T03")).in_words()
        '2 of 4 parts are there (50 %), without 2026-01-05T01, 2026-01-05T03'
        """
        told = f"{self.present} of {self.expected} parts are there ({self.share:.0%})".replace("%", " %")
        if not self.missing:
            return told
        more = f" and {len(self.missing) - _SHOWN} more" if len(self.missing) > _SHOWN else ""
        return f"{told}, without {', '.join(self.missing[:_SHOWN])}{more}"

    @classmethod
    def from_told(cls, told: object) -> Completeness | None:
        """What a commit or a receipt tells; None where it tells nothing of it."""
        if not isinstance(told, Mapping):
            return None
        return cls(int(told["expected"]), int(told["present"]), tuple(told.get("missing") or ()))

    def as_told(self) -> dict[str, object]:
        """As it travels in a commit."""
        return {"expected": self.expected, "present": self.present, "missing": list(self.missing)}


def measure_completeness(present: Iterable[object], *, expected: Iterable[object] | int) -> Completeness:
    """Count the parts that are there; those that nobody expects do not count, and none counts twice.

    Where only their number is known, more of them than that is an error.

    >>> measure_completeness([0, 2, 24, 2], expected=range(4))
    Completeness(expected=4, present=2, missing=('1', '3'))
    """
    found = set(present)
    if isinstance(expected, int):
        return Completeness(expected, len(found))
    wanted = list(dict.fromkeys(expected))
    missing = tuple(str(part) for part in wanted if part not in found)
    return Completeness(len(wanted), len(wanted) - len(missing), missing)
