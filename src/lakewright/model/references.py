"""How a step refers to an input: which part of it, at which version, and what makes the step stale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lakewright.errors import ConfigurationError
from lakewright.model.times import parse_duration

__all__ = ["AsOf", "Latest", "Lookback", "Pinned", "Previous", "Reference", "SameSlice", "Whole"]

Empty: TypeAlias = Literal["allow", "refuse"]
"""Whether a reference without any rows may be read: what is joined with it has nothing but NULLs."""


def _check_empty(name: str, empty: str) -> None:
    if empty not in ("allow", "refuse"):
        raise ConfigurationError(f"{name}: empty is 'allow' or 'refuse', not {empty!r}.")


@dataclass(frozen=True, slots=True)
class SameSlice:
    """The rows of the slice being made; the default where both sides have an event time (or arrivals)."""

    dataset: str | None = None


@dataclass(frozen=True, slots=True)
class Lookback:
    """The slice being made and the stretch before it: ``Lookback("30 minutes")``."""

    reach: str
    dataset: str | None = None

    def __post_init__(self) -> None:
        parse_duration(self.reach)


@dataclass(frozen=True, slots=True)
class Previous:
    """The nearest earlier slice of the step's own output; an empty frame where there is none.

    Before the first slice there is no table to tell the columns of that empty frame: the dataset's contract does,
    or ``schema`` (DDL text, such as ``"user_id string, pages bigint"``).
    """

    dataset: str | None = None
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class AsOf:
    """Every version of a reference that was valid within the slice; ``join_as_of`` picks one per row."""

    column: str
    dataset: str | None = None
    empty: Empty = field(default="allow", repr=False)

    def __post_init__(self) -> None:
        _check_empty("AsOf", self.empty)


@dataclass(frozen=True, slots=True)
class Whole:
    """All of the input as it is when the slice is made; a later change does not make the slice stale."""

    dataset: str | None = None
    empty: Empty = field(default="allow", repr=False)

    def __post_init__(self) -> None:
        _check_empty("Whole", self.empty)


@dataclass(frozen=True, slots=True)
class Pinned:
    """All of the input at the version of the slice's first receipt, however often the slice is repeated."""

    dataset: str | None = None
    empty: Empty = field(default="allow", repr=False)

    def __post_init__(self) -> None:
        _check_empty("Pinned", self.empty)


@dataclass(frozen=True, slots=True)
class Latest:
    """All of the input as it is now, also in a backfill; ``plan`` warns that January may see December's values."""

    dataset: str | None = None
    empty: Empty = field(default="allow", repr=False)

    def __post_init__(self) -> None:
        _check_empty("Latest", self.empty)


Reference: TypeAlias = SameSlice | Lookback | Previous | AsOf | Whole | Pinned | Latest
