"""What a streaming frame remembers: told from its plan, which both engines can print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lakewright.patterns.data_value.plan_text import plan_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_stateful", "state_keys"]

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
_LIST = r"\[[^\]]*\]"
_KEYED = re.compile(
    rf"\b(\w*StateStoreSave|StreamingDeduplicate\w*|StreamingSymmetricHashJoin) ({_LIST}(?:, {_LIST})*)"
)
_MARKS = re.compile(r"#\d+L?(?:-T\d+ms)?")
"""The number that Spark gives to a column, and the delay of its watermark: no part of what is remembered."""


def is_stateful(df: DataFrame) -> bool:
    """Whether the stream remembers anything from one micro-batch to the next."""
    plan = plan_text(df)
    return any(operator in plan for operator in _KEEPS_STATE)


def state_keys(df: DataFrame) -> tuple[str, ...]:
    """By which columns Spark's own operators remember, one after the other: ``StreamingDeduplicate [visit_id]``."""
    return tuple(f"{operator} {_MARKS.sub('', keys)}" for operator, keys in _KEYED.findall(plan_text(df)))
