"""Dead-Letter: bad rows are set aside with all their reasons, none is lost or doubled, and too many stop the job."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.patterns.counting import computed, count_computed
from tests.patterns.delta import rows, table, version

from lakewright.errors import ConfigurationError, LimitExceeded
from lakewright.failpoints import arm
from lakewright.model.protocols import GuardContext
from lakewright.model.runs import Run
from lakewright.model.slices import WHOLE
from lakewright.patterns.error_management import dead_letter_writing
from lakewright.patterns.error_management.dead_letter import DeadLetter, split_dead_letters, survives
from lakewright.patterns.error_management.dead_letter_writing import DeadLetterAccount, write_with_dead_letters
from lakewright.store import Receipts

DEVICES = "type string, full_name string, version string"
NAMED = {"name_is_whole": survives(["full_name", "version"], "concat(full_name, version)")}


def test_a_rejected_row_names_every_rule_it_broke(spark: SparkSession) -> None:
    visits = spark.createDataFrame([("v1", 3), (None, -1), ("v3", None)], "visit string, pages int")
    rules = {"has_id": F.col("visit").isNotNull(), "some_pages": lambda: F.col("pages") > 0, "known": "visit <> 'x'"}
    split = split_dead_letters(visits, rules=rules)
    assert rows(split.valid) == [("v1", 3)]
    assert {row["pages"]: row["broken_rules"] for row in split.rejected.collect()} == {
        -1: ["has_id", "some_pages", "known"],
        None: ["some_pages"],
    }


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pages=st.lists(st.none() | st.integers(-2, 2), max_size=8))
def test_each_row_is_in_exactly_one_half(spark: SparkSession, pages: list[int | None]) -> None:
    visits = spark.createDataFrame([(p,) for p in pages], "pages int")
    split = split_dead_letters(visits, rules={"some_pages": F.col("pages") > 0})
    assert rows(split.valid.union(split.rejected.drop("broken_rules"))) == rows(visits)


def test_wrong_options_are_refused(spark: SparkSession) -> None:
    for options in ({"rules": {}}, {"rules": {"a": "b"}, "stop_above": 2}, {"rules": {"a": "b"}, "stop_above_rows": -1},
                    {"rules": {"a/b": "c"}}, {"rules": {"a": "b"}, "record": "half"}):  # fmt: skip
        with pytest.raises(ConfigurationError):
            DeadLetter(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="broken_rules"):
        split_dead_letters(spark.sql("SELECT 1 AS broken_rules"), rules={"a": "true"})
    with pytest.raises(ConfigurationError, match="list"):
        survives("version", "try_cast(version AS int)")


def test_a_dead_letter_copies_what_the_rules_read_unless_told_otherwise(spark: SparkSession) -> None:
    visits = spark.createDataFrame([], "visit_id string, Page string, `page id` int, visit int, _lw_hash bigint")
    rules = {"has_id": "visit_id IS NOT NULL", "known": lambda: F.col("page").like("/%"), "some": "`page id` > 0"}
    run = Run("r", "visits", datetime(2026, 1, 2, tzinfo=UTC), "manual")

    def kept(record: str, told: tuple[str, ...] = ("_lw_hash",)) -> tuple[str, ...]:
        context = GuardContext(dataset="clean", input="raw", slice=WHOLE, run=run, record_columns=told)
        side = DeadLetter(rules=rules, record=record).on_batch(visits, context).side  # type: ignore[arg-type]
        assert side is not None
        return side.keep

    assert kept("rules") == ("visit_id", "Page", "page id")
    assert kept("whole") == ("visit_id", "Page", "page id", "visit")
    assert kept("identity") == ()
    assert kept("rules", told=()) == kept("identity", told=()) == kept("whole")


@pytest.mark.shows("03.dead-letter", 2)
def test_the_batch_example_reads_its_source_once_and_parts_it(spark: SparkSession, tmp_path: Path) -> None:
    devices = spark.createDataFrame(
        [("phone", "X", "1"), ("watch", None, "2"), ("radio", "R", None), ("lamp", None, None)], DEVICES
    )
    watched = count_computed(devices, "type", tmp_path / "read")
    account = write_with_dead_letters(
        watched,
        rules=NAMED,
        valid_path=f"{tmp_path}/devices",
        dead_letter_path=f"{tmp_path}/dead",
        run="r1",
        job="devices",
    )
    assert [row[0] for row in table(spark, tmp_path / "devices")] == ["lamp", "phone"]
    dead = spark.read.format("delta").load(f"{tmp_path}/dead")
    assert rows(dead.select("type", "job", "job_version", "run", F.col("broken_rules")[0])) == [
        ("radio", "devices", "1", "r1", "name_is_whole"),
        ("watch", "devices", "1", "r1", "name_is_whole"),
    ]
    assert account == DeadLetterAccount(read=4, valid=2, rejected=2, rules={"name_is_whole": 2})
    assert computed(tmp_path / "read") == 4


@pytest.mark.shows("03.dead-letter", 3)
def test_a_crash_between_the_two_writes_and_a_repeat_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = spark.createDataFrame([("phone", "X", "1"), ("watch", None, "2")], DEVICES)
    options = {"rules": NAMED, "valid_path": f"{tmp_path}/devices", "dead_letter_path": f"{tmp_path}/dead", "job": "j"}

    def die_after_the_dead_letters(frame: object, path: str, **given: object) -> None:
        if path.endswith("devices"):
            raise KeyboardInterrupt
        real(frame, path, **given)  # type: ignore[arg-type]

    real = dead_letter_writing.overwrite_slice
    monkeypatch.setattr(dead_letter_writing, "overwrite_slice", die_after_the_dead_letters)
    with pytest.raises(KeyboardInterrupt):
        write_with_dead_letters(devices, run="r1", **options)  # type: ignore[arg-type]
    monkeypatch.undo()
    assert not devices.is_cached
    for run in ("r1", "r1", "r0"):
        write_with_dead_letters(devices, run=run, **options)  # type: ignore[arg-type]
    assert [row[0] for row in table(spark, tmp_path / "devices")] == ["phone"]
    dead = spark.read.format("delta").load(f"{tmp_path}/dead")
    assert rows(dead.groupBy("run").count()) == [("r0", 1), ("r1", 1)]


def test_letters_keep_the_columns_of_earlier_ones_and_gain_those_of_later_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(run: str, *columns: str) -> None:
        write_with_dead_letters(
            spark.range(2).selectExpr("id", *columns),
            rules={"not_zero": "id > 0"},
            valid_path=f"{tmp_path}/{run}",
            dead_letter_path=f"{tmp_path}/dead",
            run=run,
            job="visits",
        )

    write("r1", "'/home' AS page")
    for run in ("r2", "r2"):
        write(run, "'phone' AS Device")
    write("r3", "'/about' AS Page", "'tv' AS device")
    dead = spark.read.format("delta").load(f"{tmp_path}/dead")
    assert rows(dead.select("run", "page", "device")) == [
        ("r1", "/home", None), ("r2", None, "phone"), ("r3", "/about", "tv"),
    ]  # fmt: skip


@pytest.mark.shows("03.dead-letter", 4, 8)
def test_too_many_bad_rows_or_no_place_for_them_publish_nothing(spark: SparkSession, tmp_path: Path) -> None:
    devices = spark.createDataFrame([("phone", "X", "1"), ("watch", None, "2")], DEVICES)
    options = {"rules": NAMED, "valid_path": f"{tmp_path}/devices", "dead_letter_path": f"{tmp_path}/dead", "job": "j"}
    with pytest.raises(LimitExceeded, match=r"1 of 2 rows \(50.0%\).*Nothing was published") as stopped:
        write_with_dead_letters(devices, run="r1", stop_above=0.4, **options)  # type: ignore[arg-type]
    assert stopped.value.share == 0.5
    assert not (tmp_path / "devices").exists()
    assert len(table(spark, tmp_path / "dead")) == 1
    with pytest.raises(ConfigurationError, match="already has a column 'Run'"):
        write_with_dead_letters(devices.selectExpr("*", "1 AS Run"), run="r1", **options)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("no folder")
    options["dead_letter_path"] = f"{tmp_path}/file/dead"
    with pytest.raises(Exception, match="file"):
        write_with_dead_letters(devices, run="r1", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "devices").exists()


PIPELINE = """
    from lakewright import DeadLetter, JsonFiles, Pipeline

    visits = Pipeline("visits", start="2026-01-01")
    visits.source(
        "raw", JsonFiles("landing"), schema="visit string, at timestamp, page string", event_time="at"
    )

    FAILURES = []

    @visits.dataset(
        event_time="at",
        retries=2,
        rows="preserve",
        guards_in={"raw": [DeadLetter(rules={"known_page": "page LIKE '/%'"}, stop_above=0.5)]},
    )
    def clean(raw):
        if FAILURES:
            raise FAILURES.pop()
        return raw
