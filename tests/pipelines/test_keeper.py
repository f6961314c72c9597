"""The keeper's heartbeat, tick by tick."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Event, Thread
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


def test_neither_the_heart_nor_the_end_waits_for_an_interrupt_that_waits_for_a_server():
    asked, beats, forgotten, back = [], [], [], Event()

    def interrupt():
        asked.append(len(beats))
        back.wait(60)

    def beat(*_):
        beats.append("beat")
        return True

    leases = SimpleNamespace(register=lambda *_: None, beat=beat, forget=forgotten.append)
    store = SimpleNamespace(runs=SimpleNamespace(cancel_requested=lambda run_id: False), leases=leases)
    keeper = Keeper(store, Run("r", "p", NOW), now=lambda: NOW, interrupt=interrupt)
    ticks, ended = [], keeper._ended
    keeper._ended = SimpleNamespace(wait=lambda _: ticks.append(1) or len(ticks) > 60 or ended.is_set(), set=ended.set)

    def work():
        keeper.ask_to_stop("received SIGINT")
        keeper.start()
        keeper._thread.join()
        keeper.end()

    working = Thread(target=work, daemon=True)
    working.start()
    working.join(5)
    assert (forgotten, len(beats), len(asked)) == ([keeper.owner.owner_id], 4, 1)
    back.set()
