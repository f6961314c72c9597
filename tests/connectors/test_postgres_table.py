"""PostgreSQL as a destination: one transaction per slice, a ledger beside the data, and nothing from a zombie."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import psycopg
import pytest
from pyspark.sql import functions as F
from tests.pipelines.shop import land, made, ok, order
from tests.pipelines.streaming import until
from tests.processes import LAKEWRIGHT, killed

from lakewright.connectors.postgres_connection import TableName, connect, connection_arguments
from lakewright.connectors.postgres_csv import merge_csv
from lakewright.connectors.postgres_ledger import Ledger
from lakewright.connectors.postgres_partitions import RangePartitions
from lakewright.connectors.postgres_staging import Stage, stage_name, staging
from lakewright.connectors.postgres_table import PostgresTable
from lakewright.connectors.postgres_together import merge_together
from lakewright.connectors.postgres_write import copy_into, merge_rows, overwrite_rows, replace_staged
from lakewright.errors import (
    ConfigurationError,
    InputError,
    LakewrightError,
    MissingColumnsError,
    SchemaChangeError,
    TargetError,
)
from lakewright.lake.delta_errors import is_transient
from lakewright.model.connections import Connection, Connections
from lakewright.model.identity import Identity
from lakewright.model.outside import KeyedChanges
from lakewright.model.secrets import Secret
from lakewright.patterns.idempotency.merger import Merger, keep_last_change
from lakewright.patterns.idempotency.scd2 import Scd2
from lakewright.pipelines.status import read_status

DAILY = "day string, n int, _lw_event string"


class Database:
    """A fresh database, and the connection to it that a project would declare."""

    def __init__(self, at: Any) -> None:
        self.at = at
        url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
        self.connection = Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD"))
        self.connections = Connections({"db": self.connection})

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.at.connect() as session:
            found = session.execute(statement)
            return found.fetchall() if found.description else []

    def stages(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE '\\_lw\\_stage%'")


@pytest.fixture
def database(postgres, monkeypatch) -> Database:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    return Database(postgres.database())


def attempt(number: int, slice_id: str = "2026-01-05", dataset: str = "daily") -> Identity:
    return Identity(dataset, slice_id, number, f"run-{number}")


def opened(spark, database, identity, still_mine=lambda: True, **options):
    into = PostgresTable("db", "daily", **options)
    return into.open("daily", identity, connections=database.connections, spark=spark, still_mine=still_mine)


def by_slice(table, frame):
    return table.replace(frame, where="_lw_event = '2026-01-05'", within=True)


def by_key(table, frame):
    return table.merge_rows(frame, KeyedChanges(["day"]))


def replaced(spark, database, number, n, write=by_slice, **options):
    frame = spark.createDataFrame([("2026-01-05", n, "2026-01-05")], DAILY)
    return write(opened(spark, database, attempt(number), **options), frame)


def test_every_value_arrives_as_it_was(spark, database):
    database.rows(
        "CREATE TABLE t (s text, i int, d numeric(10,2), at timestamptz, local timestamp, day date, raw bytea, "
        "tags text[], n int[], j jsonb, u uuid, x float8, t jsonb)"
    )
    nasty = 'tab\t line\n back\\slash \\N \r "quoted" {é} ' + "'"
    rows = [
        (nasty, 1, Decimal("-12.30"), datetime(2026, 1, 5, 23, 59, 59, 999000), datetime(2026, 1, 5, 1),
         date(2026, 1, 5), bytearray(b"\x00\\x\xff"), [nasty, None, "", "NULL"], [1, None], (1, None),
         "00000000-0000-0000-0000-000000000001", float("nan"), [(datetime(2026, 1, 5, 1, 2, 3, 123456),)]),
        (None,) * 13, ("", 0, Decimal(0), None, None, None, bytearray(), [], [], (None, "k"), None, 1e300, []),
    ]  # fmt: skip
    kinds = (
        "s string, i int, d decimal(10,2), at timestamp, local timestamp_ntz, day date, raw binary, "
        "tags array<string>, n array<int>, j struct<a: int, b: string>, u string, x double, "
        "t array<struct<at: timestamp_ntz>>"
    )
    frame = spark.createDataFrame(rows, kinds)
    assert copy_into(frame, database.connection, table="t") == 3
    first = database.rows("SELECT *, x = 'NaN' FROM t WHERE i = 1")[0]
    nothing = database.rows("SELECT * FROM t WHERE i IS NULL")[0]
    empty = database.rows("SELECT * FROM t WHERE i = 0")[0]
    assert first[0] == nasty
    assert first[2] == Decimal("-12.30")
    assert first[3].isoformat() == "2026-01-05T23:59:59.999000+00:00"
    assert first[4:6] == (datetime(2026, 1, 5, 1), date(2026, 1, 5))
    assert (bytes(first[6]), first[7], first[8]) == (b"\x00\\x\xff", [nasty, None, "", "NULL"], [1, None])
    assert (first[9], first[-1]) == ({"a": 1, "b": None}, True)
    assert first[12] == [{"at": "2026-01-05T01:02:03.123456"}]
    assert nothing == (None,) * 13
    assert (empty[0], bytes(empty[6]), empty[7], empty[11]) == ("", b"", [], 1e300)
    with pytest.raises(InputError, match="NUL"):
        copy_into(spark.createDataFrame([("a\0b",)], "s string"), database.connection, table="t")
    with pytest.raises(TargetError, match="does not fit") as wrong:
        copy_into(spark.createDataFrame([("no uuid",)], "u string"), database.connection, table="t")
    assert not is_transient(wrong.value)
    assert database.stages() == []


@pytest.mark.shows("04.data-overwrite", 5)
def test_where_the_insert_fails_the_delete_is_rolled_back(spark, database):
    database.rows(
        "CREATE TABLE t (day text, n int CHECK (n > 0)); INSERT INTO t VALUES ('d1', 1), ('d1', 2), ('d2', 3)"
    )
    frame = spark.createDataFrame([("d1", 7), ("d1", -1)], "day string, n int")
    with pytest.raises(TargetError, match="check constraint"):
        overwrite_rows(frame, database.connection, table="t", where="day = 'd1'")
    assert database.rows("SELECT * FROM t ORDER BY n") == [("d1", 1), ("d1", 2), ("d2", 3)]
    with pytest.raises(InputError, match="outside"):
        overwrite_rows(frame.withColumn("day", F.lit("d9")), database.connection, table="t", where="day = 'd1'")
    assert overwrite_rows(frame.where("n > 0"), database.connection, table="t", where="day = 'd1'") == 1
    assert database.rows("SELECT * FROM t ORDER BY n") == [("d2", 3), ("d1", 7)]
    assert database.stages() == []


def test_two_calls_that_replace_the_same_rows_at_once_take_turns(spark, database):
    # Each INSERT waits until we let it: by then both have deleted, unless the second waits for the first.
    database.rows(
        "CREATE TABLE t (day text, n int); CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END'; "
        "CREATE TRIGGER wait BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION wait()"
    )
    frame = spark.createDataFrame([("d1", 1)], "day string, n int").coalesce(1)
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with database.at.connect() as session, ThreadPoolExecutor(2) as pool:
        session.execute("SELECT pg_advisory_lock(42)")
        options = {"table": "t", "where": "day = 'd1'"}
        both = [pool.submit(overwrite_rows, frame, database.connection, **options) for _ in range(2)]
        until(lambda: any(one.done() for one in both) or database.rows(waiting) == [(2,)])
        session.execute("SELECT pg_advisory_unlock(42)")
        assert [one.result() for one in both] == [1, 1]
    assert database.rows("SELECT * FROM t") == [("d1", 1)]


@pytest.mark.shows("04.merger", 8)
def test_a_column_that_the_target_lacks_fails_and_leaves_the_target(spark, database):
    database.rows("CREATE TABLE t (id int PRIMARY KEY, name text); INSERT INTO t VALUES (1, 'a')")
    frame = spark.createDataFrame([(1, "b", "x")], "id int, name string, extra string")
    with pytest.raises(SchemaChangeError, match="extra"):
        merge_rows(frame, database.connection, table="t", keys=["id"])
    assert database.rows("SELECT * FROM t") == [(1, "a")]
    assert database.stages() == []
    with pytest.raises(ConfigurationError, match="no unique index"):
        merge_rows(frame.drop("extra"), database.connection, table="t", keys=["name"])


def test_changes_are_applied_by_key_and_only_newer_ones_win(spark, database):
    database.rows("CREATE TABLE t (id int PRIMARY KEY, name text, seq int)")

    def change(*rows, **options):
        frame = spark.createDataFrame(list(rows), "id int, name string, seq int, gone boolean")
        return merge_rows(frame, database.connection, table="t", keys=["id"], sequence="seq", deleted="gone", **options)

    first = [(1, "a", 1, None), (2, "b", 5, False), (3, "never", 1, True)]
    assert change(*first) == 2
    change(*first)
    assert database.rows("SELECT * FROM t ORDER BY id") == [(1, "a", 1), (2, "b", 5)]
    assert change((1, "new", 2, False), (2, "old", 4, False)) == 1
    assert change((1, "late delete", 1, True), (2, "x", 6, True)) == 1
    assert database.rows("SELECT * FROM t") == [(1, "new", 2)]
    with pytest.raises(SchemaChangeError, match="no column gone, by which deleted rows would be marked"):
        change((1, "marked", 3, True), delete="soft")
    database.rows("ALTER TABLE t ADD gone boolean")
    change((1, "marked", 3, True), (4, "unknown", 1, True), delete="soft")
    assert database.rows("SELECT * FROM t") == [(1, "marked", 3, True)]


def merge_one(frame, *to, **options):
    return merge_rows(frame, *to, **options)


def merge_several(frame, *to, **options):
    return merge_together([frame.limit(0), frame], *to, **options)


BOTH = pytest.mark.parametrize("merge", [merge_one, merge_several])
CHANGE = "id int, name string, seq int, gone boolean"


@BOTH
@pytest.mark.parametrize("delete", ["hard", "soft"])
def test_of_several_changes_of_a_key_the_last_by_sequence_counts(spark, database, merge, delete):
    database.rows("CREATE TABLE t (id int PRIMARY KEY, name text, seq int, gone boolean)")
    database.rows("INSERT INTO t VALUES (1, 'old', 1, false), (2, 'old', 1, false)")
    rows = [
        (1, "gone", 6, True), (1, "late", 5, False),  # a deletion, and an older change behind it
        (2, "later", 6, None), (2, "earlier", 5, True), (2, "earliest", None, None),
        (3, "a", 2, None), (3, "b", 3, None),
        (4, "never known", 2, True), (4, "earlier", 1, False),
    ]  # fmt: skip
    after = [(2, "later", 6, False), (3, "b", 3, False)]
    expected = after if delete == "hard" else [(1, "gone", 6, True), *after]
    for found in (rows, rows[::-1], rows):
        frame = spark.createDataFrame(found, CHANGE).coalesce(1)
        merge(frame, database.connection, table="t", keys=["id"], sequence="seq", deleted="gone", delete=delete)
        assert database.rows("SELECT * FROM t ORDER BY id") == expected
    assert database.stages() == []


@BOTH
@pytest.mark.shows("04.merger", 6)
def test_several_changes_of_a_key_that_nothing_orders_are_refused_by_the_database_too(spark, database, merge):
    database.rows("CREATE TABLE t (id int PRIMARY KEY, name text); INSERT INTO t VALUES (1, 'a')")
    for rows in (
        [(1, "b", True), (1, "c", False)],
        [(1, "b", True), (1, "b", True)],
        [(2, "x", None), (1, "c", True), (2, "y", None)],
    ):
        frame = spark.createDataFrame(rows, "id int, name string, gone boolean").coalesce(1)
        for delete in ("hard", "soft"):
            with pytest.raises(InputError, match=r"several changes have the same key \(id\): \(id=\d\)\. Nothing"):
                merge(frame, database.connection, table="t", keys=["id"], deleted="gone", delete=delete)
    assert database.rows("SELECT * FROM t") == [(1, "a")]
    assert database.stages() == []


@BOTH
@pytest.mark.shows("04.merger", 7)
def test_a_null_key_is_refused_where_the_table_would_take_it_and_so_is_a_missing_one(spark, database, merge):
    database.rows(
        "CREATE TABLE t (land text, id int, name text, UNIQUE (land, id)); INSERT INTO t VALUES ('FR', 1, 'a')"
    )
    found = [("FR", 2, "b"), ("FR", None, "c"), (None, 3, "d"), (None, None, "e")]
    frame = spark.createDataFrame(found, "land string, id int, name string").coalesce(1)
    for sequence in (None, "name"):
        with pytest.raises(InputError, match=r"the key \(land, id\) is NULL in 3 rows: \(land='FR', id=None\), "):
            merge(frame, database.connection, table="t", keys=["land", "id"], sequence=sequence)
        with pytest.raises(MissingColumnsError, match="Did you mean 'land'"):
            merge(frame, database.connection, table="t", keys=["lnd", "id"], sequence=sequence)
        with pytest.raises(MissingColumnsError, match="has no column seq"):
            merge(frame, database.connection, table="t", keys=["land", "id"], sequence="seq")
    assert database.rows("SELECT * FROM t") == [("FR", 1, "a")]
    assert database.stages() == []
    for wrong in ({"keys": "id"}, {"keys": []}, {"keys": ["id"], "delete": "gone"}):
        with pytest.raises(ConfigurationError, match="Merger"):
            merge(frame, database.connection, table="t", **wrong)


def test_equal_changes_are_told_apart_by_their_content_as_in_the_lake(spark, database):
    database.rows(
        "CREATE TABLE t (k int PRIMARY KEY, seq int, word text, n numeric(6,2), x float8, at date, tags text[])"
    )
    kinds = "k int, seq int, word string, n decimal(6,2), x double, at date, tags array<string>"
    day, other = date(2026, 1, 5), date(2025, 12, 31)
    ties = [
        (1, 1, "b", Decimal(1), 0.5, day, ["a"]), (1, 1, "a", Decimal(2), 0.5, day, ["a"]),
        (2, 1, "a", Decimal(10), 0.5, day, None), (2, 1, "a", Decimal(9), 0.5, day, None),
        (3, 1, None, None, None, None, None), (3, 1, "", Decimal(-1), float("nan"), other, []),
        (4, 1, "B", Decimal(1), None, None, None), (4, 1, "a", Decimal(1), None, None, None),
        (5, 1, "\u00e9", None, 1.0, day, None), (5, 1, "z", None, -1.0, day, None),
        (6, 1, "a", None, float("nan"), other, None), (6, 1, "a", None, 1e300, day, None),
        (7, None, "a", None, None, day, None), (7, None, "a", None, None, other, None),
    ]  # fmt: skip
    frame = spark.createDataFrame(ties, kinds).coalesce(1)
    merge_rows(frame, database.connection, table="t", keys=["k"], sequence="seq")
    in_the_lake = sorted(tuple(row) for row in keep_last_change(frame, keys=["k"], sequence="seq").collect())
    assert [str(row) for row in database.rows("SELECT * FROM t ORDER BY k")] == [str(row) for row in in_the_lake]


def test_of_several_frames_the_later_change_counts_whichever_brings_it(spark, database):
    database.rows(
        "CREATE TABLE t (id int PRIMARY KEY, name text, seq int); INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)"
    )
    one = [(1, "gone", 6, True), (2, "newest", 9, None), (3, "unknown", 6, True)]
    two = [(1, "late", 5, None), (2, "late", 5, True), (3, "late", 5, None)]
    back = [(1, "back", 6, None), (3, "back", 7, None)]

    def merged(*frames):
        made = [spark.createDataFrame(rows, CHANGE).coalesce(1) for rows in frames]
        merge_together(made, database.connection, table="t", keys=["id"], sequence="seq", deleted="gone")
        return database.rows("SELECT * FROM t ORDER BY id")

    assert merged(one, two) == [(2, "newest", 9)]
    assert merged(one, two, back) == [(1, "back", 6), (2, "newest", 9), (3, "back", 7)]


@pytest.mark.shows("04.merger", 1, 6, 7, 8)
def test_csv_files_are_copied_into_a_table_like_the_target_and_merged_in_one_transaction(database, tmp_path):
    database.rows(
        "CREATE TABLE devices (type text, version int, name varchar(12), price numeric(6,2) CHECK (price > 0), "
        "seen date, PRIMARY KEY (type, version)); INSERT INTO devices VALUES ('phone', 1, 'Fon', 5, '2026-01-01')"
    )

    def merge(*texts, **options):
        files = [tmp_path / f"devices_{n}.csv" for n in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text.encode(options.get("encoding", "utf-8")))
        options = {"table": "devices", "keys": ["type", "version"], "delimiter": ";", **options}
        return merge_csv(files, database.connection, **options)

    def held():
        assert database.stages() == []
        return database.rows("SELECT type, version, name, price::text FROM devices ORDER BY 1, 2")

    first = 'type;version;name;price\nphone;1;"Fon; One";7.5\nwatch;1;;3\n'
    moved = "price;name;type;version\n2;Uhr;watch;2\n"
    kept = [("phone", 1, "Fon; One", "7.50"), ("watch", 1, None, "3.00"), ("watch", 2, "Uhr", "2.00")]
    for _ in range(2):
        assert merge(first, moved) == 3
        assert held() == kept
    assert database.rows("SELECT seen::text FROM devices WHERE type = 'phone'") == [("2026-01-01",)]

    better = "type;version;name;price\nphone;1;Better;8\n"
    for wrong, error, words in (
        ("type;version;name;colour\nphone;1;X;red\n", SchemaChangeError, "columns type, version, name, colour"),
        (
            "type;version;name;price\nradio;1;R;1\ngramo;1;much too long a name;1\n",
            InputError,
            r"devices_1.csv.*line 3",
        ),
        ("type;version;name;price\nradio;1;R;1\ngramo;1;R;0\n", TargetError, "check constraint"),
        ("type;version;name;price\nradio;;R;1\n", InputError, r"devices_1.csv.*not-null"),
        ("type;version;name;price\nradio;1;R;1\nradio;1;S;1\n", InputError, "several changes.*type='radio', version=1"),
        ("type;version;name;price\nradio;1\n", InputError, "missing data"),
        ("", InputError, "begins without a header"),
    ):
        with pytest.raises(error, match=words):
            merge(better, wrong)
        assert held() == kept, "of both files, nothing"
    with pytest.raises(SchemaChangeError, match="a column colour that the table devices lacks"):
        merge("type;version;colour\nphone;1;red\n")
    with pytest.raises(MissingColumnsError, match="version"):
        merge("type;name\nphone;X\n")
    with pytest.raises(InputError, match="there is no file"):
        merge_csv([tmp_path / "none.csv"], database.connection, table="devices", keys=["type"])
    with pytest.raises(ConfigurationError, match="list of at least one"):
        merge_csv([], database.connection, table="devices", keys=["type"])
    assert held() == kept

    # What the target gains is taken as it comes: nothing is declared twice.
    database.rows("ALTER TABLE devices ADD colour text")
    assert merge("type;version;colour\nphone;1;red\n") == 1
    assert database.rows("SELECT name, colour FROM devices WHERE type = 'phone'") == [("Fon; One", "red")]
    assert merge("watch,1,\u00dcber,3,2026-01-02,blue,\nwatch,2,,,,,true\n", delimiter=",", header=False,
                 encoding="latin1", deleted="gone") == 2  # fmt: skip
    assert held() == [("phone", 1, "Fon; One", "7.50"), ("watch", 1, "\u00dcber", "3.00")]
    twice = "type;version;name;price\nphone;1;older;1\nphone;1;newer;2\n"
    assert merge(twice, sequence="price") == 0, "the table has a later one"
    assert merge(twice.replace("2\n", "9\n"), sequence="price") == 1
    assert held()[0] == ("phone", 1, "newer", "9.00")


def test_a_table_of_ours_gains_the_mark_of_soft_deletes_when_they_are_declared(spark, database):
    frame = spark.createDataFrame([(1, True)], "id int, gone boolean").coalesce(1)
    changes = [KeyedChanges(["id"], None, None, "hard"), KeyedChanges(["id"], None, "gone", "soft")]
    for number, (changed, rows) in enumerate(zip(changes, (frame.drop("gone"), frame), strict=True), 1):
        opened(spark, database, attempt(number, f"arrival-{number}")).merge_rows(rows, changed)
    assert database.rows("SELECT * FROM daily") == [(1, True)]


@pytest.mark.shows("08.horizontal-partitioner", 6)
def test_a_row_lands_in_the_partition_of_its_day_or_has_the_configured_outcome(spark, database):
    def write(number, *times, **options):
        ranges = RangePartitions("at", start="2026-01-01", end="2026-02-01", **options)
        frame = spark.createDataFrame([(t,) for t in times], "t string").selectExpr("cast(t AS timestamp) AS at")
        table = opened(spark, database, attempt(number, "whole"), partition_by_range=ranges)
        return table.replace(frame, where="true", within=True)

    write(1, "2026-01-05 23:59:59.999", "2026-01-06 00:00:00")
    placed = "SELECT tableoid::regclass::text, at::text FROM daily ORDER BY 2"
    kept = [("daily_20260105", "2026-01-05 23:59:59.999+00"), ("daily_20260106", "2026-01-06 00:00:00+00")]
    assert database.rows(placed) == kept
    for outside in ("2025-12-31 23:59:59", "2026-02-01 00:00:00", None):
        with pytest.raises(InputError, match="outside every partition"):
            write(2, "2026-01-05 10:00:00", outside)
    assert database.rows(placed) == kept
    write(3, "2026-01-31 12:00:00", "2027-05-05 00:00:00", outside="default")
    assert [row[0] for row in database.rows(placed)] == ["daily_20260131", "daily_default"]
    with pytest.raises(ConfigurationError, match="'at' has to be one of the keys"):
        PostgresTable("db", "t", partition_by_range=RangePartitions("at")).check_writer("d", Merger(keys=["id"]))
    with pytest.raises(ConfigurationError, match="Scd2"):
        PostgresTable("db", "t").check_writer("d", Merger(keys=["id"], history=Scd2(valid_from="at")))


@pytest.mark.parametrize(
    ("write", "replaced_rows"),
    [(by_slice, "numDeletedRows"), (by_key, "numTargetRowsUpdated")],
    ids=["replace", "merge_rows"],
)
def test_a_zombie_changes_nothing_after_its_successor_or_only_a_fence(spark, database, write, replaced_rows):
    assert replaced(spark, database, 5, 1, write).version == 1
    assert replaced(spark, database, 5, 99, write) is None
    assert replaced(spark, database, 3, 99, write) is None
    fence = opened(spark, database, attempt(9).as_part("main", "fence")).touch()
    assert fence.data_change is False
    assert replaced(spark, database, 7, 99, write) is None
    # It had passed the first look and staged its rows before it was overtaken.
    asleep = opened(spark, database, attempt(11))
    frame = spark.createDataFrame([("2026-01-05", 99, "2026-01-05")], DAILY)

    def overtake() -> bool:
        if not database.rows("SELECT 1 FROM _lw_ledger WHERE number = 12"):
            opened(spark, database, attempt(12).as_part("main", "fence")).touch()
        return True

    asleep._still_mine = overtake
    assert write(asleep, frame) is None
    with pytest.raises(LakewrightError, match="taken over"):
        replaced(spark, database, 20, 99, write, still_mine=lambda: False)
    assert database.rows("SELECT n FROM daily") == [(1,)]
    commit = replaced(spark, database, 21, 2, write)
    assert (commit.rows, commit.metrics[replaced_rows]) == (1, 1)
    assert database.rows("SELECT n FROM daily") == [(2,)]
    log = PostgresTable("db", "daily").log("daily", connections=database.connections)
    assert [c.version for c in log.commits()] == [1, 2, 3, 4]
    assert log.bounds() == (1, 4)
    assert Identity.from_json(log.commit(4).metadata) == attempt(21)
    assert database.stages() == []


def test_columns_gained_lost_and_retyped_and_tables_of_others(spark, database):
    replaced(spark, database, 1, 1)
    # The ledger is written by the transaction that writes the rows, or not at all.
    [(rows,)], [(ledger,)], [(log,)] = (
        database.rows(f"SELECT DISTINCT xmin::text FROM {name}") for name in ("daily", "_lw_ledger", "_lw_ledger_log")
    )
    assert rows == ledger == log
    database.rows("ALTER TABLE daily ADD CONSTRAINT few CHECK (n < 9)")
    with pytest.raises(TargetError, match="few"):
        replaced(spark, database, 2, 9)
    assert database.rows("SELECT DISTINCT number FROM _lw_ledger") == [(1,)]
    assert database.rows("SELECT count(*) FROM _lw_ledger_log") == [(1,)]
    assert database.rows("SELECT n FROM daily") == [(1,)]
    wider = spark.createDataFrame(
        [("2026-01-05", 2, "FR", "2026-01-05")], "day string, n int, land string, _lw_event string"
    )

    def write(number, frame, **options):
        return opened(spark, database, attempt(number), **options).replace(
            frame, where="_lw_event = '2026-01-05'", within=True
        )

    write(2, wider)
    assert database.rows("SELECT n, land FROM daily") == [(2, "FR")]
    with pytest.raises(SchemaChangeError, match="land is in the table"):
        write(3, wider.drop("land"))
    with pytest.raises(SchemaChangeError, match="integer in the table and text"):
        write(3, wider.withColumn("n", F.lit("x")))
    with pytest.raises(SchemaChangeError, match="'wait' is interval"):
        write(3, wider.selectExpr("*", "make_dt_interval(1) AS wait"))
    database.rows("DROP TABLE daily, _lw_ledger, _lw_ledger_log")
    database.rows("CREATE TABLE daily (day text, n bigint, land varchar(2)); INSERT INTO daily VALUES ('old', 7, 'PL')")
    with pytest.raises(TargetError, match="adopt=True"):
        write(4, wider)
    write(5, wider, adopt=True)
    write(6, wider, adopt=True)
    assert database.rows("SELECT day, n, _lw_event FROM daily ORDER BY n") == [
        ("2026-01-05", 2, "2026-01-05"), ("old", 7, None),
    ]  # fmt: skip


def test_a_task_sent_twice_a_crash_and_a_dead_attempt_leave_nothing_behind(spark, database):
    database.rows("CREATE TABLE daily (n int); CREATE UNLOGGED TABLE _lw_stage_dead_3 (n int)")
    arguments = connection_arguments(database.connection)
    assert "password" not in repr(arguments)
    frame = spark.range(5).selectExpr("cast(id AS int) AS n")
    stage = Stage(stage_name(TableName("daily"), "test", 1), TableName("daily"), "daily")
    with connect(arguments) as session, staging(session, stage, ["n"]):
        assert [row[0] for row in database.stages()] == [stage.table.name]
        stage.fill(frame, arguments)  # its answers never reach the driver: the tasks are run again
        stage.fill(frame, arguments)
        with session.transaction():
            stage.refuse_incomplete(session)
            assert replace_staged(session, stage, where="true", within=True)["numOutputRows"] == 5
        session.execute(f"TRUNCATE {stage.table.sql}".encode())  # what a crash does to a table that is not logged
        with pytest.raises(TargetError, match="crashed") as emptied:
            stage.refuse_incomplete(session)
        assert is_transient(emptied.value)
    assert database.rows("SELECT count(*) FROM daily") == [(5,)]
    assert database.stages() == []


def test_a_backup_that_reads_staging_holds_up_no_write(spark, database, monkeypatch):
    monkeypatch.setattr("lakewright.connectors.postgres_staging.PATIENT", 10)
    replaced(spark, database, 1, 1)
    with database.at.connect() as reader, reader.transaction():

        def backup_begins() -> bool:
            for (name,) in database.stages():
                reader.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")
            return True

        commit = replaced(spark, database, 2, 2, still_mine=backup_begins)
        assert commit.metrics["numOutputRows"] == 1
        assert len(database.stages()) == 1
        other = spark.createDataFrame([(7,)], "n int")
        assert copy_into(other, database.connection, table="daily") == 1
        assert len(database.stages()) == 1
    replaced(spark, database, 3, 3)
    assert database.stages() == []
    assert database.rows("SELECT n, _lw_event FROM daily ORDER BY n") == [(3, "2026-01-05"), (7, None)]


def test_a_session_notices_that_its_machine_is_gone_in_the_middle_of_a_copy(database):
    with connect(connection_arguments(database.connection)) as session:
        found = session.execute("SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp_keepalives%' ORDER BY 1")
        idle = dict(found.fetchall())["tcp_keepalives_idle"]
        over_tcp = session.execute("SELECT inet_client_addr() IS NOT NULL").fetchone()[0]
        with socket.socket(fileno=os.dup(session.fileno())) as ours:
            settings = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT) if over_tcp else ()
            asks = [ours.getsockopt(socket.IPPROTO_TCP, setting) for setting in settings]
    assert (idle == "30") is over_tcp
    assert asks == ([30, 10, 3] if over_tcp else [])


def test_two_writers_of_one_table_leave_each_other_their_staging(spark, database, monkeypatch, tmp_path):
    database.rows("CREATE TABLE t (n int PRIMARY KEY)")
    rising = count(1)
    monkeypatch.setattr("secrets.randbits", lambda bits: next(rising))
    file, fill = tmp_path / "t.csv", Stage.fill
    file.write_text("n\n1\n")

    def another_writes_meanwhile(stage, *rows):
        before = database.stages()
        assert merge_csv([file], database.connection, table="t", keys=["n"]) == 1
        assert database.stages() == before
        fill(stage, *rows)

    monkeypatch.setattr(Stage, "fill", another_writes_meanwhile)
    two = spark.createDataFrame([(2,)], "n int")
    assert overwrite_rows(two, database.connection, table="t", where="n = 2") == 1
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(spark, database, monkeypatch):
    replaced(spark, database, 1, 1)
    leave, lost = psycopg.Transaction.__exit__, []

    def cut_off(self, kind, value, trace):
        """The transaction that has written the ledger is committed, and then the connection breaks."""
        written = kind is None and self.connection.execute("SELECT count(*) FROM _lw_ledger_log").fetchone()[0] > 1
        ended = leave(self, kind, value, trace)
        if written and not lost:
            lost.append(self)
            self.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return ended

    monkeypatch.setattr(psycopg.Transaction, "__exit__", cut_off)
    commit = replaced(spark, database, 2, 2)
    assert lost
    assert commit.version == 2
    assert database.rows("SELECT n FROM daily") == [(2,)]
    monkeypatch.setattr(psycopg.Transaction, "__exit__", leave)
    database.rows("ALTER TABLE daily ADD CHECK (n < 3 OR pg_terminate_backend(pg_backend_pid()))")
    with pytest.raises(LakewrightError) as stopped:
        replaced(spark, database, 3, 3)
    assert is_transient(stopped.value)
    assert database.rows("SELECT n FROM daily") == [(2,)]
    database.rows("ALTER TABLE daily DROP CONSTRAINT daily_n_check")
    replaced(spark, database, 4, 4)
    assert database.rows("SELECT n FROM daily") == [(4,)]


def test_a_commit_whose_answer_was_lost_is_asked_for_and_nobody_adds_the_rows_twice(spark, database, monkeypatch):
    database.rows("CREATE TABLE t (n int PRIMARY KEY)")
    leave, connected = psycopg.Transaction.__exit__, psycopg.connect
    when, lost = "after", []

    def cut_off(self, kind, value, trace):
        """The connection breaks just before the server gets the COMMIT that counts, or just after it has made it."""
        rows = 0 if kind or lost else self.connection.execute("SELECT count(*) FROM t").fetchone()[0]
        if rows <= len(held):
            return leave(self, kind, value, trace)
        if when == "after":
            leave(self, kind, value, trace)
        lost.append(when)
        self.connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def refused(*args, **options):
        if lost:
            raise psycopg.OperationalError("connection failed: Connection refused")
        return connected(*args, **options)

    def sent(n, write=copy_into, **options):
        lost.clear()
        return write(spark.createDataFrame([(n,)], "n int"), database.connection, table="t", **options)

    held = []
    monkeypatch.setattr(psycopg.Transaction, "__exit__", cut_off)
    assert (sent(1), lost) == (1, ["after"])
    held = database.rows("SELECT n FROM t")
    assert held == [(1,)]
    when = "before"
    with pytest.raises(TargetError, match="Nothing was written") as not_made:
        sent(2)
    assert is_transient(not_made.value)
    assert database.rows("SELECT n FROM t") == held
    # The server can no longer be asked: only what leaves the same when it is repeated may be tried again by itself.
    when = "after"
    monkeypatch.setattr(psycopg, "connect", refused)
    with pytest.raises(TargetError, match="not known whether the rows were written: look before") as unknown:
        sent(2)
    assert not is_transient(unknown.value)
    lost.clear()
    held = database.rows("SELECT n FROM t ORDER BY n")
    assert held == [(1,), (2,)]
    with pytest.raises(
        TargetError, match="not known whether it was committed; to repeat it leaves the same"
    ) as unknown:
        sent(3, merge_rows, keys=["n"])
    assert is_transient(unknown.value)


def test_whoever_settles_a_first_write_waits_until_its_commit_is_decided(database):
    ledger, arguments = Ledger(TableName("daily"), "daily"), connection_arguments(database.connection)
    with connect(arguments) as writer, connect(arguments) as settling:
        ledger.create(writer)
        settling.execute(b"SET lock_timeout = '20ms'")
        with writer.transaction():
            assert ledger.take(writer, attempt(1))
            with pytest.raises(psycopg.errors.LockNotAvailable), settling.transaction():
                ledger.lock(settling, attempt(1))
        with settling.transaction():
            ledger.lock(settling, attempt(1))
            assert ledger.holds(settling, attempt(1))
        with settling.transaction():
            ledger.lock(settling, attempt(2, "2026-01-06"))
        assert ledger.take(writer, attempt(2, "2026-01-06"))


PIPELINE = """
    from lakewright import JsonFiles, Merger, Pipeline, PostgresTable
    shop = Pipeline("shop", schedule="@daily", start="2026-01-01")
    shop.source("orders", JsonFiles("landing/orders"), schema="order_id string, at timestamp, customer int, amount int",
                event_time="at")
    shop.sql("daily", "SELECT to_date(at) AS day, sum(amount) AS amount FROM orders GROUP BY 1", event_time="day",
             into=PostgresTable("db", "daily"))
