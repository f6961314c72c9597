from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import LeaseHeldError, StoreError
from lakewright.store import Grant, Owner, Store, is_alive, open_store, this_process

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
TTL = timedelta(minutes=1)
LATER = NOW + timedelta(minutes=5)
SRC = str(Path(__file__).parents[2] / "src")


def worker(store: Store, now: datetime = NOW) -> str:
    owner = this_process()
    store.leases.register(owner, TTL, now)
    return owner.owner_id


def lease(store: Store, slice_id: str, owner_id: str, now: datetime = NOW, dataset: str = "visits") -> Grant:
    return store.leases.acquire(dataset, slice_id, owner_id=owner_id, run_id="r1", now=now)


def test_a_free_slice_gets_the_next_number_and_no_fence(store: Store) -> None:
    me = worker(store)
    first, second = lease(store, "2026-01-04", me), lease(store, "2026-01-05", me)
    assert (first.number, second.number) == (1, 2)
    assert (first.fence, first.taken_from) == (None, ())


def test_numbers_are_counted_per_dataset(store: Store) -> None:
    me = worker(store)
    lease(store, "a", me)
    assert lease(store, "a", me, dataset="users").number == 1


def test_a_slice_held_by_a_living_owner_is_refused_by_name(store: Store) -> None:
    other = worker(store)
    lease(store, "2026-01-04", other)
    with pytest.raises(LeaseHeldError, match="unlock") as caught:
        lease(store, "2026-01-04", worker(store))
    assert (caught.value.name, caught.value.owner) == ("visits", other)
    for part in ("2026-01-04", f"process {os.getpid()}", "run r1", "2026-01-05 12:00:00"):
        assert part in caught.value.message


def test_a_refusal_draws_no_number(store: Store) -> None:
    me, other = worker(store), worker(store)
    lease(store, "a", me)
    with pytest.raises(LeaseHeldError):
        lease(store, "a", other)
    assert lease(store, "b", other).number == 2


def test_the_whole_dataset_and_its_slices_exclude_each_other(store: Store) -> None:
    me, other = worker(store), worker(store)
    slice_grant = lease(store, "a", me)
    with pytest.raises(LeaseHeldError):
        lease(store, "*", other)
    store.leases.release("visits", "a", slice_grant.number)
    lease(store, "*", other)
    with pytest.raises(LeaseHeldError, match="The dataset 'visits'"):
        lease(store, "b", me)


def test_an_owner_does_not_get_what_it_holds_already(store: Store) -> None:
    me = worker(store)
    lease(store, "a", me)
    with pytest.raises(LeaseHeldError, match="this very worker"):
        lease(store, "a", me)


def test_a_pipeline_is_named_as_one(store: Store) -> None:
    lease(store, "*", worker(store), dataset="pipeline:blog")
    with pytest.raises(LeaseHeldError, match="The pipeline 'blog'") as caught:
        lease(store, "*", worker(store), dataset="pipeline:blog")
    assert caught.value.hint is not None
    assert "unlock blog" in caught.value.hint


def test_an_owner_that_was_silent_for_too_long_is_taken_over_with_a_fence(store: Store) -> None:
    old = lease(store, "a", worker(store))
    new = lease(store, "a", worker(store, LATER), LATER)
    assert (new.fence, new.number) == (old.number + 1, old.number + 2)
    assert new.taken_from == (("a", old.number, "r1"),)


def test_a_heartbeat_keeps_all_leases_of_an_owner(store: Store) -> None:
    me = worker(store)
    lease(store, "a", me)
    lease(store, "b", me)
    assert store.leases.beat(me, TTL, LATER)
    for slice_id in ("a", "b"):
        with pytest.raises(LeaseHeldError):
            lease(store, slice_id, worker(store, LATER), LATER)


def test_an_owner_learns_by_its_heartbeat_that_it_was_taken_over(store: Store) -> None:
    me = worker(store)
    grant = lease(store, "a", me)
    lease(store, "a", worker(store, LATER), LATER)
    assert not store.leases.beat(me, TTL, LATER)
    assert not store.leases.check("visits", "a", grant.number, LATER)
    assert not store.leases.release("visits", "a", grant.number)
    with pytest.raises(StoreError, match="taken for dead"):
        lease(store, "b", me, LATER)


def test_the_whole_dataset_takes_over_every_slice_that_was_not_given_back(store: Store) -> None:
    gone = worker(store)
    lease(store, "b", gone)
    lease(store, "a", gone)
    given_back = lease(store, "c", gone)
    store.leases.release("visits", "c", given_back.number)
    new = lease(store, "*", worker(store, LATER), LATER)
    assert new.taken_from == (("a", 2, "r1"), ("b", 1, "r1"))
    assert (new.fence, new.number) == (4, 5)


def test_one_living_owner_is_enough_to_refuse_the_whole_dataset(store: Store) -> None:
    lease(store, "a", worker(store))
    lease(store, "b", worker(store, LATER))
    with pytest.raises(LeaseHeldError):
        lease(store, "*", worker(store, LATER), LATER)
    assert [held.alive for held in store.leases.held(LATER)] == [False, True]


