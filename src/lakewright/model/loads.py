"""How sources are loaded: what a whole load must fulfil, and how one is cut by a column that rises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, runtime_checkable

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.protocols import Found, SourceContext

__all__ = ["CursorCut", "CutsByCursor", "CutsByFolder", "LoadLimits"]


@dataclass(frozen=True, slots=True)
class CursorCut:
    """How a source is cut by a rising column: up to its highest value, or in intervals that are over."""

    cursor: str
    every: timedelta | None = None
    overlap: timedelta | None = None
    """How far before what was taken it is read again, for rows that were committed late."""


@runtime_checkable
class CutsByCursor(Protocol):
    """A source that can be cut so."""

    def look_by(self, cut: CursorCut, ctx: SourceContext) -> Sequence[Found]:
        """The windows after the last one, in order; reads no row."""


@runtime_checkable
class CutsByFolder(Protocol):
    """A source of files that can be cut by its partition folders."""

    @property
    def ready(self) -> object | None:
        """How a folder is told to be complete; None where nobody can tell."""

    def look_by_folder(self, key: str, ctx: SourceContext) -> Sequence[Found]:
        """An arrival per complete partition ``key=...``, in order; reads no row."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """A load is refused that has too few rows, too few of those that were there, or rows that break a rule."""

    min_rows: int = 1
    max_loss: float | None = None
    """The share of the last load's rows that may be gone."""
    rules: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name -> a condition, in the SQL of the place where the rows are judged, that every row fulfils."""

    def __post_init__(self) -> None:
        if not isinstance(self.min_rows, int) or self.min_rows < 0:
            raise ConfigurationError(f"Full Loader: min_rows is a number from 0 on, not {self.min_rows!r}.")
        if self.max_loss is not None and not 0 <= self.max_loss <= 1:
            raise ConfigurationError(f"Full Loader: max_loss is a share from 0 to 1, not {self.max_loss!r}.")

    def asks_for_rows(self, rows_before: int | None) -> bool:
        """Whether anything has to be counted."""
        return bool(self.min_rows or self.rules or (self.max_loss is not None and rows_before))

    def refuse_bad(self, *, what: str, rows: int, rows_before: int | None, broken: Mapping[str, int]) -> None:
        """Refuse a load by the first thing that is wrong with it; ``broken`` counts rows by rule."""
        if rows < self.min_rows:
            raise InputError(
                f"{what}: the load has {_rows(rows)}, and min_rows is {self.min_rows:,}. The data was kept as it was.",
                hint="An empty or cut delivery is the usual cause: deliver it again. If so few are right: min_rows.",
            )
        if self.max_loss is not None and rows_before and rows < rows_before * (1 - self.max_loss):
            raise InputError(
                f"{what}: the load has {_rows(rows)} where there were {rows_before:,}: more than the share "
                f"{self.max_loss:g} of them would go (max_loss). The data was kept as it was.",
                hint="Look whether the delivery is whole. If so many are really gone, raise max_loss.",
            )
        for name, rule in self.rules.items():
            if broken.get(name):
                verb = "breaks" if broken[name] == 1 else "break"
                raise InputError(
                    f"{what}: {_rows(broken[name])} of {rows:,} {verb} the rule '{name}' ({rule}). "
                    "The data was kept as it was.",
                    hint="Mend the delivery; or take the rule out, and set such rows aside with a Dead-Letter below.",
                )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
