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


@pytest.mark.shows("04.fast-metadata-cleaner", 1)
@pytest.mark.parametrize("clean", ["truncate", "drop"])
def test_the_first_step_empties_a_part_that_has_rows_and_forgets_its_days(database, load, clean):
    parts = PartTables("visits", clean=clean)
    for day in (*WEEK, MONDAY + timedelta(days=7)):
        load(day, parts)
    other = shown(database, "visits_w20260112")
    before = database.rows("SELECT 'visits_w20260105'::regclass::oid")
    assert not prepare_part(database.connection, parts, day=WEEK[1], schema=VISITS)
    assert len(shown(database)) == 16
    assert prepare_part(database.connection, parts, day=MONDAY, schema=VISITS)
    assert (shown(database, "visits_w20260105"), shown(database)) == ([], other)
    assert (database.rows("SELECT 'visits_w20260105'::regclass::oid") == before) is (clean == "truncate")
    for day in WEEK[1:]:  # a day that was loaded would be refused
        load(day, parts)
    assert len(shown(database)) == 14


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
        for refused in (
            lambda to: prepare_part(to, parts, day=MONDAY, schema=VISITS),
            lambda to: replace_part_table(None, to, parts, day=MONDAY),
            lambda to: copy_part_table([], to, parts, day=MONDAY, schema=VISITS),
            lambda to: freeze_parts(to, parts, before=MONDAY),
            lambda to: add_column_to_parts(to, parts, column="page", kind="text"),
        ):
            with pytest.raises(ConfigurationError, match="no tables that could be truncated") as told:
                refused(target)
            assert "Use Data Overwrite" in str(told.value.hint)
    assert not list(tmp_path.glob("visits")), "nothing was written"
    for wrong in ({"every": "fortnight"}, {"clean": "delete"}, {"max_parts": 0}, {"view": "_lw_x"}):
        with pytest.raises(ConfigurationError):
            PartTables(**{"view": "visits", **wrong})


@pytest.mark.parametrize("clean", ["truncate", "drop"])
def test_a_retyped_column_is_refused_and_a_narrower_one_takes_the_type_of_the_parts(database, load, clean):
    parts, next_week = PartTables("visits", clean=clean), MONDAY + timedelta(days=7)
    spent = "id string, at date, spent decimal(10,2)"
    load(MONDAY, parts, text="id,at,spent\na,2026-01-05,1.25\n", schema=schema_from_ddl(spent))
    before = shown(database)
    wrong = "id,at,spent\na,2026-01-05 09:30:00,1.2345\n"
    for retyped, told in (
        (spent.replace("(10,2)", "(10,4)"), r"spent is numeric\(10,2\) in the table and numeric\(10,4\) in the rows"),
        (spent.replace("date", "timestamp_ntz"), "at is date in the table and timestamp without time zone in the rows"),
        (spent.replace("decimal(10,2)", "double"), r"spent is numeric\(10,2\) in the table and double precision"),
    ):
        schema = schema_from_ddl(retyped)
        for day in (MONDAY, next_week):  # a part that is there, and one that would be made
            for attempt in (
                lambda day=day, schema=schema: load(day, parts, text=wrong, schema=schema),
                lambda day=day, schema=schema: prepare_part(database.connection, parts, day=day, schema=schema),
            ):
                with pytest.raises(SchemaChangeError, match=told):
                    attempt()
    assert (shown(database), tables(database)) == (before, ["visits_w20260105"]), "nothing was rounded, cut or made"
    narrower = schema_from_ddl(spent.replace("(10,2)", "(6,1)"))
    for day in (MONDAY, next_week):
        load(day, parts, text="id,at,spent\na,2026-01-05,1.5\n", schema=narrower)
    prepare_part(database.connection, parts, day=next_week, schema=narrower)
    kinds = (
        "SELECT DISTINCT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'spent' AND "
        "attrelid::regclass::text LIKE 'visits%'"
    )
    assert database.rows(kinds) == [("numeric(10,2)",)]
    assert [str(row[2]) for row in shown(database)] == ["1.50"]


@pytest.mark.shows("04.fast-metadata-cleaner", 5)
def test_a_reader_that_polls_the_view_never_meets_a_missing_table(database, load):
    parts = PartTables("visits", clean="drop")
    for day in (MONDAY, MONDAY + timedelta(days=7)):
        load(day, parts)
    whole, monday = shown(database), shown(database, "visits_w20260105")
    done, wrong = threading.Event(), []
    seen: list[list[list[tuple[object, ...]]]] = [[], []]

    def poll(found: list[list[tuple[object, ...]]]) -> None:
        with database.at.connect() as session:
            while not done.is_set():
                try:
                    found.append(sorted(session.execute("SELECT * FROM visits").fetchall(), key=str))
                except psycopg.Error as error:
                    wrong.append(str(error))

    def polled_once_more() -> None:
        before = [len(found) for found in seen]
        while any(len(found) <= known for found, known in zip(seen, before, strict=True)):
            assert not wrong
            assert all(reader.is_alive() for reader in readers)

    readers = [threading.Thread(target=poll, args=(found,)) for found in seen]
    for reader in readers:
        reader.start()
    try:
        polled_once_more()
        oids = set()
        for _ in range(15):
            load(MONDAY, parts)
            prepare_part(database.connection, parts, day=MONDAY + timedelta(days=7), schema=VISITS)
            oids.update(database.rows("SELECT 'visits_w20260105'::regclass::oid"))
            polled_once_more()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert (wrong, len(oids)) == ([], 15)
    assert (len(whole), len(monday)) == (4, 2)
    for found in seen:
        assert (found[0], found[-1]) == (whole, monday)
        assert all(rows in (whole, monday) for rows in found), "the old rows or the new ones, and never none"
        assert len(found) > 15


