"""Compactor: many small files become few, rows stay, readers and writers go on, and old files go when they may."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.patterns.delta import live_files, rows, table, version
from tests.patterns.ingestion.tiny_files import tiny_commits

from lakewright.errors import ConfigurationError, MissingColumnsError, TargetError
from lakewright.model.maintenance import Maintenance
from lakewright.model.sizes import parse_size
from lakewright.patterns.idempotency.data_overwrite import read_version
from lakewright.patterns.ingestion import compaction_plan
from lakewright.patterns.ingestion.compaction_plan import Thresholds, plan_compaction
from lakewright.patterns.ingestion.compactor import (
    Compactor,
    compact_files,
    compact_table,
    keep_latest_per_key,
    vacuum_table,
)
from lakewright.patterns.ingestion.table_files import TableFiles, describe_files, read_files

MB = 1 << 20


@pytest.mark.shows("02.compactor", 1, 3, 4)
def test_500_tiny_commits_become_one_file_and_old_files_go_when_they_may(
    spark: SparkSession, lake_folder: Path
) -> None:
    path = tiny_commits(lake_folder / "visits", 500)
    before = sorted((f"v{number}", number) for number in range(500))
    done = compact_table(spark, path)
    assert (done.version, done.files_before, done.files_after) == (500, 500, 1)
    assert version(path) == 500
    assert sorted(table(spark, path)) == before
    assert len(live_files(path)) == 1
    assert done.bytes_after == sum((Path(path) / name).stat().st_size for name in live_files(path)) < done.bytes_before
    found = read_files(path)
    assert found is not None
    assert (found.files, found.bytes, len(found.names)) == (1, done.bytes_after, 1), "as the checkpoint tells"
    assert describe_files(spark, path).files == 1
    last = [json.loads(line) for line in (Path(path) / "_delta_log" / f"{500:020d}.json").read_text().splitlines()]
    assert not any(action[kind]["dataChange"] for action in last for kind in ("add", "remove") if kind in action)
    again = compact_table(spark, path)
    assert (again.version, again.reason) == (None, "1 file, below 2")
    assert version(path) == 500, "a table without small files is left alone"

    vacuum_table(spark, path, log=False)
    assert rows(read_version(spark, path, 1)) == before[:2], "within the retention earlier versions open"
    with pytest.raises(ConfigurationError, match=r"1 hour is below the safe minimum of 7 days.*Nothing was deleted"):
        vacuum_table(spark, path, retention="1 hour")
    on_disk = sorted(Path(path).glob("*.parquet"))
    listed = vacuum_table(spark, path, retention="0 hours", dry_run=True, unsafe=True)
    assert len(listed.files) == 500
    assert all(file.endswith(".parquet") for file in listed.files)
    assert sorted(Path(path).glob("*.parquet")) == on_disk, "a dry run deletes nothing"
    assert vacuum_table(spark, path, retention="0 hours", unsafe=True).deleted == 500
    assert [file.name for file in Path(path).glob("*.parquet")] == list(live_files(path))
    with pytest.raises(TargetError, match=r"version 1 .* is no longer available: 2 of its 2 files"):
        read_version(spark, path, 1)
    assert sorted(table(spark, path)) == before


@pytest.mark.shows("02.compactor", 5)
def test_what_dies_half_way_has_changed_nothing_and_partitions_can_be_chosen(
    spark: SparkSession, lake_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps = {"delta.deletedFileRetentionDuration": "interval 30 days"}
    days = ["2026-01-01", "2026-01-02", None]
    path = tiny_commits(lake_folder / "visits", 12, days=days, properties=keeps)
    before = table(spark, path)
    lost = Path(path) / "day=2026-01-02" / "part-00004.snappy.parquet"
    hidden = lost.rename(lake_folder / "hidden")
    with pytest.raises(Exception, match="part-00004"):
        compact_table(spark, path)
    assert version(path) == 11, "the commit was never made"
    hidden.rename(lost)
    assert table(spark, path) == before
    for wrong in ("visit = 'v1'", "dya = '2026-01-01'", "day ="):
        with pytest.raises(ConfigurationError, match="partition columns only"):
            compact_table(spark, path, where=wrong)

    hot = compact_table(spark, path, where="day = '2026-01-02'")
    assert (hot.version, hot.files_before, hot.files_after) == (12, 12, 9)
    assert compact_table(spark, path, min_files=9).reason == "9 files, of which 8 can be joined, below 9"
    assert compact_table(spark, path, mean_below="100 B").version is None
    monkeypatch.setattr(compaction_plan, "PIECE_BYTES", 1)
    found = read_files(path)
    assert found is not None
    first, second = (piece or "" for piece in plan_compaction(found, Thresholds(MB, 2, 0.0)).pieces)
    assert compact_table(spark, path, where=f"{first} OR {second}").files_after == 3, "a date, and NULL"
    assert table(spark, path) == before
    assert compact_table(spark, path).reason == "3 files in 3 partitions, none of which can be joined"
    assert version(path) == 13
    with pytest.raises(ConfigurationError, match="8 days is below the safe minimum of 30 days"):
        vacuum_table(spark, path, retention="8 days")


def test_a_file_that_gets_a_deletion_vector_is_still_there(tmp_path: Path) -> None:
    path = tiny_commits(tmp_path / "visits", 3)
    log = Path(path) / "_delta_log"
    first = json.loads((log / f"{0:020d}.json").read_text().splitlines()[-1])["add"]
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    marked = {"add": {**first, "deletionVector": {**vector, "cardinality": 1}}}
    actions = [marked, {"remove": {"path": first["path"], "dataChange": True}}]
    (log / f"{3:020d}.json").write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in actions))
    found = read_files(path)
    assert found is not None
    assert (found.files, len(found.names)) == (3, 3), "removed and added under its own name"


@pytest.mark.shows("02.compactor", 2)
def test_a_streaming_writer_and_a_reader_go_on(spark: SparkSession, lake_folder: Path) -> None:
    landing, path, copy = (str(lake_folder / name) for name in ("landing", "visits", "copy"))
    Path(landing).mkdir()

    def land(*numbers: int) -> None:
        for number in numbers:
            draft = Path(landing) / f".{number}"
            draft.write_text(json.dumps({"visit": f"v{number}"}) + "\n")
            draft.rename(Path(landing) / f"{number}.json")

    def follow(source: object, target: str) -> object:
        writer = source.writeStream.format("delta").option("checkpointLocation", f"{target}.checkpoint")  # type: ignore[attr-defined]
        return writer.start(target)

    land(1, 2)
    stream = spark.readStream.schema("visit string").option("maxFilesPerTrigger", 1)
    writing = follow(stream.json(landing), path)
    writing.processAllAvailable()  # type: ignore[attr-defined]
    reading = follow(spark.readStream.format("delta").load(path), copy)
    try:
        land(3)  # both queries have something to do while the files are joined
        compacted = compact_table(spark, path)
        land(4)
        for query in (writing, reading):
            query.processAllAvailable()  # type: ignore[attr-defined]
            assert query.exception() is None  # type: ignore[attr-defined]
    finally:
        for query in (writing, reading):
            query.stop()  # type: ignore[attr-defined]
    assert compacted.version is not None
    assert compacted.version < version(path), "the writer went on after it"
    everything = [(f"v{number}",) for number in range(1, 5)]
    assert table(spark, path) == everything
    assert table(spark, copy) == everything, "no row is lost, and none is read twice"


@pytest.mark.shows("02.compactor", 7)
def test_plain_files_are_refused_or_joined_aside_never_in_place(spark: SparkSession, lake_folder: Path) -> None:
    raw = lake_folder / "raw"
    raw.mkdir()
    lines = [f'{{"n": {n}.50,  "s": "é"}}' for n in range(4)]
    for number, line in enumerate(lines):
        (raw / f"{number}.json").write_text(line + "\n", encoding="utf-8")
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in raw.iterdir()}
    with pytest.raises(
        ConfigurationError, match=r"no Delta table at .*It holds .json files. Nothing was changed"
    ) as told:
        compact_table(spark, str(raw))
    assert "compact_files(" in str(told.value.hint)
    with pytest.raises(ConfigurationError, match="no Delta table"):
        compact_table(spark, str(lake_folder / "nowhere"))

    joined = str(lake_folder / "joined")
    done = compact_files(spark, str(raw), joined, file_format="json")
    assert (done.files_before, done.files_after) == (4, 1)
    assert sorted(row[0] for row in spark.read.text(joined).collect()) == lines, "character by character"
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in raw.iterdir()} == before
    assert compact_files(spark, joined, joined, file_format="json").files_before == 1, "a link can be exchanged again"
    with pytest.raises(ConfigurationError, match="ln -s"):
        compact_files(spark, str(raw), str(raw), file_format="json")

    table_ = lake_folder / "table"
    (table_ / "_delta_log").mkdir(parents=True)
    nested = lake_folder / "nested"
    (nested / "day=1").mkdir(parents=True)
    empty = lake_folder / "empty"
    empty.mkdir()
    for folder, words in (
        (table_, "is a Delta table"),
        (nested, "day=1"),
        (empty, "no file"),
        ("s3a://b/x", "no folder"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            compact_files(spark, str(folder), joined, file_format="json")
    with pytest.raises(ConfigurationError, match="file_format is one of"):
        compact_files(spark, str(raw), joined, file_format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="several lines"):
        compact_files(spark, str(raw), joined, file_format="json", options={"multiLine": "true"})


def test_csv_and_parquet_keep_their_values_and_columns(spark: SparkSession, lake_folder: Path) -> None:
    raw = lake_folder / "csv"
    raw.mkdir()
    (raw / "1.csv").write_text("id;name\n007;a\n")
    (raw / "2.csv").write_text("id;name\n008;b\n")
    options = {"header": "true", "sep": ";"}
    done = compact_files(spark, str(raw), f"{raw}.joined", file_format="csv", options=options, compression="gzip")
    assert done.files_after == 1
    assert rows(spark.read.options(**options).csv(f"{raw}.joined")) == [("007", "a"), ("008", "b")]
    spark.sql("SELECT 1 AS a").write.parquet(f"{raw}.parquet")
    spark.sql("SELECT 2 AS a, 'x' AS b").write.mode("append").parquet(f"{raw}.parquet")
    compact_files(spark, f"{raw}.parquet", f"{raw}.one", file_format="parquet")
    assert rows(spark.read.parquet(f"{raw}.one").select("a", "b")) == [(1, None), (2, "x")]


def test_a_clustered_table_is_clustered_and_takes_no_filter(spark: SparkSession, lake_folder: Path) -> None:
    path = str(lake_folder / "visits")
    spark.sql(f"CREATE TABLE delta.`{path}` (visit STRING) USING delta CLUSTER BY (visit)")
    for visit in ("v1", "v2"):
        spark.createDataFrame([(visit,)], "visit string").coalesce(1).write.format("delta").mode("append").save(path)
    with pytest.raises(ConfigurationError, match="liquid clustering"):
        compact_table(spark, path, where="visit = 'v1'")
    done = compact_table(spark, path)
    assert (done.version, done.files_after) == (3, 1)
    assert compact_table(spark, path).version is None
    assert table(spark, path) == [("v1",), ("v2",)]


def test_the_latest_value_needs_known_columns(spark: SparkSession) -> None:
    log = spark.createDataFrame(
        [("a", None, 1, 0), ("a", "x", 0, 0)], "key string, value string, offset int, partition int"
    )
    assert keep_latest_per_key(log).collect() == []
    assert [row["offset"] for row in keep_latest_per_key(log, value=None).collect()] == [1]
    with pytest.raises(MissingColumnsError, match="offfset"):
        keep_latest_per_key(log, order=["offfset"])
    for wrong in ({"keys": []}, {"order": "offset"}):
        with pytest.raises(ConfigurationError, match="a list of at least one column"):
            keep_latest_per_key(log, **wrong)  # type: ignore[arg-type]


LIMITS = Thresholds(target_bytes=100 * MB, min_files=3, min_benefit=0.5)


def files(*sizes: int, **more: object) -> TableFiles:
    return TableFiles(len(sizes), sum(sizes), partitions={(): tuple(sizes)}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "reason", "due"),
    [
        (files(MB, MB), "2 files, below 3", False),
        (files(90 * MB, 90 * MB, 90 * MB), "3 files, none of which can be joined", False),
        (files(90 * MB, MB, MB), "3 files, of which 2 can be joined, below 3", False),
        (files(*[90 * MB] * 5, MB, MB, MB), "8 files, of which 3 can be joined into 1: 25% fewer, below 50%", False),
        (files(MB, MB, MB, MB), "4 files, of which 4 can be joined into 1", True),
        (files(70 * MB, 70 * MB, 40 * MB, 40 * MB), "4 files, of which 2 can be joined, below 3", False),
        (TableFiles(4, 4 * MB), "4 files of 1 MB on average", True),
        (TableFiles(4, 400 * MB), "4 files of 100 MB on average", False),
        (TableFiles(4, 4 * MB, clustered=True), "4 files, to be clustered", True),
    ],
)
def test_a_table_is_compacted_where_its_figures_say_that_it_pays(found: TableFiles, reason: str, due: bool) -> None:
    plan = plan_compaction(found, LIMITS)
    assert (plan.reason, plan.due) == (reason, due)
    large = plan_compaction(found, replace(LIMITS, mean_below=1))
    assert not large.due


def test_a_large_compaction_is_done_in_pieces_so_that_nobody_waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_plan, "PIECE_BYTES", 5)
    partitions = {("2026-01-01", "it's"): (1, 1, 1), (None, "b"): (1, 1), ("2026-01-02", "c"): (1, 1), ("x", "d"): (9,)}
    types = {"day": "date", "name": "string"}
    found = TableFiles(8, 16, ("day", "name"), partitions=partitions, types=types)
    plan = plan_compaction(found, Thresholds(10, 2, 0.0))
    assert (plan.joined, plan.into) == (7, 3)
    assert plan.pieces == (
        "(`day` = CAST('2026-01-01' AS date) AND `name` = CAST('it\\'s' AS string)) OR "
        "(`day` IS NULL AND `name` = CAST('b' AS string))",
        "(`day` = CAST('2026-01-02' AS date) AND `name` = CAST('c' AS string))",
    )
    assert plan_compaction(replace(found, types={}), Thresholds(10, 2, 0.0)).pieces == (None,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_size": "128"}, "amount of bytes"),
        ({"target_size": "0 MB"}, "at least 1 B"),
        ({"min_files": 1}, "from 2 on"),
        ({"min_benefit": 1.0}, "share"),
        ({"mean_below": "small"}, "amount of bytes"),
        ({"when": "after runs"}, "'maintain' or 'after run'"),
        ({"retention": "soon"}, "length of time"),
        ({"retention": "6 days"}, "below the safe minimum of 7 days"),
    ],
)
def test_a_wrong_option_is_refused_before_spark_is_needed(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Compactor(**options)  # type: ignore[arg-type]


def test_the_policy_keeps_files_as_long_as_the_history_does() -> None:
    from datetime import timedelta

    days = timedelta(days=1)
    assert isinstance(Compactor(), Maintenance)
    assert Compactor().keeps(None) == Compactor().keeps(2 * days) == 7 * days
    assert Compactor().keeps(30 * days) == 30 * days
    assert Compactor(retention="2 days", unsafe=True).keeps(30 * days) == 2 * days
    assert parse_size("1.5 gb") == 1536 * MB
