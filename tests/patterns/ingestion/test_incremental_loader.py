"""Incremental Loader alone: one half-open interval at a time, and the rows as they stand of an insert-only table."""

from __future__ import annotations

from datetime import datetime

import pytest
from tests.patterns.delta import rows, table

from lakewright.errors import ConfigurationError, InputError
from lakewright.patterns.ingestion.incremental_loader import IncrementalLoader, current_rows, load_new_rows

VISITS = "visit_id string, written_at timestamp"


def at(hour: int) -> datetime:
    return datetime(2026, 1, 5, hour)


@pytest.mark.shows("02.incremental-loader", 2)
@pytest.mark.shows("02.incremental-loader", 7)
def test_an_interval_is_replaced_by_itself_and_rows_without_a_time_are_refused(spark, tmp_path):
    target = str(tmp_path / "visits")
    visits = spark.createDataFrame([("a", at(10)), ("b", at(11)), ("c", at(12))], VISITS)
    for hour in (11, 10, 11):
        load_new_rows(visits, target, cursor="written_at", start=at(hour), end=at(hour + 1))
    assert table(spark, target) == [("a", at(10)), ("b", at(11))]
    later = visits.union(spark.createDataFrame([("late", at(12))], VISITS))
    load_new_rows(later, target, cursor="written_at", start=at(11), end=at(12))
    assert table(spark, target) == [("a", at(10)), ("b", at(11))], "rows of later hours change nothing"
    unknown = visits.union(spark.createDataFrame([("n", None)], VISITS))
    with pytest.raises(InputError, match="some rows have no written_at"):
        load_new_rows(unknown, target, cursor="written_at", start=at(10), end=at(11))
    with pytest.raises(ConfigurationError, match="ends after it starts"):
        load_new_rows(visits, target, cursor="written_at", start=at(11), end=at(11))


@pytest.mark.shows("02.incremental-loader", 6)
def test_an_insert_only_table_tells_modifications_and_deletions(spark):
    changes = spark.createDataFrame(
        [(1, "a", 1, False), (1, "b", 2, False), (2, "c", 1, False), (2, "c", 3, True), (3, "d", 1, None)],
        "id int, name string, n int, gone boolean",
    )
    stands = current_rows(changes, keys=["id"], order="n", deleted="gone")
    assert rows(stands) == [(1, "b", 2, False), (3, "d", 1, None)]
    assert len(rows(current_rows(changes, keys=["id"], order="n"))) == 3


def test_an_overlap_needs_keys_and_event_time_as_delta_column_is_warned_of():
    with pytest.raises(ConfigurationError, match="nothing tells them apart"):
        IncrementalLoader("at", overlap="1 hour")
    assert "never read" in (IncrementalLoader("at").warning("at") or "")
    assert IncrementalLoader("at", overlap="1 hour", keys=["id"]).warning("at") is None
    assert IncrementalLoader("at").warning("event_time") is None
