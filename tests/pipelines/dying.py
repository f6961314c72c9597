"""A process that dies between a commit and its receipt, without a process of its own. For tests only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lakewright.pipelines.project import Project


@contextmanager
def dying_after_commit(
    project: Project, dataset: str, error: Exception | None = None, *, times: int | None = None
) -> Iterator[None]:
    """Neither the receipt nor the end of a step of this dataset is recorded, as where its process is killed then.

    With ``times`` only that often, and as an ``error`` that may be tried again.
    """
    finish, left = project.store.finish_step, [times]

    def dies(step_id: int, state: Any, *, grant: Any, **rest: Any) -> bool:
        if grant.dataset == dataset and left != [0]:
            left[0] = None if left[0] is None else left[0] - 1
            raise error or RuntimeError("gone")
        return finish(step_id, state, grant=grant, **rest)

    with patch.object(project.store, "finish_step", dies):
        yield
