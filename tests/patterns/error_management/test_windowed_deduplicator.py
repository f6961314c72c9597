"""Windowed Deduplicator in batch: one row per key, always the same one, and rows without a key stay."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import rows
from tests.patterns.error_management.streams import land_batches, run_to_end, state_of, stream_of

from lakewright.errors import ConfigurationError, MissingColumnsError
from lakewright.lake.side_tables import dead_letter_rows
from lakewright.model.identity import Identity
from lakewright.model.protocols import GuardContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.patterns.error_management.windowed_deduplicator import (
    WindowedDeduplicator,
    drop_repeats,
    drop_repeats_on_stream,
    split_repeats,
)
from lakewright.patterns.ingestion.own_session import own_session

SCHEMA = "visit string, page string, at int"
ON_DISK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TRIPLE = [("v1", "/b", 2), ("v1", "/a", 1), ("v1", "/c", 3), ("v2", "/a", None), ("v2", "/z", 1)]


@pytest.mark.shows("03.windowed-deduplicator", 1)
def test_of_three_visits_the_newest_or_the_oldest_is_kept(spark: SparkSession) -> None:
    visits = spark.createDataFrame(TRIPLE, SCHEMA)
    newest = drop_repeats(visits, keys=["visit"], order_by=["at"], keep="last")
    oldest = drop_repeats(visits.where("at IS NOT NULL"), keys=["visit"], order_by=["at"])
    assert rows(newest) == [("v1", "/c", 3), ("v2", "/z", 1)]
    assert rows(oldest) == [("v1", "/a", 1), ("v2", "/z", 1)]
    # The best of them: by one column downwards, then by another; a row of which the order is unknown never wins.
    best = split_repeats(visits, keys=["visit"], order_by=["at desc", "page"])
    assert rows(best.kept) == [("v1", "/c", 3), ("v2", "/z", 1)]
    assert rows(best.repeats) == [("v1", "/a", 1), ("v1", "/b", 2), ("v2", "/a", None)]
    # What is no number is unknown as well, though to Spark it is the greatest of all.
    rated = visits.selectExpr("visit AS `v.id`", "coalesce(at, CAST('NaN' AS DOUBLE)) AS rate")
    assert rows(drop_repeats(rated, keys=["v.id"], order_by=["rate desc"])) == [("v1", 3.0), ("v2", 1.0)]
    assert rows(drop_repeats(rated, keys=["v.id"], order_by=["rate"], known=rated.where("rate = 2"))) == [("v2", 1.0)]


@pytest.mark.shows("03.windowed-deduplicator", 2)
def test_a_visit_of_yesterday_is_dropped_only_with_the_wider_scope(spark: SparkSession) -> None:
    yesterday = spark.createDataFrame([("v1", "/a", 1)], SCHEMA)
    today = spark.createDataFrame([("v1", "/a", 1), ("v2", "/a", 2), (None, "/a", 3)], SCHEMA)
    assert len(rows(drop_repeats(today, keys=["visit"]))) == 3
    wider = drop_repeats(today, keys=["visit"], known=yesterday.withColumn("more", yesterday.at))
    assert rows(wider) == [("v2", "/a", 2), (None, "/a", 3)]
    assert wider.columns == today.columns
    split = split_repeats(today, keys=["visit"], known=yesterday)
    assert (rows(split.kept), rows(split.repeats)) == (rows(wider), [("v1", "/a", 1)])


VISIT = st.tuples(st.none() | st.sampled_from("ab"), st.sampled_from("xy"), st.none() | st.integers(0, 2))


@pytest.mark.shows("03.windowed-deduplicator", 7)
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=st.lists(VISIT, max_size=8))
def test_a_repeat_gives_the_same_rows_in_whatever_order_they_come(
    spark: SparkSession, found: list[tuple[str | None, str, int | None]]
) -> None:
    once = rows(drop_repeats(spark.createDataFrame(found, SCHEMA), keys=["visit"], order_by=["at"]))
    again = rows(
        drop_repeats(spark.createDataFrame(found[::-1], SCHEMA).repartition(3), keys=["visit"], order_by=["at"])
    )
    assert once == again
    assert len([row for row in once if row[0] is None]) == len([row for row in found if row[0] is None])
    kept = [row[0] for row in once if row[0] is not None]
    assert sorted(kept) == sorted({row[0] for row in found if row[0] is not None})  # type: ignore[type-var]


@pytest.mark.shows("03.windowed-deduplicator", 7)
@pytest.mark.parametrize("keep", ["first", "last"])
def test_of_rows_that_tie_in_the_order_the_content_decides_and_not_their_place(
    spark: SparkSession, keep: Literal["first", "last"]
) -> None:
    # One part, read from both ends: whatever came first, or last, must not win.
    tied = [("v1", "/b", 1), ("v1", "/a", 1), ("v1", "/c", 1), ("v2", "/z", None), ("v2", "/y", None)]
    for found in (tied, tied[::-1], [*tied[1:], tied[0]]):
        visits = spark.createDataFrame(found, SCHEMA).coalesce(1)
        kept = drop_repeats(visits, keys=["visit"], order_by=["at"], keep=keep)
        assert rows(kept) == [("v1", "/a", 1), ("v2", "/y", None)]


def test_rows_that_are_the_same_in_every_column_are_one_also_where_a_value_is_missing(spark: SparkSession) -> None:
    found = [("v1", "/a", 1), ("v1", "/a", 1), ("v1", None, 1), ("v1", None, 1), (None, None, None), (None, None, None)]
    visits = spark.createDataFrame([*found, ("v1", "/a", 2)], SCHEMA).withColumn("_lw_offset", F.expr("uuid()"))
    expected = [("v1", "/a", 1), ("v1", "/a", 2), ("v1", None, 1), (None, None, None)]
    kept = drop_repeats(visits, keys="all")
    assert rows(kept.drop("_lw_offset")) == expected
    plain = visits.drop("_lw_offset")
    assert rows(drop_repeats(plain, keys="all")) == rows(plain.distinct()) == expected
    split = split_repeats(plain, keys="all")
    assert (rows(split.kept), split.repeats.count()) == (expected, 3)

    # What was loaded before is known by every column as well; another column there says nothing.
    loaded = spark.createDataFrame([("v1", None, 1), (None, None, None)], SCHEMA).withColumn("more", F.lit(1))
    assert rows(drop_repeats(plain, keys="all", known=loaded)) == [("v1", "/a", 1), ("v1", "/a", 2)]
    again = split_repeats(plain, keys="all", known=loaded)
    assert (rows(again.kept), again.repeats.count()) == ([("v1", "/a", 1), ("v1", "/a", 2)], 5)
    with pytest.raises(MissingColumnsError, match="known"):
        drop_repeats(plain, keys="all", known=loaded.drop("page"))

    # All columns by their names: a row with a missing part has no key, and stays.
    named = drop_repeats(plain, keys=["visit", "page", "at"])
    assert rows(named) == [("v1", "/a", 1), ("v1", "/a", 2), *[("v1", None, 1)] * 2, *[(None, None, None)] * 2]


def test_whole_rows_with_maps_are_compared_by_their_entries(spark: SparkSession) -> None:
    one, other = "map('a', 1, 'b', CAST(NULL AS INT))", "map('b', CAST(NULL AS INT), 'a', 1)"
    visits = spark.sql(f"SELECT {one} AS tags UNION ALL SELECT {other} UNION ALL SELECT NULL UNION ALL SELECT NULL")
    assert drop_repeats(visits, keys="all").count() == 2
    assert drop_repeats(visits, keys="all", known=visits.where("tags IS NOT NULL")).count() == 1
    deep = spark.sql(f"SELECT array({one}) AS tags")
    with pytest.raises(ConfigurationError, match=r"cannot compare 'tags': it is array<map") as refused:
        drop_repeats(deep, keys="all")
    assert "keys=[...]" in str(refused.value.hint)


def test_rows_with_maps_can_be_compared(spark: SparkSession) -> None:
    visits = spark.sql("SELECT 'v1' AS visit, map('a', 1) AS tags UNION ALL SELECT 'v1', map('a', 1)")
    assert drop_repeats(visits, keys=["visit"]).count() == 1


def test_a_key_of_two_columns_with_one_missing_is_no_key(spark: SparkSession) -> None:
    visits = spark.createDataFrame([("v1", None, 1), ("v1", None, 1), ("v1", "/a", 1), ("v1", "/a", 2)], SCHEMA)
    assert len(rows(drop_repeats(visits, keys=["visit", "page"]))) == 3


def test_a_name_may_hold_any_sign(spark: SparkSession) -> None:
    odd, known = (spark.createDataFrame(found, "`visit``id` string, `a.b` int")
                  for found in ([("v1", 1), ("v1", 2), ("v2", 1)], [("v2", 1)]))  # fmt: skip
    assert rows(drop_repeats(odd, keys=["visit`id"], known=known)) == [("v1", 1)]
    assert rows(split_repeats(odd, keys=["visit`id"], known=known).repeats) == [("v1", 2), ("v2", 1)]
    assert len(rows(drop_repeats(odd, keys="all", known=known))) == 2
    letters = dead_letter_rows(
        odd.where("`a.b` = 2"), reasons=F.array(F.lit("odd")), identity=Identity("once", "arrival-1", 1, "r"),
        input_name="raw", keep=["visit`id", "a.b"],
    )  # fmt: skip
    assert rows(letters.select("record")) == [('{"visit`id":"v1","a.b":2}',)]


@pytest.mark.shows("03.windowed-deduplicator", 8)
def test_rows_without_a_key_are_kept_or_set_aside_as_the_guard_says(spark: SparkSession) -> None:
    visits = spark.createDataFrame([("v1", "/a", 1), ("v1", "/a", 1), (None, "/a", 1), (None, "/a", 1)], SCHEMA)
    context = GuardContext("clean", "raw", WHOLE, Run("r", "p", datetime(2026, 1, 5, tzinfo=UTC)))
    kept = WindowedDeduplicator(keys=["visit"]).on_batch(visits, context)
    assert kept.side is None
    assert rows(kept.kept) == [("v1", "/a", 1), (None, "/a", 1), (None, "/a", 1)]
    for dropped in ("count", "keep"):
        guard = WindowedDeduplicator(keys=["visit"], nulls="set aside", dropped=dropped)  # type: ignore[arg-type]
        guarded = guard.on_batch(visits, context)
        assert guarded.side is not None
        assert rows(guarded.kept) == [("v1", "/a", 1)]
        assert (guarded.judged or visits).where(guarded.side.broken).count() == 2


def test_missing_columns_and_wrong_options_are_refused(spark: SparkSession) -> None:
    visits = spark.createDataFrame(TRIPLE, SCHEMA)
    with pytest.raises(MissingColumnsError, match="Did you mean 'visit' for 'visitt'"):
        drop_repeats(visits, keys=["visitt"])
    with pytest.raises(MissingColumnsError, match="known"):
        drop_repeats(visits, keys=["visit"], known=visits.drop("visit"))
    wrong: list[dict[str, object]] = [{"keys": "visit"}, {"keys": []}, {"keys": ["v"], "order_by": "at"}]
    wrong += [{"keys": "all", "order_by": ["at"]}, {"keys": "all", "nulls": "set aside"}]
    wrong += [{"keys": ["v"], option: "any"} for option in ("keep", "nulls", "dropped", "window")]
    for options in wrong:
        with pytest.raises(ConfigurationError):
            WindowedDeduplicator(**options)  # type: ignore[arg-type]


def seen(visit: str | None, minute: int, hour: int = 10) -> dict[str, object]:
    return {"visit": visit, "at": f"2026-01-05T{hour + minute // 60:02d}:{minute % 60:02d}:00Z"}


@pytest.mark.shows("03.windowed-deduplicator", 3, 4, 6)
def test_a_stream_remembers_keys_for_the_window_also_over_a_restart_and_its_state_has_a_bound(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing, out = tmp_path / "landing", tmp_path / "out"
    frame = stream_of(spark, landing, "visit string, at timestamp")
    unique = drop_repeats_on_stream(frame, keys=["visit"], event_time="at", window="10 minutes")

    def run() -> list[dict[str, object]]:
        return run_to_end(unique, tmp_path / "checkpoint", into=out)

    def there() -> list[tuple[str | None, str]]:
        found = spark.read.format("delta").load(str(out)).selectExpr("visit", "date_format(at, 'HH:mm')")
        return sorted(((row[0], row[1]) for row in found.collect()), key=str)

    land_batches(landing, [[seen("a", 0)], [seen("a", 5), seen("b", 6)], [seen("c", 30)]])
    first = run()
    assert sum(state_of(first, "numDroppedDuplicateRows")) == 1
    # The process that read `c` is gone; the next one still knows its key. `a` at 10:07 lies behind the watermark, and
    # is dropped, whatever it is; at 10:40 its window has passed, and the repeat is missed. Without a key both stay.
    land_batches(landing, [[seen("c", 31)], [seen("a", 7)], [seen("a", 40)], [seen(None, 41), seen(None, 41)]])
    second = run()
    assert there() == [("a", "10:00"), ("a", "10:40"), ("b", "10:06"), ("c", "10:30"), (None, "10:41"), (None, "10:41")]
    assert sum(state_of(second, "numDroppedDuplicateRows")) == 1
    assert sum(state_of(second, "numRowsDroppedByWatermark")) == 1

    land_batches(landing, [[seen(f"v{minute}", minute)] for minute in range(45, 105, 5)])
    sizes = state_of(run(), "numRowsTotal")
    assert len(sizes) >= 12
    assert max(sizes[-6:]) <= max(sizes[:6]) <= 5


def test_with_the_time_in_the_key_another_time_is_another_row_and_the_state_may_lie_on_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    land_batches(landing, [[seen("a", 0), seen("a", 0)], [seen("a", 0), seen("a", 5)]])
    with own_session(spark, {"spark.sql.streaming.stateStore.providerClass": ON_DISK}) as session:
        frame = stream_of(session, landing, "visit string, at timestamp")
        unique = drop_repeats_on_stream(frame, keys=["visit"], event_time="at", window="10 minutes", time_in_key=True)
        told = run_to_end(unique, tmp_path / "checkpoint", into=tmp_path / "out")
    assert any(name.startswith("rocksdb") for name in told[-1]["stateOperators"][0]["customMetrics"])
    assert spark.read.format("delta").load(str(tmp_path / "out")).count() == 2
    assert sum(state_of(told, "numDroppedDuplicateRows")) == 2


def test_a_stream_of_whole_rows_compares_missing_values_and_maps(spark: SparkSession, tmp_path: Path) -> None:
    landing, schema = tmp_path / "landing", "visit string, at timestamp, tags map<string, int>"
    tagged, mirrored = {"tags": {"a": 1, "b": 2}}, {"tags": {"b": 2, "a": 1}}
    land_batches(landing, [[seen("a", 0) | tagged, seen("a", 0) | mirrored, seen(None, 1), seen("a", 0)]])
    frame = stream_of(spark, landing, schema)
    unique = drop_repeats_on_stream(frame, keys="all", event_time="at", window="10 minutes")
    assert unique.columns == frame.columns
    told = run_to_end(unique, tmp_path / "checkpoint", into=tmp_path / "out")
    # A new process knows what the one before it saw.
    land_batches(landing, [[seen(None, 1), seen("a", 0) | mirrored, seen("a", 2) | tagged]])
    told += run_to_end(unique, tmp_path / "checkpoint", into=tmp_path / "out")
    found = spark.read.format("delta").load(str(tmp_path / "out"))
    assert rows(found.selectExpr("visit", "minute(at)", "tags['a']")) == [
        ("a", 0, 1), ("a", 0, None), ("a", 2, 1), (None, 1, None),
    ]  # fmt: skip
    assert sum(state_of(told, "numDroppedDuplicateRows")) == 3


@pytest.mark.shows("03.windowed-deduplicator", 8)
def test_what_a_stream_cannot_do_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    land_batches(tmp_path / "landing", [[seen("a", 0)]])
    frame = stream_of(spark, tmp_path / "landing", "visit string, at timestamp, text string")
    options = {"keys": ["visit"], "event_time": "at", "window": "10 minutes"}
    with pytest.raises(MissingColumnsError, match="Did you mean 'visit' for 'visitt'"):
        drop_repeats_on_stream(frame, **{**options, "keys": ["visitt"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is string, and a watermark needs a timestamp"):
        drop_repeats_on_stream(frame, **{**options, "event_time": "text"})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="longer than nothing"):
        drop_repeats_on_stream(frame, **{**options, "window": "0 days"})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no stream"):
        drop_repeats_on_stream(spark.range(1), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="remembered for ever"):
        WindowedDeduplicator(keys=["visit"]).check_stream("at")
    with pytest.raises(ConfigurationError, match="forgets keys by event time"):
        WindowedDeduplicator(keys=["visit"], window="1 day").check_stream(None)
    with pytest.raises(ConfigurationError, match="keeps the first that comes"):
        WindowedDeduplicator(keys=["visit"], window="1 day", keep="last").check_stream("at")
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        WindowedDeduplicator(keys=["visit"], window="1 day", dropped="keep").check_stream("at")
