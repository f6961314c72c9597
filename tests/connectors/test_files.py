"""Folders of files: what is new, what is gone, and that every record is kept."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakewright.connectors.files import CsvFiles, JsonFiles, ParquetFiles
from lakewright.connectors.read_errors import explain_read_error
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError
from lakewright.model.arrivals import Arrival
from lakewright.model.protocols import Found, SourceContext

FolderSource = JsonFiles | CsvFiles | ParquetFiles
TIME = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def put(project: Path, name: str, content: str | bytes) -> Path:
    file = project / "in" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def context(project: Path, known: Sequence[Arrival] = ()) -> SourceContext:
    files = {file.path: (file.version, arrival.number) for arrival in known for file in arrival.files}
    return SourceContext("visits", project, known_files=files)


def arrival(found: Found | None, number: int = 1) -> Arrival:
    assert found is not None
    window = json.loads(json.dumps(found.window))  # as the store gives it back
    return Arrival("visits", number, window, TIME, files=found.files, supersedes=found.supersedes)


def read(spark: SparkSession, source: FolderSource, project: Path, schema: str | None) -> DataFrame:
    ctx = context(project)
    declared = None if schema is None else struct(schema)
    return source.read(arrival(source.look(ctx)), spark=spark, schema=declared, ctx=ctx)


def struct(ddl: str) -> StructType:
    kind = StructType.fromDDL(ddl)
    assert isinstance(kind, StructType)
    return kind


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows, in the order of the first column's text."""
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=str)


def json_rows(spark: SparkSession, project: Path, text: str | bytes, schema: str, *columns: str) -> list[Any]:
    put(project, "a.json", text)
    return rows(read(spark, JsonFiles("in"), project, schema), *columns)


