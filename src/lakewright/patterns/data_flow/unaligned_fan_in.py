"""Unaligned Fan-In: go on with the branches that succeeded, and say what is missing.

Problem:
    A day is built from hours, and one bad hour keeps the whole day from its readers, who would rather have the other
    23 now and the gap filled later.
Guarantee:
    A branch that fails is an outcome, not an error: the others are still processed. What is put together tells on each
    row whether it is approximate, and `Completeness` tells how many parts are there and which are not; more parts than
    there can be is an error. Where the rule is not met, and always where no branch succeeded, nothing is made: a
    fallback is called instead. In a pipeline a slice is made when the parts of its inputs that are due have been tried
    and the rule is met; its completeness is kept with the receipt; when a missing part comes, the slice is made anew
    from all of them, and the flag is lifted.
Consequences:
    - Readers may take a partial slice for a whole one: the flag, the completeness and a notice say so, or
      ``publish="private"`` keeps it from them until it is whole.
    - A rule that is not the default must be seen: ``lakewright plan`` shows it at the dataset.
    - Everything that is said of Aligned Fan-In holds: cap the branches, and put them together by name.
    - Hours that nobody wrote count as missing: a shop that is closed at night is never complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewright.errors import ConfigurationError, InputError
from lakewright.model.columns import taken_names
from lakewright.model.completeness import Completeness, measure_completeness
from lakewright.model.times import GRIDS, Grid
from lakewright.patterns.data_flow.aligned_fan_in import union_aligned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "AtLeast",
    "BranchResult",
    "Completeness",
    "FanInReport",
    "Publish",
    "Rule",
    "UnalignedFanIn",
    "collect_outcomes",
    "is_met",
    "measure_completeness",
    "rule_in_words",
    "union_unaligned",
]

_NAME = "Unaligned Fan-In"

Publish = Literal["labelled", "private"]
_Named = Literal["all", "all_done", "any"]


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The rule that so many parts have succeeded, or such a ``share`` of them (0.75)."""

    parts: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.parts is None) == (self.share is None):
            raise ConfigurationError(f"{_NAME}: AtLeast is given a number of parts or a share, one of them.")
        if self.parts is not None and (not isinstance(self.parts, int) or self.parts < 1):
            raise ConfigurationError(f"{_NAME}: AtLeast({self.parts!r}): a number of parts, from 1 on.")
        if self.share is not None and not 0 < self.share <= 1:
            raise ConfigurationError(f"{_NAME}: AtLeast(share={self.share!r}): above 0, and at most 1.")


Rule: TypeAlias = _Named | AtLeast
"""``"all"`` succeeded; ``"all_done"``: all were tried, and one succeeded; ``"any"``: one succeeded, whatever the others
do; or so many."""


@dataclass(frozen=True, slots=True)
class FanInReport:
    """What a fallback is told: which slice was not made, of what, and by which rule."""

    dataset: str
    slice_id: str
    completeness: Completeness
    rule: str


@dataclass(frozen=True, slots=True)
class UnalignedFanIn:
    """The option ``fan_in=`` of a dataset whose slices may be made of some of their parts.

    Parts are the slices (or event cells) of its inputs that lie in a slice: the 24 hours of a day.
    """

    rule: Rule = "all_done"
    flag: str = "is_approximate"
    """The column that tells on every row whether parts were missing."""
    publish: Publish = "labelled"
    """``labelled``: partial rows are public, with the flag; ``private``: they lie in ``<dataset>_partial`` alone."""
    fallback: Callable[[FanInReport], object] | None = None
    """Called, once for each state of the parts, where the rule is not met; without one a finding tells."""
    parts: Grid | None = None
    """How finely an input that is a source is cut into parts, where no other step needs it so: ``"hour"``."""

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts not in GRIDS:
            raise ConfigurationError(f"{_NAME}: parts is one of {', '.join(GRIDS)}, not {self.parts!r}.")
        if not isinstance(self.rule, AtLeast) and self.rule not in get_args(_Named):
            known = ", ".join(repr(name) for name in get_args(_Named))
            raise ConfigurationError(f"{_NAME}: rule is {known} or AtLeast(18), not {self.rule!r}.")
        if not isinstance(self.flag, str) or not self.flag.isidentifier() or self.flag.startswith("_"):
            raise ConfigurationError(f"{_NAME}: flag is the name of a column, not {self.flag!r}.")
        if self.publish not in get_args(Publish):
            raise ConfigurationError(f"{_NAME}: publish is 'labelled' or 'private', not {self.publish!r}.")
        if self.fallback is not None and not callable(self.fallback):
            raise ConfigurationError(f"{_NAME}: fallback is a function of a FanInReport, not {self.fallback!r}.")


