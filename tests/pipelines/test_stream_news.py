"""Whether a stream that follows a table has something to read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from lakewright.model.streams import Progress
from lakewright.pipelines.streams.news import behind


def lag(changes: list[bool], read: int, *, by_commit: bool = False, **place: object) -> int | None:
    """How far a stream is behind a table of such versions (with rows, or without) of which it reads ``read`` next."""
    log = SimpleNamespace(
        latest=lambda: len(changes) - 1,
        commits=lambda after: (SimpleNamespace(data_change=one) for one in changes[after + 1 :]),
    )
    given = SimpleNamespace(datasets=["above"], join=None)
    graph = SimpleNamespace(streamed_input=lambda dataset: given, reads_changes=lambda dataset: by_commit)
    shop: Any = SimpleNamespace(graph=graph, lake=SimpleNamespace(log=lambda name: log))
    told: Any = SimpleNamespace(progress=Progress(0, json.dumps({"reservoirVersion": read, "index": -1, **place})))
    dataset: Any = SimpleNamespace(is_source=False)
    return behind(shop, dataset, told)


def test_versions_without_rows_are_no_news_unless_rows_follow():
    assert lag([True, True], 2) == 0
    assert lag([True, True], 1) == 1
    # A fence, or a compaction: Spark reads nothing of it, and so never notes that it was read.
    assert lag([True, True, False, False], 2) == 0
    assert lag([True, True, False, True], 2) == 2


def test_a_commit_of_a_change_feed_is_read_as_a_whole_and_then_no_news():
    assert lag([True, True], 1, by_commit=True, index=3) == 0
    assert lag([True, True, True], 1, by_commit=True, index=3) == 1
    assert lag([True, True], 1, by_commit=True) == 1
    # The first look at a table, and rows that are added, may be read in parts.
    assert lag([True, True], 1, by_commit=True, index=3, isStartingVersion=True) == 1
    assert lag([True, True], 1, index=3) == 1
