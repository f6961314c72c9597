"""A process that dies between a commit and its receipt, without a process of its own. For tests only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lakewright.pipelines.project import Project


@contextmanager
def dying_after_commit(project: Project, dataset: str) -> Iterator[None]:
    """Neither the receipt nor the end of a step of this dataset is recorded, as where its process is killed then."""
    finish = project.store.finish_step

    def dies(step_id: int, state: Any, *, grant: Any, **rest: Any) -> bool:
        if grant.dataset == dataset:
            raise RuntimeError("gone")
        return finish(step_id, state, grant=grant, **rest)

    with patch.object(project.store, "finish_step", dies):
        yield
