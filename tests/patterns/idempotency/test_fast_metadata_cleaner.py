"""Fast Metadata Cleaner: a table per week behind a view, cleaned as a whole, loaded once a day."""

from __future__ import annotations

import threading
from datetime import date, timedelta

import psycopg
import pytest
from tests.connectors.test_postgres_table import Database

from lakewright.errors import ConfigurationError, InputError, LimitExceeded, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.ddl import schema_from_ddl
from lakewright.patterns.idempotency.fast_metadata_cleaner import (
    PartTables,
    add_column_to_parts,
    copy_part_table,
    freeze_parts,
    part_runs,
    prepare_part,
    replace_part_table,
)

VISITS = schema_from_ddl("id string, v_time timestamp_ntz")
MONDAY = date(2026, 1, 5)
WEEK = [MONDAY + timedelta(days=n) for n in range(7)]


@pytest.fixture
def database(postgres, monkeypatch) -> Database:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    return Database(postgres.database())


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm({})


@pytest.fixture
def load(database, tmp_path):
    def load(day: date, parts: PartTables, *, times: int = 2, text: str | None = None, schema=VISITS, **options) -> int:
        file = tmp_path / "visits.csv"
        rows = "".join(f"{day}-{n},{day} 0{n}:00:00\n" for n in range(times))
        file.write_text(text or "id,v_time\n" + rows)
        return copy_part_table([file], database.connection, parts, day=day, schema=schema, **options)

    return load


def shown(database, view="visits"):
    return sorted(database.rows(f"SELECT * FROM {view}"), key=str)


def tables(database):
    asked = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'visits%' OR tablename LIKE '\\_lw\\_new%' ORDER BY 1"
    return [name for (name,) in database.rows(asked)]


