"""Late Data Detector: rows in time, late rows and rows without a usable time; the arithmetic is in tests/model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.patterns.delta import table
from tests.patterns.error_management.streams import land_batches, run_to_end, state_of, stream_of

from lakewright.errors import ConfigurationError, InputError, LimitExceeded, MissingColumnsError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.protocols import GuardContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.model.watermarks import Judgement, Watermark
from lakewright.patterns.error_management.late_data_capture import LateAccount, write_on_time_rows
from lakewright.patterns.error_management.late_data_detector import (
    LateDataDetector,
    measure_event_times,
    split_late_rows,
)

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def visits(spark: SparkSession, *times: str | None) -> DataFrame:
    day = [None if at is None else f"2026-01-05 {at}:00" if len(at) == 5 else at for at in times]
    return spark.createDataFrame([(at,) for at in day], "at string")


def write(
    frame: DataFrame, folder: Path, batch: int, detector: LateDataDetector | None = None, *, judged_at: datetime = NOON
) -> LateAccount:
    return write_on_time_rows(
        frame,
        batch=batch,
        detector=detector or LateDataDetector("30 minutes", event_time="at"),
        on_time_path=str(folder / "on_time"),
        late_path=str(folder / "late"),
        unusable_path=str(folder / "unusable"),
        job="visits",
        judged_at=judged_at,
    )


@pytest.mark.shows("03.late-data-detector", 1, 3, 5, 6, 7)
def test_a_batch_is_judged_by_the_watermark_that_it_started_with_also_when_it_is_repeated(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = write(visits(spark, "10:00", "10:05", "10:06"), tmp_path, 0)
    assert first.before.at is None
    assert f"{first.after.at:%H:%M}" == "09:36"
    assert (first.read, first.late) == (3, 0)

    # Exactly at the watermark is in time. What has no usable time is neither late nor moves it.
    second = visits(spark, "09:20", "09:31", "10:07", "09:36", None, "yesterday", "2026-02-01 00:00:00")
    arm({"LAKEWRIGHT_FAILPOINT": "late_rows_captured", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        with pytest.raises(FailpointReached):
            write(second, tmp_path, 1)
    finally:
        arm({})
    # The repeat comes a month later: it is judged as of the first time, so that what was too far ahead still is.
    account = write(second, tmp_path, 1, judged_at=NOON + timedelta(days=30))
    assert (account.read, account.on_time, account.late, account.unusable) == (7, 2, 2, 3)
    assert f"{account.after.at:%H:%M}" == "09:37"
    late = [(at[11:16], f"{mark:%H:%M}", by) for at, mark, by in table(spark, tmp_path / "late")]
    assert late == [("09:20", "09:36", 960.0), ("09:31", "09:36", 300.0)]
    assert len(table(spark, tmp_path / "unusable")) == 3
    # Once more, after all was committed: each row keeps its class, and nothing is there twice.
    assert write(second, tmp_path, 1) == account
    kept = [row[0][11:16] for row in table(spark, tmp_path / "on_time")]
    assert kept == ["09:36", "10:00", "10:05", "10:06", "10:07"]
    assert len(table(spark, tmp_path / "late")) == 2

    # Too many late rows: none of them is written, in no table. Without a limit, and only counted, the others are.
    third, strict = visits(spark, "09:30", "10:08"), LateDataDetector("30 minutes", event_time="at", stop_above=0.1)
    with pytest.raises(LimitExceeded, match=r"1 of 2 rows \(50.0%\) of batch 2 of visits are late") as stopped:
        write(third, tmp_path, 2, strict)
    assert stopped.value.share == 0.5
    sizes = [len(table(spark, tmp_path / name)) for name in ("on_time", "late", "unusable")]
    assert sizes == [5, 2, 3]
    told = LateDataDetector("30 minutes", event_time="at", late="count", warn_above=0.4)
    assert write(third, tmp_path, 2, told).late == 1
    logged = [one.getMessage() for one in caplog.records if one.name == "lakewright.late_data_detector"]
    assert logged == ["visits: 50.0% of the rows of the input in batch 2 are late"]
    # A stream that lost its checkpoint counts from 0 again: Delta would skip what it has by that number.
    for batch in (0, 1):
        with pytest.raises(InputError, match=rf"batch {batch} of visits, and batch 2 of it was .*Nothing was written"):
            write(visits(spark, "11:00", "11:01"), tmp_path, batch)
    assert [len(table(spark, tmp_path / name)) for name in ("on_time", "late", "unusable")] == [6, 2, 3]


def test_a_stream_that_began_anew_after_its_first_batch_is_told_by_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = visits(spark, "10:00", "10:06")
    assert write(first, tmp_path, 0) == write(first, tmp_path, 0)  # as Spark repeats it
    for more in (visits(spark, "10:00", "10:06", "10:07"), visits(spark, "10:00", "10:07")):
        with pytest.raises(
            InputError, match=r"batch 0 of visits, and it was written before, with other rows: the stream"
        ):
            write(more, tmp_path, 0)
    assert len(table(spark, tmp_path / "on_time")) == 2
    assert write(visits(spark, "10:08"), tmp_path, 1).on_time == 1


@pytest.mark.shows("03.late-data-detector", 5)
def test_the_watermark_is_found_behind_the_commits_of_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakewright.patterns.error_management.late_data_capture._LOOK_BACK", 1)
    write(visits(spark, "10:00"), tmp_path, 0)
    for place in ("on_time", "late"):
        table = f"delta.`{tmp_path / place}`"
        spark.sql(f"COMMENT ON TABLE {table} IS 'by somebody else'")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    account = write(visits(spark, "09:00"), tmp_path, 1)
    assert (f"{account.before.at:%H:%M}", account.late) == ("09:30", 1)
    # The log was cleaned of them, and Delta still knows their numbers.
    for place in ("on_time", "late"):
        spark.sql(f"COMMENT ON TABLE delta.`{tmp_path / place}` IS 'once more'")
        for commit in sorted((tmp_path / place / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()
    with pytest.raises(InputError, match="of which its log tells no longer"):
        write(visits(spark, "12:00"), tmp_path, 0)


@pytest.mark.shows("03.late-data-detector", 4)
def test_two_partitions_and_two_sources_are_judged_as_configured(spark: SparkSession) -> None:
    rows = [("web", 0, "10:00"), ("web", 1, "09:20"), ("app", 0, "09:50")]
    begun = spark.createDataFrame(rows, "source string, part int, at string")
    begun = begun.withColumn("at", F.expr("to_timestamp('2026-01-05 ' || at)"))
    more = spark.sql(
        "SELECT s AS source, 0 AS part, timestamp'2026-01-05 09:30:00' AS at FROM VALUES ('web'), ('app') AS t(s)"
    )
    late = {}
    for across, over in (("min", "min"), ("max", "max"), ("min", "each")):
        detector = LateDataDetector(
            "0 minutes", event_time="at", partition="part", source="source", across=across, over_sources=over
        )  # type: ignore[arg-type]
        first = measure_event_times(begun, detector=detector, judgement=Judgement(Watermark(), NOON))
        assert (first.rows, first.late_rows, len(first.seen)) == (3, 0, 3)
        after = detector.tracking.advance(Watermark(), first.seen, NOON)
        second = measure_event_times(more, detector=detector, judgement=Judgement(after, NOON))
        late[across, over] = dict(second.late)
        assert second.late_share("app") == (1.0 if over != "min" else 0.0)
    assert late == {("min", "min"): {}, ("max", "max"): {"web": 1, "app": 1}, ("min", "each"): {"app": 1}}


@pytest.mark.shows("03.late-data-detector", 4, 6)
def test_a_row_exactly_at_the_watermark_of_its_own_source_is_in_time(spark: SparkSession) -> None:
    web, app = datetime(2026, 1, 5, 10, tzinfo=UTC), datetime(2026, 1, 5, 9, tzinfo=UTC)
    rows = [("web", "10:00:00"), ("web", "09:59:59"), ("app", "09:00:00"), ("app", "08:59:59"), ("new", "01:00:00")]
    frame = spark.createDataFrame([(name, f"2026-01-05 {at}") for name, at in rows], "source string, at string")
    own = Watermark(None, {"web": web, "app": app})
    split = split_late_rows(frame, event_time="at", source="source", watermark=own, judged_at=NOON)
    assert sorted((row.source, row.at[11:]) for row in split.late.collect()) == [
        ("app", "08:59:59"),
        ("web", "09:59:59"),
    ]
    assert sorted(row.source for row in split.on_time.collect()) == ["app", "new", "web"]
    detector = LateDataDetector("0 minutes", event_time="at", source="source", over_sources="each")
    measured = measure_event_times(frame, detector=detector, judgement=Judgement(own, NOON))
    assert measured.late == {"web": 1, "app": 1}


def test_where_no_row_was_counted_nobody_looks_for_one_again(spark: SparkSession, tmp_path: Path) -> None:
    visits(spark, "10:00", "09:00").write.parquet(str(tmp_path / "visits"))
    frame, early = spark.read.parquet(str(tmp_path / "visits")), Watermark(NOON - timedelta(hours=2, minutes=30))
    run = Run("r", "p", NOON)
    for late, unusable in ((0, 0), (1, 0), (1, 1), (None, None)):
        judgement = Judgement(early, NOON, late=late, unusable=unusable)
        context = GuardContext("clean", "raw", WHOLE, run, event_time="at", lateness=judgement)
        guarded = LateDataDetector("1 hour").on_batch(frame, context)
        assert guarded.side is not None
        read = [bool(frame.where(side.broken).inputFiles()) for side in (guarded.side, *guarded.also)]
        assert read == [unusable != 0, late != 0]


@pytest.mark.shows("03.late-data-detector", 4)
def test_a_partition_that_has_fallen_silent_holds_the_watermark_back_only_without_idle(
    spark: SparkSession, tmp_path: Path
) -> None:
    def batch(*rows: tuple[int, str]) -> DataFrame:
        return spark.createDataFrame([(part, f"2026-01-05 {at}:00") for part, at in rows], "part int, at string")

    reached = {}
    for idle in (None, "1 hour", "3 hours"):
        detector = LateDataDetector("30 minutes", event_time="at", partition="part", idle=idle)
        folder = tmp_path / str(idle)
        write(batch((0, "10:00"), (1, "09:00")), folder, 0, detector)
        later = write(batch((0, "11:00")), folder, 1, detector, judged_at=NOON + timedelta(hours=2))
        assert later.after.at is not None
        reached[idle] = f"{later.after.at:%H:%M}"
    assert reached == {None: "08:30", "1 hour": "10:30", "3 hours": "08:30"}


@pytest.mark.shows("03.late-data-detector", 2)
def test_what_spark_drops_of_the_worked_sequence_is_captured_before_it_and_its_windows_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = ["03:15", "03:00", "01:50", "03:11", "04:31"]
    land_batches(tmp_path / "landing", [[{"at": f"2023-06-30T{at}:00Z"}] for at in times])

    def windows(events: DataFrame, name: str) -> list[dict[str, Any]]:
        counts = events.withWatermark("at", "1 hour").groupBy(F.window("at", "10 minutes")).count()
        shown = counts.select(F.date_format("window.start", "HH:mm").alias("start"), "count")
        told = run_to_end(shown, tmp_path / f"checkpoint {name}", into=tmp_path / name)
        # The window of 03:20 and before are out, that of 04:30 to 04:40 is kept.
        assert table(spark, tmp_path / name) == [("03:00", 1), ("03:10", 2)]
        assert state_of(told, "numRowsTotal")[-1] == 1
        return told

    alone = windows(stream_of(spark, tmp_path / "landing", "at timestamp"), "alone")
    assert sum(state_of(alone, "numRowsDroppedByWatermark")) == 1

    # The detector before it: the same watermarks, and the row that Spark only counts is there.
    detector, marks = LateDataDetector("1 hour", event_time="at"), []
    for number, at in enumerate(times):
        event = spark.sql(f"SELECT timestamp'2023-06-30 {at}:00' AS at")
        account = write(event, tmp_path / "judged", number, detector)
        assert (account.on_time, account.late) == ((0, 1) if at == "01:50" else (1, 0))
        assert account.after.at is not None
        marks.append(f"{account.after.at:%H:%M}")
    assert marks == ["02:15", "02:15", "02:15", "02:15", "03:31"]
    assert [one["eventTime"]["watermark"][11:16] for one in alone[1:]] == marks
    assert [f"{row[0]:%H:%M}" for row in table(spark, tmp_path / "judged" / "late")] == ["01:50"]
    taken = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(tmp_path / "judged" / "on_time"))
    assert sum(state_of(windows(taken, "behind it"), "numRowsDroppedByWatermark")) == 0


@pytest.mark.shows("03.late-data-detector", 8)
def test_without_an_event_time_nothing_can_be_judged(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1)
    with pytest.raises(MissingColumnsError, match="no column at"):
        split_late_rows(frame, event_time="at", watermark=None, judged_at=NOON)
    with pytest.raises(ConfigurationError, match="nobody knows its unit"):
        split_late_rows(frame, event_time="id", watermark=None, judged_at=NOON)
    with pytest.raises(ConfigurationError, match="nothing tells when a row happened"):
        write(frame, tmp_path, 0, LateDataDetector("30 minutes"))
    taken = visits(spark, "10:00").withColumn("Watermark", F.lit(1))
    with pytest.raises(ConfigurationError, match="already has a column 'Watermark'"):
        split_late_rows(taken, event_time="at", watermark=None, judged_at=NOON)
