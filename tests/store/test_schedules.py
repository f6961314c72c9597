"""What the store knows of schedules, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakewright.model.receipts import Counters, Receipt
from lakewright.model.runs import Run, RunState
from lakewright.store import Store

NOW = datetime(2026, 1, 10, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def ran(store: Store, pipeline: str, number: int, state: RunState, reason: str = "scheduled") -> None:
    run = Run(f"{pipeline}-{number}", pipeline, day(number), reason)  # type: ignore[arg-type]
    store.runs.start(run, owner_id="o", options={}, now=NOW + timedelta(seconds=number))
    if state != "running":
        store.runs.finish(run.run_id, state, now=NOW + timedelta(seconds=number + 1))


def receipt(dataset: str, version: int, kind: str) -> Receipt:
    return Receipt(
        dataset=dataset,
        slice_id="whole",
        kind=kind,  # type: ignore[arg-type]
        version=version,
        version_before=None,
        number=version,
        committed_at=day(version),
        run_id="r",
        attempt=1,
        rows=1,
        bytes=1,
        counters=Counters(),
    )


def test_a_pause_is_kept_with_its_reason_until_it_is_resumed(store: Store) -> None:
    assert store.schedules.pause("visits", because="moving", now=day(1))
    assert not store.schedules.pause("visits", because="another", now=day(2))
    store.schedules.see("visits", {"raw": 7}, now=day(2))
    assert store.schedules.paused() == [("visits", day(1), "moving")]
    assert not store.schedules.resume("users", now=day(3))
    assert store.schedules.resume("visits", now=day(3))
    assert store.schedules.paused() == []
    assert store.schedules.seen() == {"visits": {"raw": 7}}
    assert store.schedules.pause("users", because=None, now=day(4))
    store.schedules.see("visits", {"raw": 8, "users": 1}, now=day(4))
    assert store.schedules.seen() == {"visits": {"raw": 8, "users": 1}}


def test_the_last_good_time_and_what_was_tried_since(store: Store) -> None:
    for number, state in enumerate(("ok", "failed", "ok", "failed", "refused", "running"), start=1):
        ran(store, "visits", number, state)  # type: ignore[arg-type]
    ran(store, "visits", 9, "ok", reason="manual")
    ran(store, "users", 1, "interrupted")
    assert store.schedules.last_good() == {"visits": day(3)}
    tried = [(one.pipeline, one.run_time.day, one.state) for one in store.schedules.tried()]
    assert sorted(tried) == [
        ("users", 1, "interrupted"),
        ("visits", 4, "failed"),
        ("visits", 5, "refused"),
        ("visits", 6, "running"),
    ]
    assert len(store.schedules.tried(apart=["visits"])) == 5
    assert store.schedules.good_times("visits", after=None) == {day(1), day(3)}
    assert store.schedules.good_times("visits", after=day(1)) == {day(3)}


def test_the_newest_change_of_a_dataset_is_one_that_its_readers_should_know_of(store: Store) -> None:
    store.receipts.add(
        [receipt("visits", 1, "data"), receipt("visits", 2, "data"), receipt("visits", 3, "maintenance")]
    )
    store.receipts.add([receipt("users", 4, "data")])
    assert store.schedules.heads(["visits", "nobody"]) == {"visits": (2, day(2))}
