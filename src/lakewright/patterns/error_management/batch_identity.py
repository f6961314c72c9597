"""What tells a micro-batch from all others, and whether a function that writes one makes use of it."""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

__all__ = ["BatchId", "ignores_batch"]


@dataclass(frozen=True, slots=True)
class BatchId:
    """What tells a micro-batch from all others, however often it is repeated."""

    app_id: str
    number: int

    @property
    def options(self) -> Mapping[str, str]:
        """For ``DataFrameWriter.options``: Delta skips a number that it has seen under the same name."""
        return {"txnAppId": self.app_id, "txnVersion": str(self.number)}


def ignores_batch(write: Callable[..., Any]) -> bool:
    """Whether a function certainly never looks at its second argument; of other callables nobody knows.

    >>> ignores_batch(lambda rows, batch: rows.count())
    True
    >>> ignores_batch(lambda rows, batch: rows.write.options(**batch.options))
    False
    """
    if not isinstance(write, FunctionType) or write.__code__.co_argcount < 2:
        return False
    name = write.__code__.co_varnames[1]
    # An instruction that uses two variables at once names both.
    used = (step.argval for step in dis.get_instructions(write))
    return not any(one == name or (isinstance(one, tuple) and name in one) for one in used)