def test_a_slice_takes_over_a_dead_lease_on_the_whole(store: Store) -> None:
    lease(store, "*", worker(store))
    new = lease(store, "a", worker(store, LATER), LATER)
    assert new.taken_from == (("*", 1, "r1"),)


def test_the_next_owner_is_told_which_tables_to_fence(store: Store) -> None:
    me = worker(store)
    store.leases.acquire("visits", "a", owner_id=me, run_id="r1", now=NOW, parts=["main", "rejected"])
    store.leases.acquire("visits", "b", owner_id=me, run_id="r1", now=NOW, parts=["main"])
    assert lease(store, "*", worker(store, LATER), LATER).parts == ("main", "rejected")


def test_an_owner_that_says_goodbye_gives_everything_back(store: Store) -> None:
    me = worker(store)
    lease(store, "a", me)
    lease(store, "b", me)
    store.leases.forget(me)
    assert store.leases.held(NOW) == []
    assert lease(store, "a", worker(store)).fence is None


def test_an_owner_that_nobody_knows_gets_nothing(store: Store) -> None:
    with pytest.raises(StoreError, match="not registered"):
        lease(store, "a", "stranger")
    assert store.leases.held(NOW) == []


def test_a_broken_lease_is_gone_for_people_and_fenced_for_the_next_owner(store: Store) -> None:
    me = worker(store)
    old = lease(store, "a", me)
    broken = store.leases.break_lease("visits", now=NOW)
    assert [(lease.slice_id, lease.number, lease.alive) for lease in broken] == [("a", 1, True)]
    assert store.leases.held(NOW) == []
    assert store.leases.break_lease("visits", now=NOW) == []
    assert not store.leases.check("visits", "a", old.number, NOW)
    assert not store.leases.beat(me, TTL, NOW)
    assert lease(store, "a", worker(store)).taken_from == (("a", 1, "r1"),)


def test_one_slice_can_be_broken_alone(store: Store) -> None:
    lease(store, "a", worker(store))
    lease(store, "b", worker(store))
    store.leases.break_lease("visits", "a", now=NOW)
    assert [held.slice_id for held in store.leases.held(NOW)] == ["b"]


def test_a_lease_no_longer_counts_as_ours_once_its_time_is_up(store: Store) -> None:
    grant = lease(store, "a", worker(store))
    assert store.leases.check("visits", "a", grant.number, NOW)
    assert not store.leases.check("visits", "a", grant.number, LATER)


def test_held_leases_name_their_owner(store: Store) -> None:
    me = this_process()
    store.leases.register(me, TTL, NOW)
    lease(store, "a", me.owner_id)
    (held,) = store.leases.held(NOW)
    assert (held.owner, held.run_id, held.granted_at, held.beat_at, held.alive) == (me, "r1", NOW, NOW, True)


def test_a_rebuilt_store_goes_on_above_the_numbers_of_the_log(store: Store) -> None:
    store.leases.raise_numbers("visits", 1_000_007)
    store.leases.raise_numbers("visits", 5)
    assert lease(store, "a", worker(store)).number == 1_000_008


