"""A pipeline whose commits are told by hand, so that deciding needs no Spark. For tests only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lakewright.model.receipts import Change, Receipt
from lakewright.model.times import parse_time
from lakewright.pipelines.decide import Decider, SliceState, Wish
from lakewright.pipelines.declare import Pipeline
from lakewright.pipelines.graph import Graph
from lakewright.store import Store

LOOKED_AT = datetime(2026, 1, 3, 12, tzinfo=UTC)


class Lab:
    """A pipeline whose commits are told by hand."""

    def __init__(self, store: Store, graph: Graph) -> None:
        self.store, self.graph = store, graph
        self._versions: dict[str, int] = {}
        self.told: list[Receipt] = []

    def commit(
        self, name: str, slice_id: str, cells: Mapping[str, int], *, run_id: str | None = None, **inputs: int
    ) -> None:
        self._versions[name] = version = self._versions.get(name, -1) + 1
        touched: dict[str | None, Change] = {cell: Change(max(rows, 0), max(-rows, 0)) for cell, rows in cells.items()}
        told = Receipt(name, slice_id, "data", version, version - 1, version, LOOKED_AT, touched=touched, inputs=inputs)
        self.told.append(replace(told, run_id=run_id))
        self.store.receipts.add(self.told[-1:])

    def arrive(self, name: str, *cells: str, at: datetime = LOOKED_AT) -> None:
        arrival, _ = self.store.arrivals.record(name, window={}, run_id=None, now=at)
        self.commit(name, f"arrival-{arrival.number}", dict.fromkeys(cells, 3))

    def states(self, name: str, at: str, **wish: Any) -> dict[str, SliceState]:
        decider = Decider(self.graph, self.store, dict.fromkeys(self.graph.datasets, "code"))
        return {s.slice.id: s for s in decider.decide(name, Wish(parse_time(at), **wish)).states}

    def turns(self, name: str, at: str, **wish: Any) -> list[tuple[int, str]]:
        """What a run would make, in the order in which it is begun, each with its turn."""
        decider = Decider(self.graph, self.store, dict.fromkeys(self.graph.datasets, "code"))
        return [(s.turn, s.slice.id) for s in decider.decide(name, Wish(parse_time(at), **wish)).to_make]

    def statuses(self, name: str, at: str, **wish: Any) -> dict[str, str]:
        return {slice_id: state.status for slice_id, state in self.states(name, at, **wish).items()}


def lab(store: Store, *pipelines: Pipeline) -> Lab:
    return Lab(store, Graph([dataset for one in pipelines for dataset in one.datasets]))
