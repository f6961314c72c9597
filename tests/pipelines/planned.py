"""Plans without Spark: of a pipeline whose commits and steps are told by hand. For tests only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lakewright.model.times import parse_time
from lakewright.pipelines.cascade import cascade
from lakewright.pipelines.decide import Decider, Wish
from lakewright.pipelines.planning import Plan
from lakewright.store import Store
from tests.pipelines.lab import Lab

BEGAN = datetime(2026, 1, 5, 7, tzinfo=UTC)


def planned(
    bench: Lab, at: str = "2026-02-01", *, select: Sequence[str] = (), new: dict[str, int] | None = None, **wish: Any
) -> Plan:
    """What a run would do; ``new`` are sources with so many arrivals that nobody has taken yet."""
    graph, names = bench.graph, bench.graph.select(select)
    for source in (name for name in names if graph[name].is_source):
        for arrival in bench.store.arrivals.pending(source):  # the bench tells of commits alone
            bench.store.arrivals.commit(source, arrival.number)
    decider = Decider(graph, bench.store, dict.fromkeys(graph.datasets, "code"))
    plans = decider.decide_all(names, Wish(parse_time(at), **wish))
    fresh = new or {}
    plans = [
        replace(one, new="1 new file", arrivals=fresh[one.dataset.name]) if one.dataset.name in fresh else one
        for one in plans
    ]
    return Plan(tuple(cascade(graph, plans, bench.store.receipts.live_slices)), parse_time(at))


def took(
    store: Store,
    dataset: str,
    *seconds: float,
    slice_id: str = "2026-01-05",
    state: Any = "ok",
    reason: str = "due: it was never made",
) -> None:
    """Steps of a dataset that ended, oldest first."""
    for one in seconds:
        step = store.steps.open(
            run_id="r1",
            dataset=dataset,
            slice_id=slice_id,
            number=1,
            attempt=1,
            reason=reason,
            outputs=[dataset],
            now=BEGAN,
        )
        store.steps.close(step, state, now=BEGAN + timedelta(seconds=one))
