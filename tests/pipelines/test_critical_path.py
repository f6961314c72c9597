"""How long the work of a run takes: arithmetic, no store and no Spark."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.pipelines.critical_path import Work, ends_after, longest_chain, run_seconds


def work(name: str, *after: str, slices: int = 1, seconds: float = 1.0, in_order: bool = False) -> Work:
    return Work(name, frozenset(after), (slices,) if slices else (), seconds, in_order)


def test_the_longest_chain_goes_through_the_slower_branch():
    works = [
        work("raw", seconds=4),
        work("paris", "raw", seconds=2),
        work("warsaw", "raw", seconds=9),
        work("both", "paris", "warsaw", seconds=1),
    ]
    assert longest_chain(works, 2) == ["raw", "warsaw", "both"]
    assert ends_after(works, 2) == {"raw": 4, "paris": 6, "warsaw": 13, "both": 14}
    assert run_seconds(works, 2) == 14
    assert run_seconds(works, 1) == 16


def test_slices_run_side_by_side_unless_they_are_made_in_order_or_in_turns():
    assert run_seconds([work("hours", slices=24, seconds=2)], 4) == 12
    assert run_seconds([work("hours", slices=24, seconds=2, in_order=True)], 4) == 48
    revisits = Work("days", turns=(3, 1), seconds=2.0)
    assert revisits.alone(4) == run_seconds([revisits], 4) == 4


def test_what_is_fresh_costs_nothing_and_still_stands_between_others():
    works = [work("raw", seconds=4), work("clean", "raw", slices=0), work("daily", "clean", seconds=3)]
    assert longest_chain(works, 2) == ["raw", "daily"]
    assert run_seconds(works, 2) == 7


def test_no_work_has_no_chain():
    assert longest_chain([], 2) == []
    assert run_seconds([], 2) == 0
    assert longest_chain([work("raw", slices=0)], 2) == []


def test_many_thousand_slices_are_walked_through_at_once():
    began = time.perf_counter()
    works = [work(f"d{n}", *([f"d{n - 1}"] if n else []), slices=100_000, seconds=0.5) for n in range(20)]
    seconds = run_seconds(works, 4)
    assert time.perf_counter() - began < 1
    assert abs(seconds - 20 * 100_000 * 0.5 / 4) / seconds < 0.01


graphs = st.lists(
    st.tuples(
        st.sets(st.integers(0, 7), max_size=3),
        st.lists(st.integers(1, 9), max_size=2),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(drawn=graphs, parallel=st.integers(1, 5))
def test_a_run_is_never_faster_than_its_longest_chain_nor_slower_than_one_after_the_other(drawn, parallel):
    works = [
        Work(str(n), frozenset(str(up) for up in above if up < n), tuple(turns), float(seconds), in_order)
        for n, (above, turns, seconds, in_order) in enumerate(drawn)
    ]
    chain = max(ends_after(works, parallel).values(), default=0.0)
    whole = sum(one.slices * one.seconds for one in works)
    assert chain - 1e-6 <= run_seconds(works, parallel) <= whole + 1e-6
    assert run_seconds(works, 1) == whole
