"""Local Sequencer: small named steps, one after another, instead of one big unit.

Problem:
    A job has swollen over the years, fails often, and each failure starts it from the beginning.
Guarantee:
    Steps run strictly in order, and none runs after a failed one. A step with a ``cut`` keeps its result in a
    Delta table: a repeat of the same run goes on from the last cut that was written, calls no step before it,
    and gives that table no new version. With or without cuts the result is the same.
Consequences:
    - Put a cut after the most expensive step; without one a repeat computes everything again. A step that is declared
      ``costly`` and keeps nothing for those after it is warned of.
    - What must happen as one belongs into one step. A pipeline's datasets are the other layer of this pattern:
      each is restartable by itself, and a step's private outputs commit before its public one.
    - ``run`` names the input: the same run on other rows would go on from the old cut.
    - Steps go with streams too, without cuts: a stream goes on from its checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError, LakewrightError, StepFailed, name_and_words
from lakewright.model.overwrites import overwriting
from lakewright.patterns.idempotency.delta_paths import table_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Step", "run_in_sequence"]


@dataclass(frozen=True, slots=True)
class Step:
    """A named function of a frame; with ``cut``, the path of the Delta table that keeps its result."""

    name: str
    function: Callable[[DataFrame], DataFrame]
    cut: str | None = None
    costly: bool = False
    """Whether a repeat should not pay for it again."""


def run_in_sequence(df: DataFrame, *, steps: Sequence[Step], run: str) -> DataFrame:
    """The frame after the last step. Runs a job for each cut that this run has not written yet; the rest is lazy.

    >>> visits = spark.createDataFrame([("v1", 3), ("v2", -1)], "visit string, pages int")
    >>> steps = [Step("keep_read", lambda df: df.where("pages > 0"), cut=folder),
    ...          Step("add_minutes", lambda df: df.selectExpr("*", "pages * 2 AS minutes"))]
    >>> run_in_sequence(visits, steps=steps, run="2026-01-05").collect()
    [Row(visit='v1', pages=3, minutes=6)]
    """
    _check(steps)
    _refuse_cut_stream(df, steps)
    spark = df.sparkSession
    first, frame = 0, df
    for position in range(len(steps), 0, -1):
        if (kept := _kept(spark, steps[position - 1], run)) is not None:
            first, frame = position, kept
            break
    for position, step in enumerate(steps[first:], start=first + 1):
        frame = _call(step, frame, f"step '{step.name}' ({position} of {len(steps)})", run)
    return frame


def _check(steps: Sequence[Step]) -> None:
    if not steps:
        raise ConfigurationError("Local Sequencer: 'steps' is empty.")
    for what, values in (("name", [s.name for s in steps]), ("cut", [s.cut for s in steps if s.cut])):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ConfigurationError(f"Local Sequencer: two steps have the {what} '{twice[0]}'. Nothing was started.")
    for step in steps[:-1]:
        if step.costly and step.cut is None:
            warnings.warn(
                f"Local Sequencer: step '{step.name}' is costly and keeps nothing: whatever fails after it pays for it "
                f"again. Give it a cut: Step('{step.name}', ..., cut='/a/folder').",
                stacklevel=3,
            )


def _refuse_cut_stream(df: DataFrame, steps: Sequence[Step]) -> None:
    cut = next((step.name for step in steps if step.cut), None)
    if cut is not None and df.isStreaming:
        raise ConfigurationError(
            f"Local Sequencer: step '{cut}' has a cut, and the input is a stream. Nothing was started.",
            hint="Leave the cut out: a stream goes on from its checkpoint. Or give the first part a query of its own.",
        )


def _call(step: Step, frame: DataFrame, what: str, run: str) -> DataFrame:
    try:
        result = step.function(frame)
        if not hasattr(result, "unionByName"):  # `write` would raise on a stream
            raise StepFailed(
                f"Local Sequencer: {what} returned {type(result).__name__}, not a DataFrame.",
                hint="Does the function end with `return`?",
            )
        return result if step.cut is None else _keep(result, step, step.cut, run)
    except LakewrightError:
        raise
    except Exception as error:
        raise StepFailed(
            f"Local Sequencer: {what} failed in run {run}: {name_and_words(error)} No later step was run."
        ) from error


def _keep(frame: DataFrame, step: Step, cut: str, run: str) -> DataFrame:
    writer = overwriting(frame).option("overwriteSchema", "true")
    writer.option("userMetadata", _mark(step, run)).save(cut)
    kept = _kept(frame.sparkSession, step, run)
    assert kept is not None
    return kept


def _kept(spark: SparkSession, step: Step, run: str) -> DataFrame | None:
    """What an earlier attempt of this run kept, at exactly that version; None where it did not come so far."""
    if step.cut is None or not table_exists(spark, step.cut):
        return None
    history = spark.sql(f"DESCRIBE HISTORY delta.`{step.cut}`").select("version", "userMetadata")
    version = next((row[0] for row in history.collect() if row[1] == _mark(step, run)), None)
    if version is None:
        return None
    return spark.read.format("delta").option("versionAsOf", version).load(step.cut)


def _mark(step: Step, run: str) -> str:
    return f"lakewright cut: {step.name}, run {run}"