def test_a_killed_process_is_taken_over_at_once(store: Store, store_url: str) -> None:
    code = (
        "import sys; from datetime import datetime, timedelta; from lakewright.store import *\n"
        "store, me, now = open_store(sys.argv[1]), this_process(), datetime.fromisoformat(sys.argv[2])\n"
        "store.leases.register(me, timedelta(minutes=1), now)\n"
        "store.leases.acquire('visits', 'a', owner_id=me.owner_id, run_id='r0', now=now)\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, store_url, NOW.isoformat()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    me = worker(store)
    with pytest.raises(LeaseHeldError, match=f"process {other.pid} "):
        lease(store, "a", me)
    other.kill()
    other.communicate(timeout=60)
    assert [held.alive for held in store.leases.held(NOW)] == [False]
    assert lease(store, "a", me).taken_from == (("a", 1, "r0"),)


def test_a_process_number_that_is_used_again_is_not_the_old_process() -> None:
    me = this_process()
    namespace = me.process_started.rpartition("@")[2]
    assert is_alive(me.host, me.pid, me.process_started)
    assert not is_alive(me.host, me.pid, f"1@{namespace}")
    assert not is_alive(me.host, 2**22 + 1, me.process_started)


def test_a_process_that_cannot_be_seen_from_here_counts_as_alive() -> None:
    me = this_process()
    assert is_alive("another-host", 2**22 + 1, me.process_started)
    assert is_alive(me.host, 2**22 + 1, "1@another-container")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such numbers")
def test_another_machine_of_the_same_name_is_not_this_one() -> None:
    me = this_process()
    namespace, _, boot = me.process_started.rpartition("@")[2].partition(".")
    assert not is_alive(me.host, 2**22 + 1, f"1@{namespace}.{boot}")
    assert is_alive(me.host, 2**22 + 1, f"1@{namespace}.{boot[::-1]}")


def test_each_call_makes_another_owner() -> None:
    assert this_process().owner_id != this_process().owner_id


class Player:
    """A worker of the property below: what it holds, by slice."""

    def __init__(self, store: Store, pid: int) -> None:
        self.owner = Owner(f"o{pid}", "another-host", pid, "1@1")
        self.store = store
        self.grants: dict[str, Grant] = {}


@settings(deadline=None, max_examples=40)
@given(
    moves=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["acquire", "acquire", "release", "beat", "break"]),
            st.sampled_from(["a", "b", "*"]),
            st.sampled_from([0, 10, 100]),
        ),
        max_size=25,
    )
)
def test_numbers_always_rise_and_leases_never_overlap(moves: list[tuple[int, str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        players, now, highest = [Player(store, pid) for pid in range(3)], NOW, 0
        for player in players:
            store.leases.register(player.owner, TTL, now)
        for who, move, slice_id, seconds in moves:
            player, now = players[who], now + timedelta(seconds=seconds)
            if move == "beat":
                if not store.leases.beat(player.owner.owner_id, TTL, now):
                    player.grants.clear()
                    store.leases.register(player.owner, TTL, now)
            elif move == "release" and slice_id in player.grants:
                store.leases.release("d", slice_id, player.grants.pop(slice_id).number)
            elif move == "break":
                store.leases.break_lease("d", slice_id, now=now)
            elif move == "acquire":
                try:
                    grant = store.leases.acquire("d", slice_id, owner_id=player.owner.owner_id, run_id=None, now=now)
                except (LeaseHeldError, StoreError):
                    continue
                drawn = [number for number in (grant.fence, grant.number) if number is not None]
                assert drawn[0] > highest
                assert drawn == sorted(set(drawn))
                assert all(old < drawn[0] for _, old, _ in grant.taken_from)
                highest = drawn[-1]
                player.grants[slice_id] = grant
            held = [lease.slice_id for lease in store.leases.held(now)]
            assert len(set(held)) == len(held)
            assert "*" not in held or len(held) == 1


def place(store: Store, owner_id: str, now: datetime = NOW, ticket: int | None = None) -> Grant:
    return store.leases.acquire_place(
        "pipeline:loads",
        ["run 1", "run 2"],
        owner_id=owner_id,
        run_id="r1",
        now=now,
        queue="queue:loads",
        ticket=ticket,
    )


def test_one_of_several_places_is_leased_until_none_is_left_and_that_of_a_silent_owner_is_taken_over(
    store: Store,
) -> None:
    first, second = worker(store), worker(store)
    assert [place(store, owner).slice_id for owner in (first, second)] == ["run 1", "run 2"]
    with pytest.raises(LeaseHeldError) as caught:
        place(store, worker(store))
    assert caught.value.owner == first
    store.leases.beat(first, timedelta(minutes=10), NOW)
    taken = place(store, worker(store, LATER), LATER)  # the second has been silent for too long
    assert (taken.slice_id, [run for _, _, run in taken.taken_from]) == ("run 2", ["r1"])
    assert not store.leases.beat(second, TTL, LATER)


def test_whoever_waits_longer_comes_first_and_who_is_gone_from_the_queue_keeps_nobody(store: Store) -> None:
    early, late, new = worker(store), worker(store), worker(store)
    tickets = [
        lease(store, f"place {number}", owner, dataset="queue:loads") for number, owner in ((2, early), (1, late))
    ]
    for owner, ticket in ((new, None), (late, tickets[1].number)):
        with pytest.raises(LeaseHeldError):
            place(store, owner, ticket=ticket)
    assert place(store, early, ticket=tickets[0].number).slice_id == "run 1"
    store.leases.forget(early)
    assert place(store, late, ticket=tickets[1].number).slice_id == "run 1"


def test_a_lease_on_all_places_and_one_on_any_of_them_exclude_each_other(store: Store) -> None:
    me, other = worker(store), worker(store)
    grant = place(store, me)
    with pytest.raises(LeaseHeldError):
        store.leases.acquire_place("pipeline:loads", ["*"], owner_id=other, run_id=None, now=NOW)
    store.leases.release(grant.dataset, grant.slice_id, grant.number)
    store.leases.acquire_place("pipeline:loads", ["*"], owner_id=other, run_id=None, now=NOW)
    with pytest.raises(LeaseHeldError):
        place(store, me)


def test_a_lease_whose_helper_died_is_fenced_by_the_next_grant_of_the_same_owner_which_keeps_the_rest(
    store: Store,
) -> None:
    me = worker(store)
    lost, kept = lease(store, "2026-01-04", me), lease(store, "2026-01-05", me)
    assert not store.leases.abandon("visits", "2026-01-04", owner_id=worker(store)), "not theirs to leave"
    assert store.leases.abandon("visits", "2026-01-04", owner_id=me)
    assert [one.slice_id for one in store.leases.held(NOW)] == ["2026-01-05"]
    again = lease(store, "2026-01-04", me)
    assert (again.fence, again.taken_from) == (kept.number + 1, (("2026-01-04", lost.number, "r1"),))
    assert store.leases.beat(me, TTL, NOW), "its other work goes on"
