"""What was counted while one visits file was written; the truth is the sum of these."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from platforms.blog.generator.reference import COUNTRIES, PAGES

__all__ = ["Kept", "Tally"]


@dataclass
class Kept:
    """Sound rows of one event day, each counted once, by the place of their page and of their country."""

    pages: list[int] = field(default_factory=lambda: [0] * len(PAGES))
    countries: list[int] = field(default_factory=lambda: [0] * (len(COUNTRIES) + 1))

    def plus(self, other: Kept) -> Kept:
        return Kept(
            [mine + theirs for mine, theirs in zip(self.pages, other.pages, strict=True)],
            [mine + theirs for mine, theirs in zip(self.countries, other.countries, strict=True)],
        )

    @property
    def rows(self) -> int:
        return sum(self.pages)

    @property
    def unknown_user(self) -> int:
        """Only a user whom nobody knows has no country."""
        return self.countries[-1]


@dataclass
class Tally:
    """What is in one file: its faulty and repeated lines by class, its sound rows by event day."""

    day: int
    lines: int
    held_back: bool
    faults: Counter[str] = field(default_factory=Counter)
    kept: dict[int, Kept] = field(default_factory=dict)
