"""The keeper's heartbeat, tick by tick."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from lakewright.errors import TargetError
from lakewright.model.runs import Run
from lakewright.pipelines.keeper import Keeper

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_heart_beats_at_the_first_tick_at_which_a_lost_store_answers_again():
    ticks, beats = [], []

    def asked(run_id):
        if 20 <= len(ticks) < 90:  # longer than a lease lives
            raise TargetError("The store cannot be reached.")
        return False

    def tick(seconds):
        ticks.append(seconds)
        return len(ticks) > 100

    def beat(owner_id, ttl, now):
        beats.append(len(ticks))
        return True

    store = SimpleNamespace(runs=SimpleNamespace(cancel_requested=asked), leases=SimpleNamespace(beat=beat))
    keeper = Keeper(store, Run("r", "p", NOW), now=lambda: NOW, interrupt=lambda: None)
    keeper._ended = SimpleNamespace(wait=tick)
    keeper._beat()
    assert beats == [15, 90]
    assert not keeper.stop.is_set()
