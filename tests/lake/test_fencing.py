"""A zombie: an attempt that wakes after it has lost its lease. Whatever it still writes changes nothing."""

from __future__ import annotations

import pytest

from lakewright.errors import LeaseHeldError
from lakewright.lake.lake import Lake
from lakewright.model.identity import Identity


@pytest.fixture
def lake(spark, lake_folder):
    opened = Lake(str(lake_folder), lambda: spark)
    opened.declare({"orders": "silver"})
    return opened


def attempt(number: int, slice_id: str = "2026-01-01") -> Identity:
    return Identity(dataset="orders", slice_id=slice_id, number=number, run_id=f"run-{number}")


def write(lake: Lake, number: int, value: str, slice_id: str = "2026-01-01"):
    frame = lake.session().createDataFrame([(value, slice_id)], "value string, _lw_event string")
    table = lake.open("orders", attempt(number, slice_id))
    return table.replace(frame, where=f"_lw_event = '{slice_id}'", partition_by=["_lw_event"])


def merge(lake: Lake, number: int, value: str):
    frame = lake.session().createDataFrame([(value, "2026-01-01")], "value string, _lw_event string")
    table = lake.open("orders", attempt(number))
    return table.merge(
        frame, on="t._lw_event = s._lw_event", clauses="WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def values(lake: Lake) -> list[str]:
    return sorted(row["value"] for row in lake.read("orders", system_columns=True).collect())


def test_an_overwrite_after_the_successor_has_committed_is_skipped(lake):
    assert write(lake, 3, "successor") is not None
    assert write(lake, 1, "zombie") is None
    assert write(lake, 3, "same number") is None
    assert values(lake) == ["successor"]


def test_an_overwrite_after_a_mere_take_over_is_skipped(lake):
    write(lake, 1, "before")
    lake.fence(["orders"], attempt(3), ["main"])
    assert write(lake, 2, "zombie") is None
    assert values(lake) == ["before"]
    assert write(lake, 4, "successor") is not None


def test_a_merge_after_a_take_over_is_skipped(lake):
    write(lake, 1, "before")
    lake.fence(["orders"], attempt(3), ["main"])
    assert merge(lake, 2, "zombie") is None
    assert values(lake) == ["before"]


def test_a_fence_of_one_slice_leaves_the_others_free(lake):
    write(lake, 1, "a", "2026-01-01")
    lake.fence(["orders"], attempt(5), ["main"])
    assert write(lake, 2, "b", "2026-01-02") is not None
    assert values(lake) == ["a", "b"]


def test_a_restore_does_not_lift_the_fence(lake):
    write(lake, 1, "first")
    write(lake, 2, "second")
    lake.open("orders", Identity("orders", "whole", 3, "run-3", kind="restore", details={"restored_to": 0})).restore(0)
    assert values(lake) == ["first"]
    assert write(lake, 2, "zombie") is None
    assert values(lake) == ["first"]


def test_an_attempt_that_knows_that_it_lost_its_lease_does_not_write(lake):
    write(lake, 1, "before")
    table = lake.open("orders", attempt(2), still_mine=lambda: False)
    with pytest.raises(LeaseHeldError, match="taken over"):
        table.restore(0)
    assert lake.log("orders").latest() == 0


def test_a_commit_carries_its_identity_and_tells_the_cells_that_it_touched(lake):
    commit = write(lake, 1, "x")
    assert Identity.from_json(commit.metadata) == attempt(1)
    assert {cell: (c.added, c.removed) for cell, c in commit.touched.items()} == {"2026-01-01": (1, 0)}
    commit = write(lake, 2, "y")
    assert {cell: (c.added, c.removed) for cell, c in commit.touched.items()} == {"2026-01-01": (1, 1)}


def test_what_a_step_writes_by_itself_carries_no_identity_of_ours(lake, tmp_path):
    write(lake, 1, "x")
    own = str(tmp_path / "own")
    lake.session().range(1).write.format("delta").save(own)
    lake.adopt("own", own)
    assert lake.log("own").commit(0).metadata is None
