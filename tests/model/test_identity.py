"""What Delta compares of two commits: the name of their transaction, and a number that must rise."""

from __future__ import annotations

from lakewright.model.identity import REWIND_PART, Identity
from lakewright.model.slices import arrival_slice
from lakewright.model.streams import batch_number

LAST_BATCH = 2**62


def test_a_later_rewind_is_above_an_earlier_one_wherever_both_go_back_to() -> None:
    def rewind(number: int, first: int) -> tuple[str, int]:
        return Identity("raw", arrival_slice(first).id, number, "run", kind="rewind", part=REWIND_PART).transaction

    (earlier, low), (later, high) = rewind(4, batch_number(1, 1)), rewind(5, 0)
    assert earlier == later
    assert low < high


def test_the_fence_of_a_generation_is_above_all_that_it_adds_or_sets_aside() -> None:
    def batch(place: int, number: int) -> Identity:
        return Identity("raw", "whole", number, "run", details={"generation": 2, "batch": place})

    for late, fence in (
        (batch(7, 1_000_003), batch(LAST_BATCH, 9)),
        (batch(7, 1_000_003).as_judge("dead_letters"), batch(LAST_BATCH, 9).as_judge("dead_letters")),
    ):
        assert late.transaction[0] == fence.transaction[0]
        assert late.transaction[1] < fence.transaction[1] < 2**63
