"""Which rule of a guard cannot be computed, and for which row: asked only after judging has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakewright.errors import LakewrightError, StepFailed
from lakewright.lake.delta_errors import is_transient
from lakewright.patterns.error_management.filter_blame import find_failing_row
from lakewright.pipelines.private_columns import private_columns, words_of

if TYPE_CHECKING:
    from lakewright.pipelines.inputs import InputFrame
    from lakewright.pipelines.workshop import Attempt

__all__ = ["explain_rule_error"]


def explain_rule_error(current: Attempt, inputs: Sequence[InputFrame], error: Exception) -> StepFailed | None:
    """Runs jobs that find the first rule that fails by itself, and a row on which it does; None where none does."""
    if isinstance(error, LakewrightError) or is_transient(error):
        return None  # it is known what happened, or no row is to blame
    for judged, side in (pair for one in inputs for pair in one.side):
        rules = {} if side.conditions is None else side.conditions()
        for name, rule in rules.items():  # each by itself: every rule is asked of a row that another one rejects
            private = private_columns(current.shop, current.dataset, judged.columns)
            if (blame := find_failing_row(judged, {name: rule}, private=private)) is None:
                continue
            return StepFailed(
                f"{current.dataset.place}: {current.dataset.name}, slice {current.slice.id}: the rule '{blame.filter}' "
                f"cannot be computed for the row {blame.row}: {words_of(error, private)} Nothing was written.",
                hint="Use a function that gives NULL instead (try_cast, try_divide): a rule that is NULL counts as "
                "broken, and the row is set aside.",
            )
    return None
