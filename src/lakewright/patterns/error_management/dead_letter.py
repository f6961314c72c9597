"""Dead-Letter: set the rows that cannot be processed aside and keep the job going.

Problem:
    One malformed row makes the job fail, and every rerun fails at the same row.
Guarantee:
    Each input row is in exactly one of ``valid`` and ``rejected``, and a rejected row names all the rules that
    it broke. In a pipeline the rejected rows are committed before anything is published, are replaced with
    their slice when it is repeated, and a share above ``stop_above`` publishes nothing.
Consequences:
    - Rules must be deterministic: they are asked when rows are set aside, and again when the others are written.
    - Both frames are lazy: using both reads the input twice, so cache a costly input.
    - A wrong rule diverts good rows: watch the share of rejected rows and set a limit.
    - Error-safe functions (``try_cast``) hide an error as NULL: ``survives`` makes a rule that compares input and
      output.
    - Sessions and order suffer while rows lie aside: a replay lists the slices that it touches. Where consumers cannot
      read a slice again, ``replay="never"`` refuses it; ``warn_per_key`` tells of keys that fail again and again.
    - A user's function that raises fails the whole batch: ``tolerant`` makes it a rule that sets the one row aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypeAlias

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.model.columns import business_columns, taken_names
from lakewright.model.protocols import GuardContext, Guarded, SideRows
from lakewright.model.sql import quoted
from lakewright.model.times import parse_duration
from lakewright.patterns.error_management.steady_rules import refuse_unsteady
from lakewright.patterns.error_management.tolerant_function import FunctionRule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MARKS", "DeadLetter", "DeadLetterSplit", "Rule", "mark_replayed", "split_dead_letters", "survives"]

_MARKED_BY = {
    "replay_job": ("_lw_replay_job", "STRING"),
    "replay_version": ("_lw_replay_version", "STRING"),
    "replayed_at": ("_lw_replayed_at", "TIMESTAMP"),
}
MARKS = ("was_dead_lettered", *_MARKED_BY)
"""The columns that ``mark=True`` adds."""

Rule: TypeAlias = "str | Column | Callable[[], Column]"
"""A condition that a good row fulfils: SQL text, a column, or (in a project file, where no session runs yet) a
function that returns one."""


@dataclass(frozen=True, slots=True)
class DeadLetterSplit:
    """The two halves of an input."""

    valid: DataFrame
    rejected: DataFrame


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The guard of the pipeline layer.

    ``stop_above`` is the share of rejected rows (0 to 1), ``stop_above_rows`` their number, above which the step
    stops and publishes nothing. A dead letter tells which record it is (file, version, hash) and holds the columns
    that the rules read: judging then reads no others, and the whole row stays in the input. ``record="whole"`` copies
    all columns, which costs a second pass over all of them; ``record="identity"`` copies none. Where the input is not
    bronze, nothing but the row itself tells it, and all columns are copied.

    ``warn_above`` and ``warn_above_rows`` are lower limits that only tell people. With ``mark`` the step sees whether a
    row was a dead letter and came back (``was_dead_lettered``, ``replay_job``, ``replay_version``, ``replayed_at``).
    Letters of records that were first set aside longer ago than ``keep`` are retired by `lakewright maintain`, and what
    is told of those that were closed so long ago is forgotten.

    ``replay="never"`` is for a dataset whose consumers cannot read a slice again: its letters stay evidence, and no
    replay of another dataset makes its slices anew. ``warn_per_key=("sensor_id", 5)`` tells people, slice by slice, of
    which key five or more letters are; the column is then copied into the letters.
    """

    rules: Mapping[str, Rule]
    stop_above: float | None = None
    stop_above_rows: int | None = None
    record: Literal["rules", "whole", "identity"] = "rules"
    warn_above: float | None = None
    warn_above_rows: int | None = None
    mark: bool = False
    keep: str | None = None
    replay: Literal["allow", "never"] = "allow"
    warn_per_key: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if not self.rules:
            raise ConfigurationError("Dead-Letter: 'rules' is empty. Name at least one rule.")
        for option in ("stop_above", "warn_above"):
            share, rows = getattr(self, option), getattr(self, f"{option}_rows")
            if share is not None and not 0 <= share <= 1:
                raise ConfigurationError(f"Dead-Letter: {option} is a share from 0 to 1, not {share}.")
            if rows is not None and rows < 0:
                raise ConfigurationError(f"Dead-Letter: {option}_rows is 0 or more, not {rows}.")
        if self.keep is not None:
            parse_duration(self.keep)
        if self.replay not in ("allow", "never"):
            raise ConfigurationError(f"Dead-Letter: replay is 'allow' or 'never', not {self.replay!r}.")
        if self.warn_per_key is not None:
            _check_per_key(self.warn_per_key)
        if self.record not in ("rules", "whole", "identity"):
            raise ConfigurationError(f"Dead-Letter: record is 'rules', 'whole' or 'identity', not {self.record!r}.")
        for name in self.rules:
            if not name or len(name) > 100 or any(c in name for c in "/\\'\"`\n"):
                raise ConfigurationError(f"Dead-Letter: {name!r} is no name for a rule; use words and underscores.")
        refuse_unsteady("Dead-Letter", self.rules)

    def on_batch(self, frame: DataFrame, ctx: GuardContext) -> Guarded:
        kept, columns = _keeps_all(self.rules), business_columns(frame.columns)
        if self.warn_per_key is not None and self.warn_per_key[0] not in columns:
            raise MissingColumnsError(
                pattern="Dead-Letter (warn_per_key)", missing=[self.warn_per_key[0]], present=columns
            )
        side = SideRows(
            broken=~kept,
            reasons=_reasons(self.rules),
            keep=self._keep(columns, told=bool(ctx.record_columns)),
            stop_above=self.stop_above,
            stop_above_rows=self.stop_above_rows,
            error=_errors(self.rules),
            conditions=lambda: {name: _kept(rule) for name, rule in self.rules.items()},
        )
        valid = frame.where(kept)
        return Guarded(kept=mark_replayed(valid) if self.mark else valid, side=side)

    def _keep(self, columns: Sequence[str], *, told: bool) -> tuple[str, ...]:
        if self.record == "whole" or not told:
            return tuple(columns)
        read = _columns_read(self.rules, columns) if self.record == "rules" else ()
        return read if self.warn_per_key is None else tuple(dict.fromkeys((*read, self.warn_per_key[0])))