def is_met(rule: Rule, found: Completeness) -> bool:
    """Whether a rule lets a slice be made; never where no part succeeded."""
    if isinstance(rule, AtLeast):
        needed = rule.parts if rule.parts is not None else (rule.share or 0) * found.expected
        return found.present >= max(needed, 1)
    return found.is_complete if rule == "all" else found.present > 0


def rule_in_words(rule: Rule) -> str:
    """For people.

    >>> rule_in_words(AtLeast(18)), rule_in_words("all_done")
    ('at least 18 parts', 'all parts tried, one there')
    """
    if isinstance(rule, AtLeast):
        return f"at least {rule.parts} parts" if rule.parts is not None else f"at least {rule.share:.0%} of the parts"
    return {"all": "all parts", "all_done": "all parts tried, one there", "any": "one part"}[rule]


@dataclass(frozen=True, slots=True)
class BranchResult:
    """How one branch ended: what it gave, or why it gave nothing."""

    ok: bool
    value: object = None
    error: Exception | None = None

    def __bool__(self) -> bool:
        return self.ok


def collect_outcomes(branches: Mapping[str, Callable[[], object] | DataFrame]) -> dict[str, BranchResult]:
    """Call every branch; one that raises is told as ``false``, and the others are still called.

    A frame is lazy: what fails only when its rows are computed fails later, unless the branch computes them.

    >>> outcomes = collect_outcomes({"00": lambda: 1, "01": lambda: 1 // 0, "02": lambda: 3})
    >>> {name: bool(outcome) for name, outcome in outcomes.items()}
    {'00': True, '01': False, '02': True}
    """
    if not branches:
        raise ConfigurationError(f"{_NAME}: there is no branch to run.")
    return {name: _outcome(branch) for name, branch in branches.items()}


def _outcome(branch: Callable[[], object] | DataFrame) -> BranchResult:
    if not callable(branch):
        return BranchResult(True, branch)
    try:
        return BranchResult(True, branch())
    except Exception as error:  # whatever a branch raises is its outcome
        return BranchResult(False, error=error)


def union_unaligned(
    outcomes: Mapping[str, BranchResult],
    *,
    expected: Iterable[str] | int | None = None,
    rule: Rule = "all_done",
    flag: str = "is_approximate",
    fallback: Callable[[Completeness], DataFrame] | None = None,
    allow_missing: bool = False,
) -> DataFrame:
    """The rows of the branches that succeeded, by column name, and on each row whether some are missing.

    ``expected`` are the names of all branches, or their number (without it: those that were tried); a branch that it
    does not name is left out. Where the rule is not met ``fallback`` gives the frame, or an error tells.

    >>> paris = spark.createDataFrame([("v1", 3)], "visit string, pages int")
    >>> outcomes = collect_outcomes({"paris": paris, "warsaw": lambda: 1 // 0})
    >>> union_unaligned(outcomes).collect()
    [Row(visit='v1', pages=3, is_approximate=True)]
    """
    from pyspark.sql import functions as F

    option = UnalignedFanIn(rule=rule, flag=flag)
    wanted = list(outcomes) if expected is None else expected if isinstance(expected, int) else list(expected)
    known = {name: one for name, one in outcomes.items() if isinstance(wanted, int) or name in wanted}
    found = measure_completeness((name for name, one in known.items() if one), expected=wanted)
    if not is_met(option.rule, found):
        if fallback is not None:
            return fallback(found)
        raise _not_met(known, found, option.rule)
    frames: dict[str, DataFrame] = {name: one.value for name, one in known.items() if one}  # type: ignore[misc]
    if wrong := [name for name, frame in frames.items() if not hasattr(frame, "unionByName")]:
        raise ConfigurationError(f"{_NAME}: the branch {wrong[0]} gave {frames[wrong[0]]!r}, which is no DataFrame.")
    together = union_aligned(frames, allow_missing=allow_missing)
    if taken := taken_names([flag], together.columns):
        raise ConfigurationError(
            f"{_NAME}: the branches already have a column {taken[0]}. Choose another name in 'flag'."
        )
    return together.withColumn(flag, F.lit(not found.is_complete))


def _not_met(outcomes: Mapping[str, BranchResult], found: Completeness, rule: Rule) -> InputError:
    failed = {name: one.error for name, one in outcomes.items() if not one}
    first = next(iter(failed.items()), None)
    why = "" if first is None else f" The first that failed: {first[0]} ({type(first[1]).__name__}: {first[1]})."
    error = InputError(
        f"{_NAME}: {found.in_words()}, and the rule is: {rule_in_words(rule)}.{why} Nothing was put together.",
        hint="Run the failed branches again, or give a fallback.",
    )
    error.__cause__ = None if first is None else first[1]
    return error
