"""What the store knows of the schedules of a project at one moment, in a handful of indexed queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from lakewright.model.runs import RunState
from lakewright.pipelines.following import following_run_id, to_follow
from lakewright.pipelines.scheduling import MOST, Facts
from lakewright.pipelines.timetables import Timetable
from lakewright.store import Backfill, HeldLease, Produced, Store, Tried

__all__ = ["gather"]

_A_MOMENT = timedelta(microseconds=1)
_PIPELINE, _POOL = "pipeline:", "pool:"


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
    each = [*apart, *(table.pipeline for table in tables if table.after is not None)]
    for one in store.schedules.tried(apart=each):
        if one.state == "running" and one.owner_id in owners:
            taken.setdefault(one.pipeline, set()).add(one.run_time)
        else:
            tried.setdefault(one.pipeline, {})[one.run_time] = one
    upstream = sorted({name for table in tables for name in table.upstream})
    followers = [table for table in tables if table.after is not None]
    produced, answered, backfills = _followed(store, followers, settled or {})
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
        produced=produced,
        answered=answered,
        backfills=backfills,
        pooled=_pooled(alive),
    )


def _followed(
    store: Store, tables: Sequence[Timetable], settled: Mapping[str, datetime]
) -> tuple[dict[str, list[Produced]], dict[str, dict[datetime, RunState]], dict[str, list[Backfill]]]:
    """What followers have to know: the runs that they follow, how they answered, and backfills that they did not."""
    produced: dict[str, list[Produced]] = {}
    answered: dict[str, dict[datetime, RunState]] = {}
    backfills: dict[str, list[Backfill]] = {}
    for table in tables:
        assert table.after is not None
        name = table.pipeline
        floor = settled.get(name) or table.start or _since(store, table)
        produced[name] = store.schedules.produced(table.after.pipeline, after=floor, limit=MOST)
        mine = store.schedules.produced(name, after=floor, limit=MOST)
        answered[name] = {one.run_time: one.state for one in mine}
        if (first := store.schedules.first_good(name)) is not None:
            open_ = to_follow(table, store.schedules.backfills(after=first))
            backfills[name] = [one for one in open_ if not _is_answered(store, name, one)]
    return produced, answered, backfills


def _since(store: Store, table: Timetable) -> datetime | None:
    """Of a follower without a start: it began with the newest run that there was when it was first looked at."""
    assert table.after is not None
    first = store.schedules.bounds(table.pipeline)[0] or store.schedules.bounds(table.after.pipeline)[1]
    return None if first is None else first - _A_MOMENT


def _is_answered(store: Store, pipeline: str, backfill: Backfill) -> bool:
    run = store.runs.get(following_run_id(pipeline, backfill))
    return run is not None and run.state in ("ok", "skipped")


def _pooled(alive: Sequence[HeldLease]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for lease in alive:
        if lease.dataset.startswith(_POOL):
            found.setdefault(lease.dataset.removeprefix(_POOL), []).append(
                0 if lease.owner is None else lease.owner.pid
            )
    return found