class TestLooking:
    def test_a_new_folder_gives_all_its_files_in_the_order_of_their_paths(self, project: Path) -> None:
        for name in ("b.json", "a/c.json", "a.json"):
            put(project, name, "{}\n")
        found = JsonFiles("in").look(context(project))
        assert found is not None
        assert [file.path for file in found.files] == ["a.json", "a/c.json", "b.json"]
        assert found.summary == "3 new files, 9 bytes"
        assert found.window["root"] == "in"
        assert found.window["files"] == [[file.path, file.version, 3] for file in found.files]

    def test_a_file_that_is_known_in_its_version_is_not_new(self, project: Path) -> None:
        put(project, "a.json", "{}")
        first = arrival(JsonFiles("in").look(context(project)))
        assert JsonFiles("in").look(context(project, [first])) is None

    def test_a_replaced_file_supersedes_its_old_version(self, project: Path) -> None:
        put(project, "a.json", "{}")
        put(project, "b.json", "{}")
        first = arrival(JsonFiles("in").look(context(project)), 7)
        put(project, "a.json", '{"id": 1}')
        found = JsonFiles("in").look(context(project, [first]))
        assert found is not None
        assert [file.path for file in found.files] == ["a.json"]
        assert found.supersedes == ((7, first.files[0]),)
        assert found.summary == "1 replaced, 9 bytes"

    def test_the_same_size_at_another_time_is_another_version(self, project: Path) -> None:
        file = put(project, "a.json", "{}")
        first = arrival(JsonFiles("in").look(context(project)))
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 5_000_000))
        assert JsonFiles("in").look(context(project, [first])) is not None

    def test_a_deleted_file_is_no_arrival(self, project: Path) -> None:
        file = put(project, "a.json", "{}")
        first = arrival(JsonFiles("in").look(context(project)))
        file.unlink()
        assert JsonFiles("in").look(context(project, [first])) is None

    def test_hidden_and_temporary_files_are_left_out(self, project: Path) -> None:
        for name in (".a.json", "_SUCCESS", "b.json.tmp", ".b.crc", "c._COPYING_", "d.part", "_log/e.json"):
            put(project, name, "{}")
        assert JsonFiles("in").look(context(project)) is None

    def test_a_pattern_picks_by_name_or_with_a_slash_by_path(self, project: Path) -> None:
        for name in ("a.json", "b.csv", "eu/c.json", "us/d.json"):
            put(project, name, "{}")

        def paths(pattern: str) -> list[str]:
            found = JsonFiles("in", pattern=pattern).look(context(project))
            return [] if found is None else [file.path for file in found.files]

        assert paths("*.json") == ["a.json", "eu/c.json", "us/d.json"]
        assert paths("eu/*") == ["eu/c.json"]

    def test_a_bounded_arrival_leaves_the_rest_for_the_next(self, project: Path) -> None:
        for name in ("a", "b", "c"):
            put(project, f"{name}.json", "x" * 10)
        source = JsonFiles("in", max_files=2)
        first = arrival(source.look(context(project)), 1)
        assert [file.path for file in first.files] == ["a.json", "b.json"]
        second = source.look(context(project, [first]))
        assert second is not None
        assert [file.path for file in second.files] == ["c.json"]
        found = source.look(context(project))
        assert found is not None
        assert found.summary == "2 new files, 20 bytes, 1 more for the next arrival"

    def test_a_bound_in_bytes_always_lets_one_file_through(self, project: Path) -> None:
        put(project, "a.json", "x" * 100)
        put(project, "b.json", "x" * 100)
        found = JsonFiles("in", max_bytes=50).look(context(project))
        assert found is not None
        assert [file.path for file in found.files] == ["a.json"]

    def test_a_missing_folder_is_named_with_its_cure(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"no folder .*in.*Create it"):
            JsonFiles("in").look(context(tmp_path))

    def test_an_empty_folder_has_nothing_new(self, project: Path) -> None:
        assert JsonFiles("in").look(context(project)) is None

    def test_a_file_instead_of_a_folder_is_refused(self, project: Path) -> None:
        put(project, "a.json", "{}")
        with pytest.raises(InputError, match="is a file"):
            JsonFiles("in/a.json").look(context(project))

    def test_a_name_with_a_colon_is_refused_because_hadoop_cannot_open_it(self, project: Path) -> None:
        put(project, "07:00.json", "{}")
        with pytest.raises(InputError, match="Rename"):
            JsonFiles("in").look(context(project))

    def test_absolute_paths_and_file_uris_name_the_same_folder(self, project: Path) -> None:
        put(project, "a.json", "{}")
        folder = project / "in"
        found = [JsonFiles(path).look(context(project)) for path in ("in", str(folder), folder.as_uri())]
        assert len({one.files for one in found if one is not None}) == 1

    def test_an_object_store_is_refused_kindly(self, project: Path) -> None:
        with pytest.raises(ConfigurationError, match="local folders for now"):
            JsonFiles("s3a://bucket/in").look(context(project))

    @settings(deadline=None, max_examples=25)
    @given(bound=st.integers(1, 4), count=st.integers(0, 9))
    def test_bounded_arrivals_together_hold_every_file_once(
        self, tmp_path_factory: pytest.TempPathFactory, bound: int, count: int
    ) -> None:
        project = tmp_path_factory.mktemp("project")
        (project / "in").mkdir()
        for number in range(count):
            put(project, f"{number}.json", "{}")
        taken: list[Arrival] = []
        while (found := JsonFiles("in", max_files=bound).look(context(project, taken))) is not None:
            taken.append(arrival(found, len(taken) + 1))
        assert sorted(file.path for one in taken for file in one.files) == [f"{n}.json" for n in range(count)]


class TestOptions:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: JsonFiles(""),
            lambda: JsonFiles("in", max_files=0),
            lambda: JsonFiles("in", encoding="windows-1252"),  # type: ignore[arg-type]
            lambda: CsvFiles("in", delimiter="||"),
            lambda: CsvFiles("in", options={"MODE": "DROPMALFORMED"}),
        ],
    )
    def test_a_wrong_option_is_refused_before_spark_starts(self, make: Any) -> None:
        with pytest.raises(ConfigurationError):
            make()


class TestGone:
    def test_vanished_and_changed_files_are_told(self, project: Path) -> None:
        a, b = put(project, "a.json", "{}"), put(project, "b.json", "{}")
        put(project, "c.json", "{}")
        source = JsonFiles("in")
        first = arrival(source.look(context(project)))
        assert source.gone(first, context(project)) == []
        a.unlink()
        b.write_text('{"id": 1}')
        gone = source.gone(first, context(project))
        assert [text.split(" ")[0] for text in gone] == ["a.json", "b.json"]

    def test_a_window_that_is_not_as_recorded_is_not_read(self, spark: SparkSession, project: Path) -> None:
        file = put(project, "a.json", '{"id": 1}\n')
        source, ctx = JsonFiles("in"), context(project)
        first = arrival(source.look(ctx))
        file.write_text('{"id": 2, "more": 1}\n')
        with pytest.raises(InputError, match="can no longer be read"):
            source.read(first, spark=spark, schema=struct("id INT"), ctx=ctx)