def split_dead_letters(
    df: DataFrame,
    *,
    rules: Mapping[str, Rule],
    reasons_column: str = "broken_rules",
    error_column: str | None = None,
) -> DeadLetterSplit:
    """Part the rows that keep every rule (a condition that a good row fulfils) from the others.

    ``error_column`` receives what a user's function said that raised on the row (see ``tolerant``).

    >>> visits = spark.createDataFrame([("v1", 3), ("v2", -1)], "visit string, pages int")
    >>> split = split_dead_letters(visits, rules={"some_pages": "pages > 0"})
    >>> split.rejected.collect()
    [Row(visit='v2', pages=-1, broken_rules=['some_pages'])]
    """
    from pyspark.sql import functions as F

    if not rules:
        raise ConfigurationError("Dead-Letter: 'rules' is empty. Name at least one rule.")
    refuse_unsteady("Dead-Letter", rules)
    present = df.columns
    for option, name in (("reasons_column", reasons_column), ("error_column", error_column)):
        if name is not None and (taken := taken_names([name], present)):
            raise ConfigurationError(
                f"Dead-Letter: the input already has a column '{taken[0]}', which would be "
                f"overwritten. Choose another name in '{option}'."
            )
    kept = _keeps_all(rules)
    told = [_reasons(rules).alias(reasons_column)]
    if error_column is not None:
        error = _errors(rules)
        told.append((F.lit(None).cast("string") if error is None else error).alias(error_column))
    return DeadLetterSplit(valid=df.where(kept), rejected=df.where(~kept).select("*", *told))


def mark_replayed(df: DataFrame) -> DataFrame:
    """Add whether a row was a dead letter, and the job, its version and the time of the replay that brought it back.

    What came back is told by the system columns that a replay leaves; without those no row was.

    >>> mark_replayed(spark.sql("SELECT 'v1' AS visit")).collect()
    [Row(visit='v1', was_dead_lettered=False, replay_job=None, replay_version=None, replayed_at=None)]
    """
    present = df.columns
    if taken := taken_names(MARKS, present):
        raise ConfigurationError(
            f"Dead-Letter: the input already has a column '{taken[0]}', which mark=True would overwrite. Rename it."
        )
    told = {name: told if told in present else "NULL" for name, (told, _) in _MARKED_BY.items()}
    marks = [f"CAST({told[name]} AS {kind}) AS {name}" for name, (_, kind) in _MARKED_BY.items()]
    return df.selectExpr("*", f"{told['replayed_at']} IS NOT NULL AS was_dead_lettered", *marks)


def survives(inputs: Sequence[str], result: str) -> str:
    """The rule that an expression did not lose its input: some input is there, and the result is not NULL.

    A row in which every input is NULL keeps the rule: there was nothing to lose.

    >>> survives(["version"], "try_cast(version AS int)")
    '(`version` IS NULL) OR (try_cast(version AS int)) IS NOT NULL'
    """
    if isinstance(inputs, str) or not inputs:
        raise ConfigurationError("Dead-Letter: survives() takes a list of at least one input column.")
    absent = " AND ".join(f"{quoted(name)} IS NULL" for name in inputs)
    return f"({absent}) OR ({result}) IS NOT NULL"


def _check_per_key(given: tuple[str, int]) -> None:
    shaped = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], int)
    if not shaped or not given[0] or given[1] < 1:
        raise ConfigurationError(
            f"Dead-Letter: warn_per_key is a column and a number from 1 on, such as ('sensor_id', 5), not {given!r}."
        )


def _keeps_all(rules: Mapping[str, Rule]) -> Column:
    """Whether a row keeps every rule, never NULL: one condition, far cheaper per row than the list of names."""
    return reduce(lambda one, other: one & other, map(_kept, rules.values()))


def _reasons(rules: Mapping[str, Rule]) -> Column:
    """The names of the rules that a row breaks."""
    from pyspark.sql import functions as F

    return F.array_compact(F.array(*[F.when(~_kept(rule), F.lit(name)) for name, rule in rules.items()]))


def _kept(rule: Rule) -> Column:
    from pyspark.sql import functions as F

    given = _given(rule)
    # NULL counts as broken: in doubt a row is set aside, never lost from both halves.
    return F.coalesce(F.expr(given) if isinstance(given, str) else given, F.lit(False))


def _columns_read(rules: Mapping[str, Rule], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that stand in the text of a rule; one that is only called like something else there does no harm."""
    text = "\n".join(str(_given(rule)) for rule in rules.values())
    return tuple(c for c in columns if re.search(rf"(?<!\w){re.escape(c)}(?!\w)", text, re.IGNORECASE))


def _errors(rules: Mapping[str, Rule]) -> Column | None:
    """What the functions among the rules said that raised on a row, the first of them; None where there are none."""
    from pyspark.sql import functions as F

    told = [rule.error() for rule in rules.values() if isinstance(rule, FunctionRule)]
    return F.coalesce(*told) if told else None


def _given(rule: Rule) -> str | Column:
    return rule() if callable(rule) else rule
