"""A step that follows the changes of a table must be row-wise, or what it makes of old and new images is wrong.

Guarantee:
    A step that counts, ranks, limits or compares the rows that it follows is refused before its stream reads anything.
    What it does with its other inputs is free: they are read whole, whatever has changed.
Consequences:
    - The step is called once with no rows when its stream starts, and Spark is asked how it understood it; no job is
      run.
    - What happens inside a function of pandas or Arrow cannot be seen: it has to make each row of that row alone.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.errors import ConfigurationError
from lakewright.model.references import SameSlice
from lakewright.pipelines.empty import no_rows
from lakewright.pipelines.inputs import judged_input, open_input
from lakewright.pipelines.make import call_step
from lakewright.pipelines.workshop import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["mark_followed", "refuse_other_than_row_wise", "what_needs_other_rows"]

_MARK = "lw_followed"
_NEEDS_OTHERS = re.compile(
    r"Aggregate|Window|Distinct|Deduplicate|GlobalLimit|LocalLimit|Offset|Tail|Sample|Except|Intersect|Pivot"
    r"|FlatMap(Co)?Groups"
)
_NODE = re.compile(r"((?:[: ] {2})*(?:[:+]- )?)(.*)")
# The children of a join that may be followed: each of their rows is in the result by itself, or is not.
_FREE = {
    "Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (0,), "LeftSemi": (0,), "LeftAnti": (0,), "RightOuter": (1,),
}  # fmt: skip


def refuse_other_than_row_wise(attempt: Attempt) -> None:
    """Refuse a step that follows changes and makes a row of more than one row of what it follows."""
    dataset = attempt.dataset
    streamed = attempt.shop.graph.streamed_input(dataset)
    assert streamed is not None
    nothing = no_rows(attempt, streamed)
    followed = judged_input(attempt, streamed, SameSlice(), nothing, nothing.columns, None, None)
    followed = replace(followed, frame=mark_followed(followed.frame))
    inputs = [followed if one is streamed else open_input(attempt, one) for one in dataset.inputs]
    found = what_needs_other_rows(call_step(attempt, inputs)[dataset.name])
    if found is not None:
        raise ConfigurationError(
            f"{dataset.place}: {dataset.name} follows the changes of {streamed.dataset}, and its step is not row-wise: "
            f"it holds {found}. Applied to changed rows alone, it would give wrong ones. Nothing was read or written.",
            hint=f'Leave mode="stream" out: then the step sees all of {streamed.dataset}. Or do this part in a batch '
            "dataset, and let the stream follow that one.",
        )


def mark_followed(frame: DataFrame) -> DataFrame:
    """The same rows; what is made of them can be told by it."""
    return frame.where(f"'{_MARK}' = '{_MARK}'")


def what_needs_other_rows(made: DataFrame) -> str | None:
    """What was done with marked rows that needs more than one of them at a time; None: nothing. Runs no job."""
    joined: dict[int, int] = {}
    for way in _ways_to_mark(_resolved(made).splitlines()):
        for place, node, child in way:
            if (needs := _NEEDS_OTHERS.match(node)) is not None:
                return needs.group()
            if node.startswith("Join "):
                kind = re.split("[ ,]", node)[1]
                if joined.setdefault(place, child) != child:
                    return "a Join of these rows with themselves"
                if child not in _FREE.get(kind, ()):
                    return f"Join {kind}, of which these rows are the side that may be missing"
    return None


def _resolved(frame: DataFrame) -> str:
    """The plan as Spark has understood it, before anything is optimized away."""
    session, name = frame.sparkSession, f"lw_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        [row] = session.sql(f"EXPLAIN EXTENDED SELECT * FROM {name}").collect()
    finally:
        session.catalog.dropTempView(name)
    return str(row[0]).partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]


def _ways_to_mark(lines: Sequence[str]) -> Iterator[list[tuple[int, str, int]]]:
    """For each mark in a plan the nodes above it: line, text, and which of its children leads there."""
    path: list[tuple[int, int, str]] = []  # depth, line, text
    child: dict[int, int] = {}
    for place, line in enumerate(lines):
        found = _NODE.fullmatch(line)
        assert found is not None
        depth = len(found.group(1))
        while path and path[-1][0] >= depth:
            path.pop()
        if path:
            above = path[-1][1]
            child[above] = child.get(above, -1) + 1
        path.append((depth, place, found.group(2)))
        if f"({_MARK} = {_MARK})" in line:
            yield [(at, text, child[at]) for _, at, text in path[:-1]]