@pytest.mark.shows("04.fast-metadata-cleaner", 6, 7)
def test_old_parts_are_frozen_into_one_and_a_column_reaches_all_of_them(database, load):
    parts = PartTables("visits")
    mondays = [MONDAY + timedelta(days=7 * n) for n in range(6)]
    for day in mondays:
        load(day, parts)
    before = shown(database)
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

    behind = ("visits_frozen_20260105_20260209", "visits_w20260209")
    asked = " UNION ALL ".join(f"SELECT tableoid::oid, xmin::text, ctid::text, id FROM {table}" for table in behind)
    bits = database.rows(f"{asked} ORDER BY 1, 3")
    for _ in range(2):
        assert add_column_to_parts(database.connection, parts, column="page", kind="text") == 2
    assert shown(database) == [(*row, None) for row in before]
    assert len(bits) == 12
    assert database.rows(f"{asked} ORDER BY 1, 3") == bits, "no row was written, frozen ones neither"
    later = schema_from_ddl("id string, v_time timestamp_ntz, page string")
    load(mondays[5] + timedelta(days=1), parts, text="id,v_time,page\nn,2026-02-10 01:00:00,/new\n", schema=later)
    assert database.rows("SELECT page FROM visits WHERE page IS NOT NULL") == [("/new",)]


@pytest.mark.shows("04.fast-metadata-cleaner", 6)
def test_week_by_week_old_parts_are_added_to_the_one_read_only_table_of_their_year(database, load):
    parts = PartTables("visits", max_parts=5)
    mondays = [date(2025, 12, 15), date(2025, 12, 22), date(2025, 12, 29), date(2026, 1, 1)]
    mondays += [MONDAY + timedelta(days=7 * n) for n in range(4)]
    folded, kept = [], set()
    for day in mondays:
        load(day, parts)  # without the freezing, the sixth part would be one too many
        rows = shown(database)
        before = day - timedelta(days=7)
        folded.append(freeze_parts(database.connection, parts, before=before))
        assert shown(database) == rows, "the view shows the same"
        assert freeze_parts(database.connection, parts, before=before) == ()
        bits = {row for name in tables(database) if "frozen" in name
                for row in database.rows(f"SELECT tableoid::oid, xmin::text, ctid::text, id FROM {name}")}  # fmt: skip
        assert kept <= bits, "what was frozen is not written again"
        kept = bits
    assert folded == [
        (), (), ("visits_frozen_20251215_20251222",), (), ("visits_frozen_20251215_20251229",),
        ("visits_frozen_20251215_20260101", "visits_frozen_20260101_20260105"),
        ("visits_frozen_20260101_20260112",), ("visits_frozen_20260101_20260119",),
    ]  # fmt: skip
    assert len(shown(database)) == 2 * len(mondays)
    frozen = ["visits_frozen_20251215_20260101", "visits_frozen_20260101_20260119"]
    assert tables(database) == [*frozen, "visits_w20260119", "visits_w20260126"]
    for table in frozen:
        with pytest.raises(psycopg.Error, match="is frozen"):
            database.rows(f"DELETE FROM {table}")
    for day in (mondays[1], MONDAY, MONDAY + timedelta(days=8)):
        with pytest.raises(TargetError, match="is frozen: it lies in the read-only table"):
            load(day, parts)
    load(mondays[-1] + timedelta(days=1), parts)
    with pytest.raises(ConfigurationError, match="loaded already"):
        load(mondays[-1] + timedelta(days=1), parts)


@pytest.mark.parametrize("length", [38, 42, 53])
def test_parts_are_frozen_behind_a_view_whose_name_is_long(database, load, length):
    views = [f"{'v' * (length - 1)}{end}" for end in "ab"]
    for view in views:
        parts = PartTables(view)
        for week in range(3):
            load(MONDAY + timedelta(days=7 * week), parts)
    for view in views:
        before = shown(database, view)
        for week in range(1, 4):
            end = MONDAY + timedelta(days=7 * week)
            (frozen,) = freeze_parts(database.connection, PartTables(view), before=end)
            assert frozen.endswith(f"_frozen_20260105_{end:%Y%m%d}")
            assert database.rows(f"SELECT count(*)::int FROM {frozen}") == [(2 * week,)]
            assert shown(database, view) == before
    with pytest.raises(ConfigurationError, match="at most 53 bytes"):
        PartTables("v" * 54)


