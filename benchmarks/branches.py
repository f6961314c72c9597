"""Two branches that do not depend on each other and use one core each, side by side against one after the other.

Limit: 0.65 of the serial time on 2 cores.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import compare, jvm_of, keep, small_project

ROWS = 800_000
PIPELINE = """
from lakewright import JsonFiles, Pipeline
split = Pipeline("split", start="2026-01-01")
split.source("numbers", JsonFiles("landing"), schema="n int")


def costly(numbers, salt):
    # One task: the rows of one file, each hashed again and again.
    many = numbers.selectExpr("explode(sequence(1, n)) AS n")
    return many.selectExpr("n", f"aggregate(sequence(1, 40), concat('{salt}', n), (a, i) -> sha1(a)) AS hash")


@split.dataset()
def left(numbers):
    return costly(numbers, "left")


@split.dataset()
def right(numbers):
    return costly(numbers, "right")
"""


def main(*, pairs: int, size: int) -> None:
    from lakewright.pipelines.project import Project

    with (
        small_project(PIPELINE, f'{{"n": {min(size, ROWS)}}}', 'master = "local[2]"') as folder,
        Project(folder) as project,
    ):
        for error in project.run(at="2026-01-02").errors:
            raise error
        found = compare(
            "two branches of one core each",
            lambda: _run(project, parallel=2),
            lambda: _run(project, parallel=1),
            jvm=jvm_of(project.spark()),
            pairs=pairs,
            limit=0.65,
        )
        keep("branches", found)


def _run(project: Any, parallel: int) -> None:
    how = {"at": "2026-01-02", "again": True, "slices": ["arrival-1"], "parallel": parallel}
    summary = project.run(["left", "right"], **how)
    assert len(summary.made) == 2, summary.errors
