"""The conditions of an Exclusive Choice: by date, by the columns of an input, by a run parameter, by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from lakewright.errors import ConfigurationError, StepFailed
from lakewright.model.times import Interval, parse_time

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "ByDate",
    "ByMetadata",
    "ByParameter",
    "BySchema",
    "ChoiceFacts",
    "Condition",
    "Tests",
    "check_tests",
    "fulfilled",
]

_NAME = "Exclusive Choice"
Tests: TypeAlias = "Mapping[str, Callable[[StructType], bool]]"
"""Branch -> a test of columns that holds for it."""


@dataclass(frozen=True, slots=True)
class ChoiceFacts:
    """What a condition may know: everything but the rows."""

    slice_id: str
    time: datetime
    """The begin of the slice in event time, or the logical time of the run that its rows came with."""
    run_time: datetime
    interval: Interval | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    schema: StructType | None = None
    """The columns of the input that the condition names, as they are recorded or declared; None is unknown."""
    rows: int | None = None
    """Rows of that input in the slice, by its receipts; None is unknown."""


@runtime_checkable
class Condition(Protocol):
    """Names a branch."""

    @property
    def of(self) -> str | None:
        """The input whose columns and counters it wants to see."""

    @property
    def by_slice(self) -> bool:
        """Whether it goes by the slice alone: then it says the same each time, and what was made does not bind it."""

    def branch(self, facts: ChoiceFacts) -> object:
        """The name of the branch to follow."""

    def names(self) -> tuple[str, ...]:
        """The branches that it can name, as far as it tells."""

    def in_words(self) -> str:
        """The condition, for people."""

    def reason(self, facts: ChoiceFacts) -> str:
        """What it saw."""


@dataclass(frozen=True, slots=True)
class ByDate:
    """The old branch for slices that begin before the cutoff, the new one from it on."""

    cutoff: str | date | datetime
    before: str
    after: str
    of: str | None = field(default=None, init=False)
    by_slice: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cutoff", parse_time(self.cutoff))
        if self.before == self.after:
            raise ConfigurationError(f"{_NAME}: before and after the cutoff is the same branch '{self.before}'.")

    def branch(self, facts: ChoiceFacts) -> object:
        return self.after if facts.time >= parse_time(self.cutoff) else self.before

    def names(self) -> tuple[str, ...]:
        return (self.before, self.after)

    def in_words(self) -> str:
        return f"by date, from {_short(parse_time(self.cutoff))} on {self.after}, {self.before} before"

    def reason(self, facts: ChoiceFacts) -> str:
        side = "not before" if facts.time >= parse_time(self.cutoff) else "before"
        return f"{_short(facts.time)} is {side} {_short(parse_time(self.cutoff))}"


@dataclass(frozen=True, slots=True)
class BySchema:
    """The one branch whose test the columns of an input fulfil: as recorded in its log, or declared."""

    of: str | None
    when: Tests
    by_slice: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.of:
            raise ConfigurationError(f"{_NAME}: BySchema names the input whose columns decide.")
        check_tests(self.when)

    def branch(self, facts: ChoiceFacts) -> object:
        if facts.schema is None:
            raise StepFailed(
                f"{_NAME}: nothing tells the columns of {self.of} yet.", hint="Give it a schema or a contract."
            )
        return fulfilled(facts.schema, self.when)

    def names(self) -> tuple[str, ...]:
        return tuple(self.when)

    def in_words(self) -> str:
        return f"by the columns of {self.of}"

    def reason(self, facts: ChoiceFacts) -> str:
        names = [] if facts.schema is None else facts.schema.names
        return f"{self.of} has {len(names)} columns ({', '.join(names)})"


@dataclass(frozen=True, slots=True)
class ByParameter:
    """The branch that a run parameter names, as it is or by ``branches`` (value -> branch)."""

    parameter: str
    branches: Mapping[str, str] = field(default_factory=dict)
    of: str | None = field(default=None, init=False)
    by_slice: bool = field(default=False, init=False)

    def branch(self, facts: ChoiceFacts) -> object:
        value = facts.parameters.get(self.parameter)
        return None if value is None else self.branches.get(value, value)

    def names(self) -> tuple[str, ...]:
        return tuple(self.branches.values())

    def in_words(self) -> str:
        return f"by the parameter {self.parameter}"

    def reason(self, facts: ChoiceFacts) -> str:
        return f"{self.parameter} = {facts.parameters.get(self.parameter, 'not given')}"


@dataclass(frozen=True, slots=True)
class ByMetadata:
    """The branch that a function of the facts names."""

    choose: Callable[[ChoiceFacts], object]
    of: str | None = None
    by_slice: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not callable(self.choose):
            raise ConfigurationError(f"{_NAME}: ByMetadata takes a function of ChoiceFacts, not {self.choose!r}.")

    def branch(self, facts: ChoiceFacts) -> object:
        return self.choose(facts)

    def names(self) -> tuple[str, ...]:
        return ()

    def in_words(self) -> str:
        return f"as {getattr(self.choose, '__name__', 'a function')}() says"

    def reason(self, facts: ChoiceFacts) -> str:
        told = [f"slice {facts.slice_id}", *(f"{name} = {value}" for name, value in facts.parameters.items())]
        if self.of is not None:
            rows = "unknown" if facts.rows is None else f"{facts.rows:,}"
            told.append(f"{self.of} with {0 if facts.schema is None else len(facts.schema)} columns, {rows} rows")
        return ", ".join(told)


def fulfilled(schema: StructType, when: Tests) -> object:
    """The branch whose test holds; None for none, and a list where several do."""
    found = [name for name, test in when.items() if test(schema)]
    return found[0] if len(found) == 1 else found or None


def check_tests(when: Tests) -> None:
    if len(when) < 2 or not all(callable(test) for test in when.values()):
        raise ConfigurationError(f"{_NAME}: give a test of the columns for each of at least two branches.")


def _short(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}".removesuffix(" 00:00")
