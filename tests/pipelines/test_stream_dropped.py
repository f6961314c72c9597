"""What the guards of a stream dropped: told to each receipt, counted once, and forgotten where it was told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lakewright.model.streams import Dropped, Progress
from lakewright.pipelines.streams import watched
from lakewright.pipelines.streams.dropped import DroppedRows

SPARK_REMEMBERS = 100


def told(number: int, duplicates: int = 2, behind: int = 1) -> dict[str, Any]:
    """What Spark tells of a micro-batch, as far as it is read."""
    states = [
        {"customMetrics": {"numDroppedDuplicateRows": duplicates}, "numRowsDroppedByWatermark": behind},
        {"customMetrics": None},
    ]
    return {"batchId": number, "stateOperators": states}


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


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_lets_go_of_what_has_its_receipts_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    settled: list[Mapping[int, Dropped]] = []
    dropped = {3: Dropped(1, 0), 4: Dropped(0, 1)}
    query = SimpleNamespace(
        running=True,
        progress=lambda: Progress(batch=4, offsets=""),
        dropped=lambda: dropped,
        settle=settled.append,
        generation=SimpleNamespace(number=1),
        abandon=lambda: None,
        standing=SimpleNamespace(in_use=False),
    )

    def harvest(current: object, told: object, *, ending: bool) -> list[object]:
        assert told == dropped
        if fails:
            raise ConnectionError("the store is away")
        return []

    monkeypatch.setattr(watched, "prepare", lambda current: ([], query.generation))
    monkeypatch.setattr(watched, "Query", lambda *_, **__: query)
    monkeypatch.setattr(watched, "harvest_stream", harvest)
    monkeypatch.setattr(watched, "silent_side", lambda *_: "")
    dataset = SimpleNamespace(name="once", every=timedelta(seconds=1), source=None)
    shop = SimpleNamespace(
        graph=SimpleNamespace(streamed_input=lambda _: None),
        lake=SimpleNamespace(has_lost_java=lambda: False),
        store=SimpleNamespace(streams=SimpleNamespace(advance=lambda *_, **__: None, current=lambda _: None)),
        now=lambda: None,
    )
    stream: Any = watched.WatchedStream(
        shop, SimpleNamespace(dataset=dataset), watched.StreamOutcome("once"), lambda event: None
    )  # type: ignore[arg-type]
    stream.look()  # starts it
    stream.look()
    assert settled == ([] if fails else [dropped])
