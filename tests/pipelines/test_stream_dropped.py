"""What a stream tells of itself: each micro-batch once, what its guards dropped, and no more while it is idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lakewright.errors import InputError
from lakewright.model.streams import Dropped, Progress
from lakewright.pipelines.streams import watched
from lakewright.pipelines.streams.dropped import DroppedRows
from lakewright.pipelines.streams.queries import progress_of

SPARK_REMEMBERS = 100


def told(number: int, duplicates: int = 2, behind: int = 1) -> dict[str, Any]:
    """What Spark tells of a micro-batch that was run, as far as it is read."""
    states = [
        {"customMetrics": {"numDroppedDuplicateRows": duplicates}, "numRowsDroppedByWatermark": behind},
        {"customMetrics": None},
    ]
    return {"batchId": number, "stateOperators": states, "durationMs": {"addBatch": 5, "triggerExecution": 9}}


def idle(number: int) -> dict[str, Any]:
    """What it tells every ten seconds while it waits for that micro-batch: the repeats of the one before are in it."""
    return {**told(number, behind=0), "durationMs": {"latestOffset": 1, "triggerExecution": 1}}


def recent(number: int) -> list[dict[str, Any]]:
    return [told(one) for one in range(max(0, number - SPARK_REMEMBERS + 1), number + 1)]


def test_an_account_of_a_stream_that_goes_on_for_long_stays_small_and_complete() -> None:
    account = DroppedRows(None)
    seen: dict[int, Dropped] = {}
    for number in range(0, 5000, 7):  # several micro-batches between two looks
        account.look(recent(number))
        account.look(recent(number))  # looked at twice, counted once
        assert len(account.batches) <= 8
        assert max(account.batches) == number
        seen |= account.batches
        account.settle(number)
        assert list(account.batches) == [number]  # how far it is stays known
        assert account.total() == Dropped(2 * (number + 1), number + 1)
    assert seen == dict.fromkeys(range(max(seen) + 1), Dropped(2, 1))  # each was there to be told


def test_what_was_not_settled_is_kept_however_long_that_takes() -> None:
    account = DroppedRows(None)
    for number in range(300):
        account.look(recent(number))
    assert account.batches == dict.fromkeys(range(300), Dropped(2, 1))


def test_a_repeat_of_the_last_micro_batch_of_an_earlier_query_is_not_counted_again() -> None:
    before = Progress(batch=4, offsets="", duplicates=10, behind_watermark=5)
    account = DroppedRows(before)
    account.look([told(4), told(5)])
    assert account.batches == {4: Dropped(2, 1), 5: Dropped(2, 1)}  # its receipt may not be written yet
    assert account.total() == Dropped(12, 6)
    account.settle(5)
    account.look([told(4), told(5), told(6)])
    assert account.batches == {5: Dropped(2, 1), 6: Dropped(2, 1)}
    assert account.total() == Dropped(14, 7)


def test_what_an_idle_stream_tells_is_of_no_micro_batch_and_counts_nothing() -> None:
    account = DroppedRows(None)
    account.look([told(0), told(1), idle(2), idle(2)])
    assert account.batches == dict.fromkeys((0, 1), Dropped(2, 1))
    assert account.total() == Dropped(4, 2)
    account.look([told(1), idle(2), told(2)])
    assert account.total() == Dropped(6, 3)
    # How far it is: as far as its last micro-batch, whoever ran that.
    assert [progress_of(one).batch for one in (told(1), idle(2), told(2))] == [1, 1, 2]
    assert progress_of(idle(0)) is None


def a_query(tells: Callable[[], dict[str, Any] | None], **more: Any) -> Any:
    """A query that is running, of which Spark tells this."""
    return SimpleNamespace(
        running=True,
        progress=lambda: None if (found := tells()) is None else progress_of(found),
        generation=SimpleNamespace(number=1),
        abandon=lambda: None,
        standing=SimpleNamespace(in_use=False),
        **{"dropped": lambda: None, "settle": lambda _: None, **more},
    )


def watched_stream(
    monkeypatch: pytest.MonkeyPatch,
    query: Any,
    harvest: Callable[..., list[Any]],
    outcome: watched.StreamOutcome | None = None,
) -> Any:
    """A stream of a worker, whose queries are this one."""
    monkeypatch.setattr(watched, "prepare", lambda current: ([], query.generation))
    monkeypatch.setattr(watched, "Query", lambda *_, **__: query)
    monkeypatch.setattr(watched, "harvest_stream", harvest)
    monkeypatch.setattr(watched, "silent_side", lambda *_: "")
    dataset = SimpleNamespace(name="once", every=timedelta(seconds=1), source=None)
    shop: Any = SimpleNamespace(
        graph=SimpleNamespace(streamed_input=lambda _: None, owners={}, datasets={}),
        lake=SimpleNamespace(has_lost_java=lambda: False),
        store=SimpleNamespace(
            streams=SimpleNamespace(advance=lambda *_, **__: None, current=lambda _: None),
            finish_step=lambda *_, **__: None,
        ),
        now=lambda: None,
    )
    current: Any = SimpleNamespace(dataset=dataset, grant=None, step_id=1)
    return watched.WatchedStream(shop, current, outcome or watched.StreamOutcome("once"), lambda event: None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_lets_go_of_what_has_its_receipts_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    settled: list[Mapping[int, Dropped]] = []
    dropped = {3: Dropped(1, 0), 4: Dropped(0, 1)}
    query = a_query(lambda: told(4), dropped=lambda: dropped, settle=settled.append)

    def harvest(current: object, told: object, *, ending: bool) -> list[object]:
        assert told == dropped
        if fails:
            raise ConnectionError("the store is away")
        return []

    stream = watched_stream(monkeypatch, query, harvest)
    stream.look()  # starts it
    stream.look()
    assert settled == ([] if fails else [dropped])


def test_the_first_micro_batch_after_a_stream_was_idle_is_indexed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tells = [None, told(0), told(0), idle(1), idle(1), told(1), idle(2)]
    told_now: list[Any] = []
    indexed: list[Any] = []

    def harvest(*_: object, **__: object) -> list[object]:
        indexed.append(told_now[-1])
        return []

    stream = watched_stream(monkeypatch, a_query(lambda: told_now[-1]), harvest)
    stream.look()  # starts it
    for one in tells:
        told_now.append(one)
        stream.look()
    assert indexed == [told(0), told(1)]  # and nothing is asked of the lake while nothing happens


def test_a_stream_whose_input_has_gained_columns_is_started_again_once_before_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark_says = "[STREAM_FAILED] ... [DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 5:"
    failed = InputError("once: a table that it reads has other columns since this query began.")
    failed.__cause__ = RuntimeError(spark_says)
    written: list[Any] = []
    query = a_query(lambda: None, failure=lambda: failed)
    outcome = watched.StreamOutcome("once")
    stream = watched_stream(monkeypatch, query, lambda *_, **__: written, outcome)
    monkeypatch.setattr(watched, "random", SimpleNamespace(random=lambda: -0.5))  # without a pause

    def ends() -> bool:
        query.running = True
        stream.look()  # starts it
        query.running = False
        stream.look()
        return not stream.alive

    assert not ends()
    written.append(SimpleNamespace(kind="data", rows=1))
    assert not ends()  # it has written since: these columns are others
    written.clear()
    assert ends()  # and these do not fit
    assert (outcome.restarts, outcome.error) == (2, failed)