@pytest.mark.shows("04.fast-metadata-cleaner", 1, 2, 3)
@pytest.mark.parametrize("clean", ["truncate", "drop"])
def test_monday_makes_the_table_the_other_days_load_and_a_replay_leaves_the_same(database, load, clean):
    parts = PartTables("visits", clean=clean, time="v_time")
    assert prepare_part(database.connection, parts, day=MONDAY, schema=VISITS)
    assert (tables(database), shown(database)) == (["visits_w20260105"], [])
    for day in WEEK:
        assert prepare_part(database.connection, parts, day=day, schema=VISITS) is (day == MONDAY)
        load(day, parts)
    first = shown(database)
    assert (len(first), tables(database)) == (14, ["visits_w20260105"])

    with pytest.raises(ConfigurationError, match=r"loaded already.*one week: the week from 2026-01-05 to 2026-01-11"):
        load(WEEK[2], parts)
    with pytest.raises(ConfigurationError, match="smallest that can be made again is one week"):
        part_runs(WEEK[2], WEEK[3], every="week", partial="refuse")
    runs = part_runs(WEEK[2], WEEK[3], every="week")
    assert [run.day for run in runs] == WEEK
    assert [run.day for run in runs if run.cleans] == [MONDAY]
    assert [run.day for run in runs if run.asked] == [WEEK[2]]
    assert shown(database) == first
    arm({"LAKEWRIGHT_FAILPOINT": "staged", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    with pytest.raises(FailpointReached):
        load(MONDAY, parts)
    arm({})
    assert (shown(database), tables(database)) == (first, ["visits_w20260105"]), "cleaned only with the load"
    for run in runs:
        load(run.day, parts)
    assert shown(database) == first
    week = "id,v_time\n" + "".join(f"{name},{at}\n" for name, at in first)
    assert load(WEEK[3], parts, text=week, whole=True) == 14
    assert shown(database) == first
    with pytest.raises(InputError, match="1 rows lie outside the week from 2026-01-05"):
        load(MONDAY, parts, text="id,v_time\nlate,2026-01-04 23:00:00\n")
    with pytest.raises(TargetError, match="no table for the week from 2026-01-12 to 2026-01-18 yet"):
        load(date(2026, 1, 13), parts)
    assert shown(database) == first


@pytest.mark.shows("04.fast-metadata-cleaner", 4, 8)
def test_a_year_begins_a_table_and_wrong_targets_and_shapes_are_refused(database, load, tmp_path):
    parts = PartTables("visits", max_parts=3)
    for day in (date(2025, 12, 29), date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 2)):
        load(day, parts)
    assert tables(database) == ["visits_w20251229", "visits_w20260101"]
    assert len(shown(database, "visits_w20251229")) == len(shown(database, "visits_w20260101")) == 4
    load(MONDAY, parts)
    with pytest.raises(LimitExceeded, match="one more part would make 4 tables, and the limit is 3"):
        load(date(2026, 1, 12), parts)
    with pytest.raises(ConfigurationError, match="cut by another granularity"):
        load(date(2026, 1, 1), PartTables("visits", every="month"))
    with pytest.raises(SchemaChangeError, match="the parts have id, v_time"):
        load(MONDAY, parts, text="id,page\nx,/\n", schema=schema_from_ddl("id string, page string"))
    database.rows("CREATE TABLE other (n int)")
    with pytest.raises(TargetError, match="other is there already, and is no view of parts"):
        load(MONDAY, PartTables("other"))
    for target in (str(tmp_path / "visits"), tmp_path):
        with pytest.raises(ConfigurationError, match="no tables that could be truncated") as refused:
            replace_part_table(None, target, parts, day=MONDAY)
        assert "Use Data Overwrite" in str(refused.value.hint)
    assert not list(tmp_path.glob("visits")), "nothing was written"
    for wrong in ({"every": "fortnight"}, {"clean": "delete"}, {"max_parts": 0}, {"view": "_lw_x"}):
        with pytest.raises(ConfigurationError):
            PartTables(**{"view": "visits", **wrong})


@pytest.mark.shows("04.fast-metadata-cleaner", 5)
def test_a_reader_that_polls_the_view_never_meets_a_missing_table(database, load):
    parts = PartTables("visits", clean="drop")
    for day in (MONDAY, MONDAY + timedelta(days=7)):
        load(day, parts)
    done, seen, wrong = threading.Event(), [], []

    def poll() -> None:
        with database.at.connect() as session:
            while not done.is_set():
                try:
                    seen.append(session.execute("SELECT count(*) FROM visits").fetchone()[0])
                except psycopg.Error as error:
                    wrong.append(str(error))

    readers = [threading.Thread(target=poll) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        oids = set()
        for _ in range(15):
            load(MONDAY, parts)
            prepare_part(database.connection, parts, day=MONDAY + timedelta(days=7), schema=VISITS)
            oids.update(database.rows("SELECT 'visits_w20260105'::regclass::oid"))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert (wrong, len(oids)) == ([], 15)
    assert set(seen) <= {2, 4}


@pytest.mark.shows("04.fast-metadata-cleaner", 6, 7)
def test_old_parts_are_frozen_into_one_and_a_column_reaches_all_of_them(database, load):
    parts = PartTables("visits")
    mondays = [MONDAY + timedelta(days=7 * n) for n in range(6)]
    for day in mondays:
        load(day, parts)
    before = shown(database)
    bits = database.rows("SELECT xmin::text, ctid::text FROM visits_w20260209")
    assert freeze_parts(database.connection, parts, before=mondays[5]) == ("visits_frozen_20260105_20260209",)
    assert tables(database) == ["visits_frozen_20260105_20260209", "visits_w20260209"]
    assert shown(database) == before
    assert freeze_parts(database.connection, parts, before=mondays[5]) == ()
    for day in (mondays[0], mondays[2] + timedelta(days=1)):
        with pytest.raises(TargetError, match="is frozen: it lies in the read-only table visits_frozen_20260105"):
            load(day, parts)
    with pytest.raises(TargetError, match="is frozen"):
        prepare_part(database.connection, parts, day=mondays[1], schema=VISITS)
    for statement in ("INSERT INTO {} DEFAULT VALUES", "DELETE FROM {}", "UPDATE {} SET id = ''", "TRUNCATE {}"):
        with pytest.raises(psycopg.Error, match="is frozen"):
            database.rows(statement.format("visits_frozen_20260105_20260209"))

    for _ in range(2):
        assert add_column_to_parts(database.connection, parts, column="page", kind="text") == 2
    assert shown(database) == [(*row, None) for row in before]
    assert database.rows("SELECT xmin::text, ctid::text FROM visits_w20260209") == bits, "no row was written"
    later = schema_from_ddl("id string, v_time timestamp_ntz, page string")
    load(mondays[5] + timedelta(days=1), parts, text="id,v_time,page\nn,2026-02-10 01:00:00,/new\n", schema=later)
    assert database.rows("SELECT page FROM visits WHERE page IS NOT NULL") == [("/new",)]


def test_a_frame_is_loaded_like_a_file(spark, database):
    frame = spark.createDataFrame([("a", "2026-01-05 01:00:00")], "id string, at string")
    frame = frame.selectExpr("id", "CAST(at AS TIMESTAMP_NTZ) AS v_time")
    for clean in ("truncate", "drop"):
        for _ in range(2):
            assert replace_part_table(frame, database.connection, PartTables("visits", clean=clean), day=MONDAY) == 1
        assert [row[0] for row in shown(database)] == ["a"]
    assert database.stages() == []
