"""Who sends the blog's visits: at the rate that was chosen. A clock that only waiting moves, and no broker."""

from __future__ import annotations

from typing import Any

import pytest
from platforms.blog.services import producer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Broker:
    """Confirms each message at once, and notes when it came."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.came: list[float] = []

    def produce(self, topic: str, *, value: bytes, key: str | None, on_delivery: Any) -> None:
        self.came.append(self.clock.now)
        on_delivery(None, value)

    def poll(self, seconds: float) -> int:
        return 0

    def flush(self, seconds: float) -> int:
        return 0


def test_messages_are_sent_at_the_rate_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    broker = Broker(clock)
    monkeypatch.setattr(producer, "Producer", lambda settings: broker)
    monkeypatch.setattr(producer, "time", clock)

    def sent(rate: float) -> list[float]:
        clock.now, broker.came = 100.0, []
        sending = producer.Sending(['{"user_id": 1}'] * 101, servers="nowhere", topic="visits", rate=rate)

        def wait(seconds: float) -> bool:
            clock.now += seconds
            return False

        monkeypatch.setattr(sending._stopped, "wait", wait)
        sending.run()
        assert (sending.sent, sending.failure) == (101, None)
        return [came - 100.0 for came in broker.came]

    assert sent(rate=0)[-1] == 0.0
    even = sent(rate=50)
    assert even[-1] == pytest.approx(2.0)
    assert even[50] == pytest.approx(1.0)
    # A short wait is not worth one: many of them go together, and the rate is still kept.
    fast = sent(rate=1000)
    assert fast[-1] == pytest.approx(0.1, abs=0.01)
