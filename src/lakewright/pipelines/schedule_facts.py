"""What the store knows of the schedules of a project at one moment, in a handful of indexed queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from lakewright.pipelines.scheduling import Facts
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Store, Tried

__all__ = ["gather"]

_PIPELINE = "pipeline:"


def gather(
    store: Store,
    tables: Sequence[Timetable],
    now: datetime,
    *,
    given_out: Mapping[str, Collection[datetime]] | None = None,
    settled: Mapping[str, datetime] | None = None,
) -> Facts:
    """The facts; ``given_out`` are times whose process may not have begun with them yet."""
    alive = [lease for lease in store.leases.held(now) if lease.alive]
    running = Counter(lease.dataset.removeprefix(_PIPELINE) for lease in alive if lease.dataset.startswith(_PIPELINE))
    owners = {lease.owner_id for lease in alive}
    tried: dict[str, dict[datetime, Tried]] = {}
    taken = {name: set(times) for name, times in (given_out or {}).items()}
    apart = [table.pipeline for table in tables if table.concurrency > 1 and table.catch_up == "all"]
    for one in store.schedules.tried(apart=apart):
        if one.state == "running" and one.owner_id in owners:
            taken.setdefault(one.pipeline, set()).add(one.run_time)
        else:
            tried.setdefault(one.pipeline, {})[one.run_time] = one
    upstream = sorted({name for table in tables for name in table.upstream})
    return Facts(
        paused={pause.pipeline for pause in store.schedules.paused()},
        last_good=store.schedules.last_good(),
        good={name: store.schedules.good_times(name, after=(settled or {}).get(name)) for name in apart},
        settled=settled or {},
        tried=tried,
        running=running,
        taken=taken,
        heads=store.schedules.heads(upstream) if upstream else {},
        seen=store.schedules.seen() if upstream else {},
    )