def test_readers_go_on_while_rows_are_frozen_and_a_failure_freezes_nothing(database, load):
    parts = PartTables("visits")
    for n in range(3):
        load(MONDAY + timedelta(days=7 * n), parts)
    freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=7))
    rows, names, notes = shown(database), tables(database), database.rows("SELECT * FROM _lw_parts ORDER BY part")
    # A table of that name is in the way of the last step.
    database.rows('CREATE TABLE "visits_frozen_20260105_20260119" (n int)')
    with pytest.raises(TargetError, match="Nothing was changed"):
        freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=14))
    database.rows('DROP TABLE "visits_frozen_20260105_20260119"')
    assert (shown(database), tables(database)) == (rows, names)
    assert database.rows("SELECT * FROM _lw_parts ORDER BY part") == notes
    with pytest.raises(psycopg.Error, match="is frozen"):
        database.rows("DELETE FROM visits_frozen_20260105_20260112")

    done, seen, wrong = threading.Event(), [], []

    def poll() -> None:
        with database.at.connect() as session:
            while not done.is_set():
                try:
                    seen.append(session.execute("SELECT count(*) FROM visits").fetchone()[0])
                except psycopg.Error as error:
                    wrong.append(str(error))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        while not seen:
            assert reader.is_alive()
        freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=14))
        polled = len(seen)
        while len(seen) == polled:
            assert reader.is_alive()
    finally:
        done.set()
        reader.join()
    assert (wrong, set(seen)) == ([], {6})


def test_tables_of_a_year_that_were_frozen_one_by_one_become_one_around_no_open_part(database, load):
    parts = PartTables("visits")
    load(MONDAY + timedelta(days=14), parts)
    freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=21))
    for n in (0, 1):  # late: the weeks before
        load(MONDAY + timedelta(days=7 * n), parts)
    rows = shown(database)
    assert freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=7)) == (
        "visits_frozen_20260105_20260112",
    )
    load(MONDAY + timedelta(days=8), parts)  # the week between is open
    assert freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=14)) == (
        "visits_frozen_20260105_20260126",
    )
    assert tables(database) == ["visits_frozen_20260105_20260126"]
    assert len(shown(database)) == len(rows) + 2


def test_what_was_never_loaded_can_still_come_between_frozen_tables(database, load):
    parts = PartTables("visits")
    for n in (0, 2):
        load(MONDAY + timedelta(days=7 * n), parts)
    assert freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=28)) == (
        "visits_frozen_20260105_20260112",
        "visits_frozen_20260119_20260126",
    )
    load(MONDAY + timedelta(days=7), parts)  # its source was down until now
    assert freeze_parts(database.connection, parts, before=MONDAY + timedelta(days=28)) == (
        "visits_frozen_20260105_20260126",
    )
    assert tables(database) == ["visits_frozen_20260105_20260126"]


def test_a_part_whose_only_load_failed_is_not_frozen_over(database, load):
    parts, late = PartTables("visits"), MONDAY + timedelta(days=7)
    load(MONDAY, parts)
    arm({"LAKEWRIGHT_FAILPOINT": "staged", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    with pytest.raises(FailpointReached):
        load(late, parts)
    arm({})
    other = MONDAY + timedelta(days=14)
    prepare_part(database.connection, parts, day=other, schema=VISITS)
    database.rows("INSERT INTO visits_w20260119 VALUES ('by another loader', '2026-01-19')")
    frozen = ("visits_frozen_20260105_20260112", "visits_frozen_20260119_20260126")
    assert freeze_parts(database.connection, parts, before=date(2026, 3, 1)) == frozen
    load(late, parts)
    assert tables(database) == [*frozen, "visits_w20260112"]
    assert len(shown(database)) == 5
    assert freeze_parts(database.connection, parts, before=date(2026, 3, 1)) == ("visits_frozen_20260105_20260126",)
    # What the page tells administrators: the rows are corrected where they are.
    database.rows(
        'ALTER TABLE visits_frozen_20260105_20260126 DISABLE TRIGGER "_lw_frozen"; '
        "UPDATE visits_frozen_20260105_20260126 SET id = 'corrected' WHERE id = 'by another loader'; "
        'ALTER TABLE visits_frozen_20260105_20260126 ENABLE TRIGGER "_lw_frozen"'
    )
    assert database.rows("SELECT count(*) FROM visits WHERE id = 'corrected'") == [(1,)]
    with pytest.raises(psycopg.Error, match="is frozen"):
        database.rows("DELETE FROM visits_frozen_20260105_20260126")


def test_a_frame_is_loaded_like_a_file(spark, database):
    frame = spark.createDataFrame([("a", "2026-01-05 01:00:00")], "id string, at string")
    frame = frame.selectExpr("id", "CAST(at AS TIMESTAMP_NTZ) AS v_time")
    for clean in ("truncate", "drop"):
        for _ in range(2):
            assert replace_part_table(frame, database.connection, PartTables("visits", clean=clean), day=MONDAY) == 1
        assert [row[0] for row in shown(database)] == ["a"]
    assert database.stages() == []
