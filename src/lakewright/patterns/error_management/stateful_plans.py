"""Whether a streaming frame keeps state: told from its plan, which both engines can print."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_stateful"]

_KEEPS_STATE = (
    "StateStoreSave",
    "StreamingDeduplicate",
    "StreamingSymmetricHashJoin",
    "SessionWindowStateStore",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "StreamingGlobalLimit",
)


def is_stateful(df: DataFrame) -> bool:
    """Whether the stream remembers anything from one micro-batch to the next."""
    plan = StringIO()
    with redirect_stdout(plan):
        df.explain()
    return any(operator in plan.getvalue() for operator in _KEEPS_STATE)