"""
GOOD = '{"visit": "v1", "at": "2026-01-01 10:00:00", "page": "/a"}\n'
BAD = '{"visit": "v2", "at": "2026-01-01 11:00:00", "page": "a"}\n'


@pytest.mark.shows("03.dead-letter", 3, 4, 5, 8)
def test_a_pipeline_keeps_the_account_through_failures_of_every_kind(project) -> None:  # type: ignore[no-untyped-def]
    opened = project({"pipelines/visits.py": PIPELINE, "landing/one.json": GOOD + GOOD.replace("v1", "v3") + BAD})
    failures = opened.graph["clean"].function.__globals__["FAILURES"]
    letters = Path(opened.lake.resolve("_lakewright/dead_letters"))

    # The dead-letter store cannot be written: the step fails, nothing is published.
    letters.parent.mkdir(parents=True, exist_ok=True)
    letters.write_text("in the way")
    assert opened.run(at="2026-01-02").state == "failed"
    assert not opened.lake.log("clean").exists()
    letters.unlink()

    # A transient error is retried; what was good stays good.
    failures[:] = [ConnectionError("the database is down"), ConnectionError("the database is down")]
    summary = opened.run(at="2026-01-02")
    (made,) = [outcome for outcome in summary.made if outcome.dataset == "clean"]
    assert (summary.state, made.attempts) == ("ok", 3)
    assert made.receipt.counters.rejected == {"known_page": 1}
    assert (made.receipt.counters.read, made.receipt.counters.written) == (3, 2)

    # A failure between the two commits, and a repeat: neither table loses or doubles a row.
    arm({"LAKEWRIGHT_FAILPOINT": "set_aside", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    try:
        assert opened.run(at="2026-01-02", again=True).state == "failed"
    finally:
        arm({})
    assert opened.run(at="2026-01-02", again=True, slices=["2026-01-01"]).state == "ok"
    assert [row.visit for row in opened.show("clean").orderBy("visit").collect()] == ["v1", "v3"]
    assert opened.sql("SELECT record FROM dead_letters").count() == 1

    # Now most rows are bad: the step stops, and readers keep what they had.
    (opened.folder / "landing/two.json").write_text(BAD * 4)
    before = version(opened.lake.resolve("clean"))
    stopped = opened.run(at="2026-01-02")
    assert stopped.state == "refused"
    assert isinstance(stopped.errors[0], LimitExceeded)
    assert "71.4%" in str(stopped.errors[0])
    assert version(opened.lake.resolve("clean")) == before
    # Of how many rows, no receipt tells any more (a log was cleaned): they are counted, and the limit holds.
    with patch.object(Receipts, "rows_between", return_value=None):
        (error,) = opened.run(at="2026-01-02").errors
    assert "5 of 7 rows (71.4%)" in str(error)
    assert version(opened.lake.resolve("clean")) == before
    shutil.rmtree(opened.folder / "landing")