"""
CUSTOMERS = """
    @shop.dataset(into=PostgresTable("db", "customers"), writer=Merger(keys=["customer"], sequence="at"))
    def customers(orders):
        return orders.select("customer", "amount", "at")
"""


def shop_files(database: Database, more: str = "") -> dict[str, str]:
    toml = f"""
        name = "shop"
        [targets.dev]
        fast_start = true
        master = "local[1]"
        parallel = 1
        [connections.db]
        url = "{database.connection.url}"
        password = "secret://env/PG_TEST_PASSWORD"
    """
    return {"lakewright.toml": toml, "pipelines/shop.py": PIPELINE + more}


def test_a_pipeline_writes_repeats_plans_and_is_rebuilt_from_the_ledger(project, database):
    shop = project(shop_files(database, CUSTOMERS))
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-01T11:00:00Z", 2, 2)])
    ok(shop.run(at="2026-01-02"))
    land(shop.folder, "d2.json", [order("c", "2026-01-01T11:00:00Z", 1, 2), order("d", "2026-01-02T10:00:00Z", 4)])
    assert ("daily", "2026-01-01") in made(ok(shop.run(at="2026-01-03")))
    # The second customer was corrected, with the same sequence: so it stays when what was wrong comes once more.
    both = {("customers", "arrival-1"), ("customers", "arrival-2")}
    assert made(ok(shop.run(["customers"], at="2026-01-03", again=True, slices=["arrival-1"]))) == both
    customers = [(1, 4), (2, 1)]
    assert database.rows("SELECT customer, amount FROM customers ORDER BY 1") == customers
    ok(shop.run(at="2026-01-03", again=True))
    truth = [("2026-01-01", 8, "2026-01-01"), ("2026-01-02", 4, "2026-01-02")]
    asked = "SELECT day::text, amount::int, _lw_event FROM daily ORDER BY 1"
    assert database.rows(asked) == truth
    assert database.rows("SELECT customer, amount FROM customers ORDER BY 1") == customers
    live = shop.store.receipts.live_slices("daily")
    assert shop.store.receipts.live("daily", "2026-01-01").rows == 1
    shop.rebuild_store()
    assert shop.store.receipts.live_slices("daily").keys() == live.keys()
    assert not ok(shop.run(at="2026-01-03")).outcomes
    assert not shop.plan(at="2026-01-03")["daily"].to_make
    assert "daily" in {found.name for found in read_status(shop.store, shop._now()).datasets}
    with pytest.raises(ConfigurationError, match="cannot be rolled back"):
        shop.rollback("daily")
    with pytest.raises(ConfigurationError, match="not in the lake"):
        shop.show("daily")
    ok(shop.run(at="2026-01-03", empty=True))
    assert database.rows(asked) == truth
    moved = PIPELINE.replace('"db", "daily"', '"db", "moved"')
    shop = project({"pipelines/shop.py": moved})
    assert shop.run(at="2026-01-03", again=True, slices=["2026-01-01"]).errors[0].hint.startswith("`lakewright store")
    shop.rebuild_store()
    ok(shop.run(at="2026-01-03"))
    assert database.rows(asked.replace("daily", "moved")) == truth
    reads = "\n    @shop.dataset()\n    def more(daily):\n        return daily\n"
    with pytest.raises(ConfigurationError, match="goes to db: daily"):
        project(shop_files(database, reads), folder="other").graph  # noqa: B018


# One kill per writer runs in the suite, on the server that all tests share; `make chaos` runs both.
@pytest.mark.parametrize("failpoint", [pytest.param("staged", marks=pytest.mark.chaos), "committed.main:2"])
def test_a_kill_of_the_real_command_leaves_nothing_that_a_second_run_does_not_mend(
    project, database, failpoint, connect_url
):
    shop = project(shop_files(database))
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z", 5), order("b", "2026-01-01T11:00:00Z", 2)])
    killed(shop.folder, *LAKEWRIGHT, "run", "--at", "2026-01-02", failpoint=failpoint, master=connect_url)
    ok(shop.run(at="2026-01-02"))
    assert database.rows("SELECT day::text, amount::int FROM daily") == [("2026-01-01", 7)]
    assert database.stages() == []
    assert shop.store.steps.open_steps() == []
    kinds = [Identity.from_json(commit.metadata).kind for commit in shop.lake.log("daily").commits()]
    assert kinds.count("data") == 1
    assert not ok(shop.run(at="2026-01-02")).outcomes