class TestRecordColumns:
    NAMES = ("a b.json", "p%20q.json", "x+y.json", "k=v/z.json", "é.json", "br[1].json", "st*ar.json",
             "q?.json", "{a,b}.json", "back\\slash.json", "ha#sh.json", "percent%.json", "plain")  # fmt: skip

    def test_every_name_is_read_and_told_as_it_was_listed(self, spark: SparkSession, project: Path) -> None:
        for number, name in enumerate(self.NAMES):
            put(project, name, f'{{"id": {number}}}\n')
        source, ctx = JsonFiles("in"), context(project)
        first = arrival(source.look(ctx))
        frame = source.read(first, spark=spark, schema=struct("id INT"), ctx=ctx)
        found = {row["id"]: (row["_lw_file"], row["_lw_file_version"]) for row in frame.collect()}
        listed = {file.path: file.version for file in first.files}
        assert found == {number: (name, listed[name]) for number, name in enumerate(self.NAMES)}

    def test_only_the_files_of_the_arrival_are_read(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", '{"id": 1}\n')
        ctx = context(project)
        first = arrival(JsonFiles("in").look(ctx))
        put(project, "b.json", '{"id": 2}\n')
        frame = JsonFiles("in").read(first, spark=spark, schema=struct("id INT"), ctx=ctx)
        assert rows(frame, "id") == [(1,)]

    def test_folders_with_keys_give_no_columns(self, spark: SparkSession, project: Path) -> None:
        put(project, "day=2026-01-05/a.json", '{"id": 1}\n')
        frame = read(spark, JsonFiles("in"), project, "id INT")
        assert frame.columns == ["id", "_lw_raw", "_lw_file", "_lw_file_version", "_lw_hash"]
        assert rows(frame, "_lw_file") == [("day=2026-01-05/a.json",)]

    def test_the_hash_tells_records_apart_and_is_the_same_each_time(self, spark: SparkSession, project: Path) -> None:
        lines = [
            '{"a":"x"}',
            '{"b":"x"}',
            '{"m":{"k":"v"}}',
            '{"l":[null,1]}',
            '{"l":[1]}',
            '{"s":{"x":1}}',
            "{}",
            "{",
        ]
        put(project, "a.json", "\n".join([*lines, lines[0]]))
        schema = "a STRING, b STRING, m MAP<STRING, STRING>, l ARRAY<INT>, s STRUCT<x: INT, y: INT>, v VARIANT"
        hashes = [row[0] for row in read(spark, JsonFiles("in"), project, schema).select("_lw_hash").collect()]
        assert len(set(hashes)) == len(lines)
        assert hashes[0] == hashes[-1]
        again = read(spark, JsonFiles("in"), project, schema).select("_lw_hash").collect()
        assert [row[0] for row in again] == hashes

    def test_a_declared_system_column_is_refused(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", "{}")
        with pytest.raises(ConfigurationError, match="_lw_raw"):
            read(spark, JsonFiles("in"), project, "_lw_raw STRING")

    @pytest.mark.classic_only("counts Spark's jobs by the driver's own context")
    def test_reading_runs_no_job(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", '{"id": 1}\n')
        tracker = spark.sparkContext.statusTracker()
        before = len(tracker.getJobIdsForGroup(None))
        read(spark, JsonFiles("in"), project, "id INT")
        assert len(tracker.getJobIdsForGroup(None)) == before


class TestJson:
    def test_good_records_have_no_raw_text(self, spark: SparkSession, project: Path) -> None:
        text = '{"id": 1, "name": "é", "at": "2026-01-05T01:00:00Z", "n": {"x": [1]}}\r\n\n  \n{"id": 2}'
        schema = "id INT, name STRING, at TIMESTAMP, n STRUCT<x: ARRAY<INT>>"
        assert json_rows(spark, project, text, schema, "id", "name", "at", "n", "_lw_raw") == [
            (1, "é", datetime(2026, 1, 5, 1), Row(x=[1]), None),
            (2, None, None, None, None),
        ]

    @pytest.mark.parametrize(
        "line",
        [
            '{"id": "two", "name": "b"}',
            '{"id": 99999999999, "name": "b"}',
            '{"name": "b", "at": "nonsense"}',
            '{"name": "b", "n": {"x": "wrong"}}',
        ],
    )
    def test_a_value_of_the_wrong_type_keeps_the_others_and_the_raw_text(
        self, spark: SparkSession, project: Path, line: str
    ) -> None:
        schema = "id INT, name STRING, at TIMESTAMP, n STRUCT<x: INT>"
        assert json_rows(spark, project, line, schema, "id", "name", "at", "_lw_raw") == [(None, "b", None, line)]

    @pytest.mark.parametrize(
        "line", ['{"id": 1, "na', '[{"id": 1}, {"id": 2}]', "null", "5", '"text"', "no json", "}", "\x00"]
    )
    def test_what_is_no_record_is_kept_as_raw_text(self, spark: SparkSession, project: Path, line: str) -> None:
        got = json_rows(spark, project, f'{line}\n{{"id": 7}}\n', "id INT", "id", "_lw_raw")
        assert sorted(got, key=str) == sorted([(7, None), (None, line)], key=str)

    @pytest.mark.parametrize(
        "line",
        ['{"id": 6}{"id": 7}', '{"id": 6} garbage', '{"id": 6},{"id": 7}', '{"id": 6}}', '{"id": 6}]', '{"id": 6}]}'],
    )
    def test_a_second_value_on_a_line_is_not_lost_silently(self, spark: SparkSession, project: Path, line: str) -> None:
        assert json_rows(spark, project, line, "id INT", "id", "_lw_raw") == [(6, line)]

    def test_braces_within_strings_and_nested_values_are_no_second_value(
        self, spark: SparkSession, project: Path
    ) -> None:
        text = '{"name": "a } b { c"}\n{"n": {"x": 1}, "name": "n"}  \n{"n": {"x": 1}}\n'
        got = json_rows(spark, project, text, "name STRING, n STRUCT<x: INT>", "name", "_lw_raw")
        assert got == [("a } b { c", None), ("n", None), (None, None)]

    def test_bytes_that_are_no_utf8_are_flagged_and_nothing_is_lost(self, spark: SparkSession, project: Path) -> None:
        text = '{"id": 1, "name": "café"}\n'.encode("latin-1") + '{"id": 2, "name": "café"}\n'.encode()
        got = json_rows(spark, project, text, "id INT, name STRING", "id", "name", "_lw_raw")
        assert got == [(1, "café", '{"id": 1, "name": "café"}'), (2, "café", None)]

    def test_a_replacement_character_that_is_really_there_is_no_flaw(self, spark: SparkSession, project: Path) -> None:
        got = json_rows(spark, project, '{"name": "\ufffd"}', "name STRING", "name", "_lw_raw")
        assert got == [("\ufffd", None)]

    def test_a_utf16_file_that_nobody_declared_is_kept_and_flagged(self, spark: SparkSession, project: Path) -> None:
        got = json_rows(spark, project, '{"id": 1}\n{"id": 2}\n'.encode("utf-16"), "id INT", "id", "_lw_raw")
        assert all(number is None and raw for number, raw in got)
        assert len(got) >= 2

    @pytest.mark.parametrize(("encoding", "codec"), [("UTF-16LE", "utf-16-le"), ("UTF-16BE", "utf-16-be")])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_a_declared_utf16_file_is_read(
        self, spark: SparkSession, project: Path, encoding: Any, codec: str, mark: str
    ) -> None:
        put(project, "a.json", f'{mark}{{"id": 1, "name": "é"}}\r\n{{"id": 2}}'.encode(codec) + b"\x00")
        got = rows(
            read(spark, JsonFiles("in", encoding=encoding), project, "id INT, name STRING"),
            "id",
            "name",
            "_lw_raw",
        )
        assert got[0] == (1, "é", None)
        assert got[1][0] == 2
        assert got[1][2] == '{"id": 2}'  # cut in the middle of a character

    def test_latin1_is_read_when_declared(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", '{"name": "café"}\n'.encode("latin-1"))
        frame = read(spark, JsonFiles("in", encoding="ISO-8859-1"), project, "name STRING")
        assert rows(frame, "name", "_lw_raw") == [("café", None)]

    def test_a_byte_order_mark_is_no_part_of_the_first_record(self, spark: SparkSession, project: Path) -> None:
        got = json_rows(spark, project, b'\xef\xbb\xbf{"id": 1}\n', "id INT", "id", "_lw_raw")
        assert got == [(1, None)]

    def test_files_without_a_record_give_none(self, spark: SparkSession, project: Path) -> None:
        put(project, "b.json", "\n \n")
        assert json_rows(spark, project, "", "id INT", "id") == []

    def test_a_compressed_file_is_read(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json.gz", gzip.compress(b'{"id": 1}\n'))
        assert rows(read(spark, JsonFiles("in"), project, "id INT"), "id", "_lw_file") == [(1, "a.json.gz")]

    def test_a_schema_is_needed(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", "{}")
        with pytest.raises(ConfigurationError, match="needs a schema"):
            read(spark, JsonFiles("in"), project, None)

    def test_flaws_do_not_depend_on_the_columns_that_are_selected(self, spark: SparkSession, project: Path) -> None:
        put(project, "a.json", '{"id": "wrong", "name": "a"}\n{"id": 1}\n')
        frame = read(spark, JsonFiles("in"), project, "id INT, name STRING")
        assert frame.where("_lw_raw IS NOT NULL").count() == 1
        assert len(frame.select("_lw_raw").where("_lw_raw IS NOT NULL").collect()) == 1

    def test_a_document_with_an_array_gives_its_elements_and_flags_only_the_wrong_one(
        self, spark: SparkSession, project: Path
    ) -> None:
        put(project, "a.json", '[{"id": 1},\n {"id": "wrong"},\n null, {"id": 3}]\n')
        put(project, "b.json", '{\n"id": 4\n}\n')
        put(project, "c.json", "[]")
        put(project, "d.json", '[{"id": 5}, {"id"')
        put(project, "e.json", '[{"id": 6}]\n[{"id": 7}]')
        frame = read(spark, JsonFiles("in", multiline=True), project, "id INT")
        assert sorted((tuple(row) for row in frame.select("_lw_file", "id", "_lw_raw").collect()), key=str) == sorted(
            [
                ("a.json", 1, None),
                ("a.json", None, '{"id":"wrong"}'),
                ("a.json", None, "null"),
                ("a.json", 3, None),
                ("b.json", 4, None),
                ("d.json", None, '[{"id": 5}, {"id"'),
                ("e.json", None, '[{"id": 6}]\n[{"id": 7}]'),
            ],
            key=str,
        )

    @settings(deadline=None, max_examples=15)
    @given(lines=st.lists(st.binary(min_size=1, max_size=12).filter(lambda b: b.strip() and not set(b) & set(b"\r\n"))))
    def test_every_line_is_a_record_whatever_its_bytes(
        self, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
    ) -> None:
        project = tmp_path_factory.mktemp("project")
        put(project, "a.json", b"\n".join([*lines, b'{"id": 1}']))
        frame = read(spark, JsonFiles("in"), project, "id INT")
        kept = [line for line in lines if line.strip(b" \t\r\n")]
        assert frame.where("_lw_raw IS NOT NULL").count() == len([k for k in kept if not _is_object(k)])
        assert frame.count() == len(kept) + 1


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class TestCsv:
    SCHEMA = "id INT, name STRING, amount DECIMAL(10, 2)"

    def csv_rows(self, spark: SparkSession, project: Path, text: str | bytes, **options: Any) -> list[Any]:
        put(project, "a.csv", text)
        return rows(read(spark, CsvFiles("in", **options), project, self.SCHEMA), "id", "name", "_lw_raw")

    def test_good_records_have_no_raw_text(self, spark: SparkSession, project: Path) -> None:
        text = 'id,name,amount\n1,"q ""in"" q",1.5\n\n2,,\n3,"a,b",2\n'
        assert self.csv_rows(spark, project, text) == [
            (1, 'q "in" q', None),
            (2, None, None),
            (3, "a,b", None),
        ]

    @pytest.mark.parametrize("line", ["2,b", "2,b,1,extra", "2,b,no number", '2,"b,1'])
    def test_a_record_of_the_wrong_shape_is_kept_with_its_raw_text(
        self, spark: SparkSession, project: Path, line: str
    ) -> None:
        got = self.csv_rows(spark, project, f"id,name,amount\n1,a,1\n{line}\n3,c,1\n")
        assert [row[0] for row in got] == [1, 2, 3]
        assert [row[2] for row in got] == [None, line, None]

    def test_bytes_that_are_no_utf8_are_flagged(self, spark: SparkSession, project: Path) -> None:
        got = self.csv_rows(spark, project, b"id,name,amount\n1,caf\xe9,1\n2,ok,1\n")
        assert got == [(1, "caf\ufffd", "1,caf\ufffd,1.00"), (2, "ok", None)]

    @pytest.mark.parametrize(
        ("encoding", "codec"),
        [
            ("ISO-8859-1", "latin-1"),
            ("UTF-16LE", "utf-16-le"),
            ("UTF-16BE", "utf-16-be"),
            ("UTF-8", "utf-8-sig"),
        ],
    )
    def test_a_declared_encoding_is_read(self, spark: SparkSession, project: Path, encoding: str, codec: str) -> None:
        text = "id,name,amount\r\n1,café,1\r\n".encode(codec)
        assert self.csv_rows(spark, project, text, encoding=encoding) == [(1, "café", None)]

    def test_a_utf16_file_that_nobody_declared_is_refused_by_its_header(
        self, spark: SparkSession, project: Path
    ) -> None:
        with pytest.raises(InputError, match="encoding"):
            self.csv_rows(spark, project, "id,name,amount\n1,a,1\n".encode("utf-16"))

    def test_line_ends_within_quotes_need_multiline(self, spark: SparkSession, project: Path) -> None:
        text = 'id,name,amount\n1,"two\nlines",1\n'
        assert self.csv_rows(spark, project, text, multiline=True) == [(1, "two\nlines", None)]
        assert all(raw is not None for _, _, raw in self.csv_rows(spark, project, text))

    def test_columns_are_found_by_name_in_each_file(self, spark: SparkSession, project: Path) -> None:
        put(project, "b.csv", "amount,new,id,name\n9,x,2,b\n")
        put(project, "c.csv", "")
        put(project, "d.csv.gz", gzip.compress(b"name,id,amount\nd,4,1\n"))
        assert self.csv_rows(spark, project, "id,name,amount\n1,a,1\n") == [
            (1, "a", None),
            (2, "b", None),
            (4, "d", None),
        ]

    def test_gained_columns_are_told(self, project: Path, spark: SparkSession) -> None:
        put(project, "a.csv", "id,new,name,amount,other\n")
        source, ctx = CsvFiles("in"), context(project)
        first = arrival(source.look(ctx))
        assert source.gained_columns(first, schema=struct(self.SCHEMA), ctx=ctx) == {
            "new": "string",
            "other": "string",
        }

    def test_a_lost_column_is_refused_before_reading(self, spark: SparkSession, project: Path) -> None:
        with pytest.raises(SchemaChangeError, match=r"a\.csv has no column name.*Did you mean 'names'"):
            self.csv_rows(spark, project, "id,names,amount\n1,a,1\n")

    def test_a_lost_column_is_null_on_request(self, spark: SparkSession, project: Path) -> None:
        assert self.csv_rows(spark, project, "id,amount\n1,2\n", missing="null") == [(1, None, None)]

    def test_a_header_with_a_name_twice_is_refused(self, spark: SparkSession, project: Path) -> None:
        with pytest.raises(InputError, match="more than once"):
            self.csv_rows(spark, project, "id,id,name,amount\n1,1,a,1\n")

    def test_without_a_header_columns_go_by_their_place(self, spark: SparkSession, project: Path) -> None:
        got = self.csv_rows(spark, project, "1;a;1\n2;b\n", header=False, delimiter=";")
        assert got == [(1, "a", None), (2, "b", "2;b")]

    def test_a_header_alone_gives_no_records(self, spark: SparkSession, project: Path) -> None:
        assert self.csv_rows(spark, project, "id,name,amount\n") == []


class TestParquet:
    def write(self, spark: SparkSession, project: Path, name: str, query: str) -> None:
        (project / "in").mkdir(exist_ok=True)
        spark.sql(query).coalesce(1).write.mode("overwrite").parquet(str(project / "out"))
        next((project / "out").glob("*.parquet")).rename(project / "in" / name)

    def test_declared_columns_are_read_and_safe_widening_is_allowed(self, spark: SparkSession, project: Path) -> None:
        self.write(
            spark,
            project,
            "a b.parquet",
            "SELECT 1 AS id, 'x' AS name, TIMESTAMP'2026-01-05' AS at, 7 AS new",
        )
        frame = read(spark, ParquetFiles("in"), project, "name STRING, id BIGINT, at TIMESTAMP")
        assert rows(frame, "id", "name", "at", "_lw_raw", "_lw_file") == [
            (1, "x", datetime(2026, 1, 5), None, "a b.parquet")
        ]

    def test_a_lost_column_is_refused_before_reading(self, spark: SparkSession, project: Path) -> None:
        self.write(spark, project, "a.parquet", "SELECT 1 AS id, 'x' AS nam")
        with pytest.raises(SchemaChangeError, match=r"a\.parquet has no column 'name'.*Did you mean 'nam'"):
            read(spark, ParquetFiles("in"), project, "id INT, name STRING")
        frame = read(spark, ParquetFiles("in", missing="null"), project, "id INT, name STRING")
        assert rows(frame, "id", "name") == [(1, None)]

    @pytest.mark.parametrize("found", ["'1'", "1L", "1.5D", "named_struct('x', 1)"])
    def test_a_retyped_column_is_refused_before_reading(self, spark: SparkSession, project: Path, found: str) -> None:
        self.write(spark, project, "a.parquet", f"SELECT {found} AS id")
        with pytest.raises(SchemaChangeError, match=r"column 'id' of a\.parquet"):
            read(spark, ParquetFiles("in"), project, "id INT")

    def test_gained_columns_are_told_with_their_types(self, spark: SparkSession, project: Path) -> None:
        self.write(spark, project, "a.parquet", "SELECT 1 AS id, array(1) AS l")
        source, ctx = ParquetFiles("in"), context(project)
        first = arrival(source.look(ctx))
        assert source.gained_columns(first, schema=struct("id INT"), ctx=ctx) == {"l": "array<int>"}

    @pytest.mark.parametrize("content", [b"", b"no parquet at all"])
    def test_what_is_no_parquet_file_is_named(self, spark: SparkSession, project: Path, content: bytes) -> None:
        put(project, "a.parquet", content)
        with pytest.raises(InputError, match=r"a\.parquet"):
            read(spark, ParquetFiles("in"), project, "id INT")

    def test_without_a_schema_the_first_file_tells_it(self, spark: SparkSession, project: Path) -> None:
        self.write(spark, project, "a.parquet", "SELECT 1 AS id, map('k', 1) AS m")
        self.write(spark, project, "b.parquet", "SELECT 2 AS id, map('k', 2) AS m")
        frame = read(spark, ParquetFiles("in"), project, None)
        assert rows(frame, "id", "m") == [(1, {"k": 1}), (2, {"k": 2})]


class TestReadErrors:
    def failure(self, frame: DataFrame, target: Path) -> BaseException:
        with pytest.raises(Exception) as caught:  # noqa: PT011  (any: it is what is being explained)
            frame.write.format("delta").save(str(target))
        return caught.value

    @pytest.mark.parametrize(
        ("name", "content", "word"),
        [
            ("a b.json.gz", gzip.compress(os.urandom(200_000))[:100_000], "truncated"),
            ("a.json.gz", b"plain text", "no gzip file"),
        ],
    )
    def test_a_damaged_file_is_named_with_its_cure(
        self, spark: SparkSession, project: Path, name: str, content: bytes, word: str
    ) -> None:
        file = put(project, name, content)
        error = self.failure(read(spark, JsonFiles("in"), project, "id INT"), project / "lake")
        explained = explain_read_error(error)
        assert isinstance(explained, InputError)
        assert str(file) in explained.message
        assert word in explained.message

    def test_a_file_that_vanished_after_the_read_is_named(self, spark: SparkSession, project: Path) -> None:
        file = put(project, "a.json", '{"id": 1}')
        frame = read(spark, JsonFiles("in"), project, "id INT")
        file.unlink()
        explained = explain_read_error(self.failure(frame, project / "lake"))
        assert isinstance(explained, InputError)
        assert str(file) in explained.message
        assert "no longer there" in explained.message

    def test_other_errors_are_left_alone(self, spark: SparkSession) -> None:
        assert explain_read_error(ValueError("no")) is None
        with pytest.raises(Exception) as caught:  # noqa: PT011
            spark.range(1).select(F.raise_error(F.lit("own"))).collect()
        assert explain_read_error(caught.value) is None
