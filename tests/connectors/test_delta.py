"""A Delta table as a source: the snapshot first, then what each version brought."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakewright.connectors.delta import DeltaTable
from lakewright.connectors.delta_history import TableHistory
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError
from lakewright.model.arrivals import Arrival
from lakewright.model.protocols import Found, SourceContext

SOURCE = DeltaTable("tables/users é")
TIME = datetime(2026, 1, 5, tzinfo=UTC)


class Follower:
    """Takes arrivals one after another, as a run does."""

    def __init__(self, spark: SparkSession, project: Path) -> None:
        self.spark, self.project = spark, project
        self.table = project / "tables" / "users é"
        self.last: Arrival | None = None

    @property
    def ctx(self) -> SourceContext:
        return SourceContext("users", self.project, last_window=None if self.last is None else self.last.window)

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("TABLE_", f"delta.`{self.table}`"))

    def append(self, *ids: int, **options: str) -> None:
        rows = self.spark.createDataFrame([(one, f"u{one}") for one in ids], "id INT, name STRING").coalesce(1)
        rows.write.format("delta").mode("append").options(**options).save(str(self.table))

    def take(self) -> Arrival | None:
        found = SOURCE.look(self.ctx)
        if found is None:
            return None
        number = 1 if self.last is None else self.last.number + 1
        self.last = arrival(found, number)
        return self.last

    def rows(self, one: Arrival | None, *columns: str, schema: str = "id INT, name STRING") -> list[Any]:
        assert one is not None
        declared = StructType.fromDDL(schema)
        assert isinstance(declared, StructType)
        frame = SOURCE.read(one, spark=self.spark, schema=declared, ctx=self.ctx)
        return sorted(tuple(row) for row in frame.select(*columns).collect())

    def ids(self, one: Arrival | None) -> list[int]:
        return [row[0] for row in self.rows(one, "id")]


def arrival(found: Found, number: int) -> Arrival:
    return Arrival("users", number, json.loads(json.dumps(found.window)), TIME)


@pytest.fixture
def follower(spark: SparkSession, tmp_path: Path) -> Follower:
    return Follower(spark, tmp_path)


def test_the_first_arrival_is_the_table_at_a_version_and_stays_so(follower: Follower) -> None:
    follower.append(1, 2)
    first = follower.take()
    follower.append(3)
    assert follower.ids(first) == [1, 2]
    assert follower.rows(first, "_lw_raw", "_lw_file", "_lw_file_version")[0] == (
        None,
        "_delta_log/00000000000000000000.json",
        "0",
    )


def test_without_a_feed_later_arrivals_hold_the_appended_rows_even_after_an_optimize(
    follower: Follower,
) -> None:
    follower.append(1)
    first = follower.take()
    assert follower.take() is None
    follower.append(2)
    follower.append(3)
    follower.sql("OPTIMIZE TABLE_")
    second = follower.take()
    assert (follower.ids(first), follower.ids(second)) == ([1], [2, 3])
    assert [row[0] for row in follower.rows(second, "_lw_file_version")] == ["1", "2"]
    follower.sql("OPTIMIZE TABLE_")
    assert follower.take() is None


def test_a_deleted_row_without_a_feed_is_refused_by_its_version_after_what_came_before(
    follower: Follower,
) -> None:
    follower.append(1, 2)
    follower.take()
    follower.append(3)
    follower.sql("DELETE FROM TABLE_ WHERE id = 1")
    assert follower.ids(follower.take()) == [3]
    with pytest.raises(InputError, match=r"version 2 .*DELETE.*enableChangeDataFeed"):
        follower.take()


def test_with_a_feed_new_values_arrive_and_deletes_only_if_asked_for(follower: Follower) -> None:
    follower.append(1, 2, 3, **{"delta.enableChangeDataFeed": "true"})
    follower.take()
    follower.append(4)
    follower.sql("DELETE FROM TABLE_ WHERE id = 1")
    follower.sql("UPDATE TABLE_ SET name = 'new' WHERE id = 2")
    second = follower.take()
    assert follower.rows(second, "id", "name", "_lw_file_version") == [(2, "new", "3"), (4, "u4", "1")]
    told = follower.rows(second, "id", "_change_type", schema="id INT, name STRING, _change_type STRING")
    assert told == [(1, "delete"), (2, "update_postimage"), (4, "insert")]


def test_turning_the_feed_on_parts_the_arrivals_and_loses_nothing(follower: Follower) -> None:
    follower.append(1)
    follower.take()
    follower.append(2)
    follower.sql("ALTER TABLE TABLE_ SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    follower.append(3)
    follower.sql("DELETE FROM TABLE_ WHERE id = 2")
    assert follower.ids(follower.take()) == [2]
    assert follower.ids(follower.take()) == [3]
    assert follower.take() is None


def test_the_first_arrival_may_begin_at_a_version_or_a_time_and_arrivals_may_be_bounded(follower: Follower) -> None:
    follower.append(1, **{"delta.enableChangeDataFeed": "true"})
    follower.append(2)
    follower.append(3)
    follower.sql("DELETE FROM TABLE_ WHERE id = 1")
    third = TableHistory(follower.table).committed_at(2)
    told = "id INT, name STRING, _change_type STRING"
    source = DeltaTable(SOURCE.path, start=2, max_versions=1)
    by_time = DeltaTable(SOURCE.path, start=third.isoformat(), max_versions=1)
    assert by_time.look(follower.ctx) == source.look(follower.ctx)
    for expected in ([(3, "insert")], [(1, "delete")]):
        found = source.look(follower.ctx)
        assert found is not None
        follower.last = arrival(found, 1)
        assert follower.rows(follower.last, "id", "_change_type", schema=told) == expected
    assert source.look(follower.ctx) is None
    follower.last = None
    for later in (4, "2100-01-01"):
        assert DeltaTable(SOURCE.path, start=later).look(follower.ctx) is None
    everything = DeltaTable(SOURCE.path, start=0).look(follower.ctx)
    assert everything is not None
    assert [row[0] for row in follower.rows(arrival(everything, 1), "id", schema=told)] == [1, 1, 2, 3]
    (follower.table / "_delta_log" / f"{0:020d}.json").unlink()
    for gone in (0, "2020-01-01"):
        with pytest.raises(InputError, match=f"begins with version 1, and changes since {gone} are asked for"):
            DeltaTable(SOURCE.path, start=gone).look(follower.ctx)
    for wrong in ({"start": -1}, {"start": "soon"}, {"max_versions": 0}):
        with pytest.raises(ConfigurationError):
            DeltaTable(SOURCE.path, **wrong)  # type: ignore[arg-type]


def test_a_table_made_anew_is_refused_and_its_old_arrivals_are_gone(follower: Follower) -> None:
    follower.append(1)
    first = follower.take()
    assert first is not None
    assert SOURCE.gone(first, follower.ctx) == []
    shutil.rmtree(follower.table)
    follower.append(1)
    follower.append(2)
    with pytest.raises(InputError, match="made anew"):
        follower.take()
    assert "made anew" in SOURCE.gone(first, follower.ctx)[0]
    with pytest.raises(InputError, match="can no longer be read"):
        follower.ids(first)


def test_a_version_that_left_the_log_is_told(follower: Follower) -> None:
    follower.append(1)
    follower.take()
    follower.append(2)
    second = follower.take()
    assert second is not None
    follower.append(3)
    (follower.table / "_delta_log" / "00000000000000000001.json").unlink()
    assert SOURCE.gone(second, follower.ctx) == ["version 1 is no longer in the log"]


def test_the_declaration_is_found_in_a_checkpoint_when_the_first_commits_are_gone(follower: Follower) -> None:
    follower.append(0, **{"delta.checkpointInterval": "2"})
    for number in range(1, 5):
        follower.append(number)
    for version in (0, 1):
        (follower.table / "_delta_log" / f"{version:020d}.json").unlink()
    assert follower.ids(follower.take()) == [0, 1, 2, 3, 4]


def test_gained_and_lost_columns(follower: Follower) -> None:
    follower.append(1)
    first = follower.take()
    assert first is not None
    declared = StructType.fromDDL("id BIGINT")
    assert isinstance(declared, StructType)
    assert SOURCE.gained_columns(first, schema=declared, ctx=follower.ctx) == {"name": "string"}
    assert follower.rows(first, "id", schema="id BIGINT") == [(1,)]
    with pytest.raises(SchemaChangeError, match="no column 'nam'"):
        follower.rows(first, "id", schema="id INT, nam STRING")


def test_a_folder_without_a_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Delta table"):
        SOURCE.look(SourceContext("users", tmp_path))
    with pytest.raises(ConfigurationError):
        DeltaTable("")
