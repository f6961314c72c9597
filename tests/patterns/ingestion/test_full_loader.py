"""Full Loader alone: a reader sees all of one load, a bad one changes nothing, and there is a way back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError, InputError, TargetError
from lakewright.patterns.idempotency.versions import read_version
from lakewright.patterns.ingestion.full_loader import FullLoader, load_whole, rollback_load
from lakewright.patterns.ingestion.mirror_folder import mirror_folder

NOTE = "spark.databricks.delta.commitInfo.userMetadata"
DEVICES = "type string, full_name string, version string"
ONE = [("phone", "Galaxy", "1.0"), ("tablet", "Slate", "2.0"), ("watch", "Tick", "1.2")]
TWO = [("phone", "Galaxy", "1.1"), ("tablet", "Slate", "2.0"), ("laptop", "Pad", "9.0")]


@pytest.fixture
def devices(spark, tmp_path):
    """The first version, loaded."""
    path = str(tmp_path / "devices")
    load_whole(spark.createDataFrame(ONE, DEVICES), path, version=1)
    return path


def rows(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


@pytest.mark.shows("02.full-loader", 1)
@pytest.mark.shows("02.full-loader", 5)
@pytest.mark.shows("02.full-loader", 6)
def test_the_table_is_the_last_load_and_every_earlier_one_can_be_had_again(spark, devices):
    load_whole(spark.createDataFrame(TWO, DEVICES), devices, version=2)
    assert rows(spark, devices) == sorted(TWO)
    assert sorted(tuple(row) for row in read_version(spark, devices, version=0).collect()) == sorted(ONE)

    with pytest.raises(InputError, match="version 2 is there, which is newer than 1"):
        load_whole(spark.createDataFrame(ONE, DEVICES), devices, version=1)
    assert rows(spark, devices) == sorted(TWO)
    load_whole(spark.createDataFrame(ONE, DEVICES), devices, version=1, older="replace")
    assert rows(spark, devices) == sorted(ONE)

    spark.conf.set(NOTE, "mine")
    rollback_load(spark, devices, version=2)
    assert rows(spark, devices) == sorted(TWO)
    assert spark.conf.get(NOTE) == "mine", "the settings of the session stay"
    spark.conf.unset(NOTE)
    rollback_load(spark, devices)
    assert rows(spark, devices) == sorted(ONE)
    with pytest.raises(TargetError, match=r"no load of version 7 to go back to\. It holds: 1, 2"):
        rollback_load(spark, devices, version=7)


@pytest.mark.shows("02.full-loader", 2)
def test_a_reader_meets_the_whole_of_one_load_at_any_moment(spark, devices):
    seen, wrong, begun, over = set(), [], threading.Event(), threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                seen.add(tuple(rows(spark, devices)))
            except Exception as error:
                wrong.append(error)
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert begun.wait(60)
        load_whole(spark.createDataFrame(TWO, DEVICES).repartition(3), devices, version=2)
    finally:
        over.set()
        reader.join()
    seen.add(tuple(rows(spark, devices)))
    assert (wrong, seen) == ([], {tuple(sorted(ONE)), tuple(sorted(TWO))})


@pytest.mark.shows("02.full-loader", 3)
def test_a_load_that_dies_between_its_files_and_its_commit_changes_nothing(spark, devices):
    before = set(Path(devices).glob("*.parquet"))
    # One task writes its file at once; the other fails when it has written for a while.
    dying = (
        spark.createDataFrame(TWO, DEVICES)
        .coalesce(1)
        .union(
            spark.range(0, 400_000, 1, 1).selectExpr(
                "if(id = 399999, raise_error('out of power'), 'x') AS type", "'x' AS full_name", "'x' AS version"
            )
        )
    )
    with pytest.raises(Exception, match="out of power"):
        load_whole(dying, devices, version=2, min_rows=0)
    assert set(Path(devices).glob("*.parquet")) > before, "files were written"
    assert rows(spark, devices) == sorted(ONE)
    load_whole(spark.createDataFrame(TWO, DEVICES), devices, version=2)
    assert rows(spark, devices) == sorted(TWO)


def test_a_load_that_cannot_be_right_is_refused_before_anything_is_changed(spark, devices):
    empty = spark.createDataFrame([], DEVICES)
    with pytest.raises(InputError, match="the load has 0 rows, and min_rows is 1"):
        load_whole(empty, devices)
    with pytest.raises(InputError, match="has 1 row where there were 3"):
        load_whole(spark.createDataFrame(TWO[:1], DEVICES), devices, max_loss=0.5)
    bad = spark.createDataFrame([*TWO[:2], ("laptop", "Pad", None)], DEVICES)
    with pytest.raises(InputError, match=r"1 row of 3 breaks the rule 'numbered' \(version RLIKE"):
        load_whole(bad, devices, rules={"numbered": "version RLIKE '^[0-9.]+$'"})
    assert rows(spark, devices) == sorted(ONE)
    load_whole(empty, devices, min_rows=0)
    assert rows(spark, devices) == []


def test_wrong_limits_are_told_at_once():
    for options in ({"min_rows": -1}, {"max_loss": 2}, {"unreadable": "drop"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            FullLoader(**options)


def test_a_mirror_holds_exactly_what_its_source_holds(tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    for name, text in {"date=2026-01-01/a.json": "1", "date=2026-01-01/b.json": "22", "top.csv": ""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    assert mirror_folder(source, target).copied == ("date=2026-01-01/a.json", "date=2026-01-01/b.json", "top.csv")
    (source / "date=2026-01-01/a.json").write_text("9")
    (source / "date=2026-01-01/b.json").unlink()
    (source / "date=2026-01-02").mkdir()
    (source / "date=2026-01-02/c.json").write_text("3")
    (target / ".lakewright-mirror-top.csv").write_text("half")  # a mirror that died here
    done = mirror_folder(source, target)
    assert done.copied == ("date=2026-01-01/a.json", "date=2026-01-02/c.json")
    assert (done.deleted, done.same) == (("date=2026-01-01/b.json",), 1)
    found = {p.relative_to(target).as_posix(): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert found == {"date=2026-01-01/a.json": "9", "date=2026-01-02/c.json": "3", "top.csv": ""}
    assert mirror_folder(source, target).copied == ()

    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "missing"):
        with pytest.raises(InputError, match="would delete everything"):
            mirror_folder(tmp_path / nothing, target)
    with pytest.raises(ConfigurationError, match="within each other"):
        mirror_folder(source, source / "copy")
    assert (target / "top.csv").exists()


@pytest.mark.shows("02.incremental-loader", 8)
def test_a_partition_is_copied_to_its_own_place_and_never_flattened(tmp_path):
    day = tmp_path / "in" / "date=2026-01-01" / "hour=07"
    day.mkdir(parents=True)
    (day / "a.json").write_text("1")
    for wrong in ("out", "out/date=2026-01-01", "out/date=2026-01-02/hour=07"):
        with pytest.raises(ConfigurationError, match="is the partition date=2026-01-01/hour=07"):
            mirror_folder(day, tmp_path / wrong)
    assert not (tmp_path / "out").exists()
    mirror_folder(day, tmp_path / "out" / "date=2026-01-01" / "hour=07")
    mirror_folder(tmp_path / "in", tmp_path / "all")
    assert (tmp_path / "all/date=2026-01-01/hour=07/a.json").read_text() == "1"
