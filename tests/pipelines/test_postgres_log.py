"""The log of a real PostgreSQL in a pipeline, without a broker: cut short anywhere, the copy equals the table."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakewright import PostgresLog, apply_row_versions, read_row_versions
from lakewright.connectors import postgres_log_slot, postgres_log_windows
from lakewright.connectors.cdc_names import CaptureNames
from lakewright.connectors.postgres_log_windows import lsn_number
from lakewright.errors import ConfigurationError, InputError, SchemaChangeError, TargetError
from lakewright.failpoints import FailpointReached, arm
from lakewright.model.arrivals import Arrival
from lakewright.model.ddl import schema_from_ddl
from lakewright.model.protocols import SourceContext
from tests.connectors.test_cdc import KINDS, WORTH
from tests.connectors.test_postgres_table import Database
from tests.pipelines.shop import ok

PIPELINE = """
    from lakewright import LatestValue, Pipeline, PostgresLog

    legacy = Pipeline("legacy", start="2026-01-01")
    legacy.source("changes", PostgresLog("db", "visits", max_changes=15, if_lost="snapshot"),
                  schema="id INT, page STRING, body STRING, price DECIMAL(8, 2), seen TIMESTAMP, tags ARRAY<STRING>, "
                         "raw BINARY, ok BOOLEAN, clock BIGINT, day DATE, ratio DOUBLE")

    @legacy.dataset(writer=LatestValue(keys=["id"]))
    def visits_now(changes):
        return changes
"""
TABLE = """
    CREATE TABLE visits (id int, page text, body text, price numeric(8, 2), seen timestamptz, tags text[], raw bytea,
                         ok boolean, clock time, day date, ratio double precision)
"""
COLUMNS = "id, page, body, price, seen, tags, raw, ok, clock, day, ratio"
SLOT = "lw_blog_changes"
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
FULL = "'2.50', '2026-01-05 10:00:00.25+01', '{a,NULL,\"b, c\"}', '\\x00ff', true, '10:00:00.5', '2026-01-05', 0.1"


@pytest.fixture
def database(postgres, monkeypatch) -> Database:
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    found = Database(postgres.database())
    found.rows(TABLE)
    found.rows("ALTER TABLE visits ALTER body SET STORAGE EXTERNAL")
    found.rows(f"INSERT INTO visits SELECT g, 'p' || g, repeat('x', 3000), {FULL} FROM generate_series(1, 5) g")
    yield found
    arm({})
    with found.at.connect() as session:  # slots are the server's, not the database's
        for (name,) in session.execute(SLOTS):
            session.execute("SELECT pg_drop_replication_slot(%s)", [name])


def stands(database: Database) -> list[tuple[Any, ...]]:
    micros = "(extract(epoch FROM clock) * 1000000)::bigint"
    return [tuple(row) for row in database.rows(f"SELECT {COLUMNS.replace('clock', micros)} FROM visits ORDER BY 1")]


def copied(shop) -> list[tuple[Any, ...]]:
    frame = shop.lake.read("visits_now").selectExpr(*COLUMNS.split(", ")).orderBy("id")
    seen = COLUMNS.split(", ").index("seen")
    found = []
    for row in frame.collect():
        values = [bytes(value) if isinstance(value, bytearray) else value for value in row]
        values[seen] = None if values[seen] is None else values[seen].astimezone(tz=None)
        found.append(tuple(values))
    return found


def catch_up(shop) -> int:
    runs = 0
    while ok(shop.run()).outcomes:
        runs += 1
        assert runs < 12
    return runs


def confirmed(database: Database) -> int:
    [(place,)] = database.rows(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    return lsn_number(place)


def cut_short(shop, at: str) -> None:
    arm({"LAKEWRIGHT_FAILPOINT": at, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    assert isinstance(shop.run().errors[0], FailpointReached)
    arm({})


def test_the_copy_equals_the_table_whatever_changes_and_wherever_it_is_cut_short(project, database, spark, tmp_path):
    at = database.at
    toml = f'name = "blog"\n[connections.db]\nurl = "postgresql://{at.user}@{at.host}:{at.port}/{at.name}"\n'
    files = {"pipelines/legacy.py": PIPELINE, "lakewright.toml": toml + 'password = "secret://env/PG_TEST_PASSWORD"'}
    shop = project(files)
    (refused,) = shop.run().errors
    assert isinstance(refused, ConfigurationError)
    assert "has neither primary key nor REPLICA IDENTITY" in str(refused)
    assert database.rows(SLOTS) == []
    database.rows("ALTER TABLE visits ADD PRIMARY KEY (id)")

    # A slot of an attempt before: what changed since it was made is in the snapshot, and comes once more.
    database.rows("CREATE PUBLICATION lw_blog_changes FOR TABLE visits")
    database.rows(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    for statement in (
        "UPDATE visits SET page = 'early' WHERE id = 1",
        "DELETE FROM visits WHERE id = 2",
        f"INSERT INTO visits VALUES (6, 'early', 'b', {FULL})",
    ):
        database.rows(statement)
    for _ in range(2):
        ok(shop.run())
        assert copied(shop) == stands(database)

    # Changes of all kinds; their window is cut short once it is recorded, and again once it is written.
    with database.at.connect() as session:
        session.execute("UPDATE visits SET page = 'kept its body' WHERE id = 1")
        session.execute("UPDATE visits SET id = 60 WHERE id = 6")
        with session.transaction():
            session.execute("UPDATE visits SET page = NULL, price = NULL, tags = NULL, raw = '' WHERE id = 4")
            session.execute("UPDATE visits SET page = 'again', body = 'new' WHERE id = 4")
            session.execute("DELETE FROM visits WHERE id = 5")
            session.execute("INSERT INTO visits (id, ratio) VALUES (7, 'NaN')")
            session.execute("DELETE FROM visits WHERE id = 7")
    cut_short(shop, "recorded")
    database.rows(f"INSERT INTO visits VALUES (8, 'after the window', 'b', {FULL})")
    cut_short(shop, "published")
    assert ok(shop.run()).outcomes
    windows = [one.window for one in shop.store.arrivals.all("changes")]
    assert confirmed(database) == lsn_number(windows[-1]["from"]), "it moves at the next look, not before"
    catch_up(shop)
    assert copied(shop) == stands(database)
    assert confirmed(database) == lsn_number(shop.store.arrivals.all("changes")[-1].window["to"])
    changes = shop.lake.read("changes")
    assert changes.where("id = 8").count() == 1, "once, whatever was cut short"
    left_out = changes.where("_not_sent = array('body')").orderBy("_lsn").select("id", "_op").collect()
    assert [tuple(row) for row in left_out] == [(1, "update"), (1, "update"), (4, "update")]

    database.rows("TRUNCATE visits")
    database.rows(f"INSERT INTO visits VALUES (1, 'after', repeat('y', 3000), {FULL}), (9, 'last', NULL, {FULL})")
    database.rows("UPDATE visits SET page = 'and changed' WHERE id = 1")
    ok(shop.run())
    assert copied(shop) == stands(database)

    # The slot is gone, and changes with it: refused by default, here it begins again, and what went is ended.
    database.rows(f"SELECT pg_drop_replication_slot('{SLOT}')")
    database.rows("DELETE FROM visits WHERE id = 9")
    ok(shop.run())
    assert copied(shop) == stands(database)
    assert [row[0] for row in copied(shop)] == [1]

    # The history of a key, by the same changes.
    apply_row_versions(shop.lake.read("changes"), str(tmp_path / "versions"), keys=["id"])
    current = read_row_versions(spark, str(tmp_path / "versions")).where("is_current")
    assert [tuple(row) for row in current.select("id", "page").collect()] == [(1, "and changed")]
    assert shop.capture("changes").slot().lag_bytes >= 0
    assert shop.capture("changes").status().state == "running"
    gone = shop.capture("changes").decommission()
    assert (gone.slot, gone.publication) == (True, True)
    assert shop.capture("changes").status().state == "absent"


def test_what_it_cannot_go_on_from_is_told_and_nothing_is_moved(database, monkeypatch):
    database.rows("ALTER TABLE visits ADD PRIMARY KEY (id)")
    source, last = PostgresLog("db", "visits", slot="lw_other", publication="lw_other"), None

    def ctx(*waiting: Any) -> SourceContext:
        return SourceContext(
            "changes", Path(), last_window=last, waiting=waiting, connections=database.connections, project_name="blog"
        )

    def read(window: Any, columns: str) -> Any:
        arrival = Arrival("changes", 1, window, datetime.now(UTC))
        return source.read(arrival, spark=None, schema=schema_from_ddl(columns), ctx=ctx())

    first = source.look(ctx())
    assert first is not None
    assert database.rows(SLOTS) == [], "to look makes nothing"
    with pytest.raises(SchemaChangeError, match="no column pag") as refused:
        read(first.window, "id INT, pag STRING")
    assert "Did you mean 'page'" in str(refused.value.hint)
    assert database.rows(SLOTS) == [("lw_other",)]

    last = first.window
    assert source.look(ctx()) is None, "nothing has changed"
    with monkeypatch.context() as quiet:
        quiet.setattr(postgres_log_windows, "_QUIET_BYTES", 0)
        found = source.look(ctx())
        assert found is not None
        assert found.window["changes"] == 0, "the slot follows a log in which others write"
    database.rows("INSERT INTO visits (id, ratio) VALUES (10, 1)")
    database.rows("ALTER TABLE visits DROP COLUMN ratio")
    found = source.look(ctx())
    assert found is not None
    assert found.window["changes"] == 1
    assert source.look(ctx(found.window)) is None, "what was recorded is read first"
    database.rows("INSERT INTO visits (id) VALUES (11)")
    found = source.look(ctx())
    assert found is not None
    assert found.window["changes"] == 2
    with pytest.raises(SchemaChangeError, match="no column ratio"):
        read(found.window, "id INT, ratio DOUBLE")
    assert source.gone(Arrival("changes", 2, found.window, datetime.now(UTC)), ctx()) == []

    last = found.window
    assert source.look(ctx()) is None
    last = {**found.window, "to": "0/20"}
    with pytest.raises(InputError, match="somebody else has moved"):
        source.look(ctx())
    again = PostgresLog("db", "visits", slot="lw_other", publication="lw_other", if_lost="snapshot").look(ctx())
    assert again is not None
    assert again.window["again"] is True
    assert source.gone(Arrival("changes", 2, found.window, datetime.now(UTC)), ctx())[0].endswith("by somebody else")
    last = found.window
    database.rows("ALTER TABLE visits RENAME TO renamed")
    with pytest.raises(InputError, match="does not hold public\\.visits any more"):
        source.look(ctx())
    _check_taken(database, monkeypatch)
    database.rows("SELECT pg_drop_replication_slot('lw_other')")
    with pytest.raises(InputError, match="'lw_other' is not there any more"):
        source.look(ctx())


def test_each_type_is_what_the_captured_table_gives(database, spark):
    database.rows("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.rows(
        "CREATE TABLE kinds (id int PRIMARY KEY, b boolean, i2 smallint, i8 bigint, r real, d double precision, "
        "nu numeric(10,2), v varchar(5), u uuid, m mood, j json, jb jsonb, ts timestamp, ts3 timestamp(3), "
        "tz timestamptz, da date, ti time, iv interval, by bytea, ia int[], ta text[], na numeric[], "
        "tsa timestamp[], daa date[])"
    )
    database.rows(f"INSERT INTO kinds VALUES ({WORTH})")
    source, last = PostgresLog("db", "kinds"), None
    taken = []
    for _ in range(2):  # a snapshot, then the same row as a change
        ctx = SourceContext("kinds", Path(), last_window=last, connections=database.connections, project_name="blog")
        found = source.look(ctx)
        assert found is not None
        last = found.window
        arrival = Arrival("kinds", 1, found.window, datetime.now(UTC))
        schema = source.complete_schema(schema_from_ddl(KINDS))
        [row] = source.read(arrival, spark=spark, schema=schema, ctx=ctx).collect()
        assert row["_lw_raw"] is None
        values = {**row.asDict(), "d": str(row.d), "jb": str(row.jb), "tz": row.tz.replace(tzinfo=UTC)}
        taken.append({name: values[name] for name in schema_from_ddl(KINDS).names})
        database.rows("UPDATE kinds SET i2 = i2")
    moment = datetime(2026, 1, 2, 3, 4, 5)
    assert taken[0] == taken[1] == {
        "id": 1, "b": True, "i2": 2, "i8": 9007199254740993, "r": 1.5, "d": "nan", "nu": Decimal("12.34"), "v": "é",
        "u": "6f1c2d3e-0000-4000-8000-000000000001", "m": "ok", "j": '{"a": 1}', "jb": '{"a":[1,2]}',
        "ts": moment.replace(microsecond=123456), "ts3": datetime(1969, 12, 31, 23, 59, 59, 999000),
        "tz": datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC), "da": date(1969, 12, 31), "ti": 11045500000,
        "iv": "P1Y2D", "by": b"\x00\xff", "ia": [1, None], "ta": ["a", None], "na": [Decimal("1.50")],
        "tsa": [moment], "daa": [date(2026, 1, 2)],
    }  # fmt: skip


def _check_taken(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader by the replication protocol, as another tool would be, holds the slot."""
    monkeypatch.setattr(postgres_log_slot, "_FREE_SECONDS", 0.3)
    start = "START_REPLICATION SLOT lw_other LOGICAL 0/0 (proto_version '1', publication_names 'lw_other')"
    with psycopg.connect(database.at.url, replication="database", autocommit=True) as other:
        other.pgconn.send_query(start.encode())
        other.pgconn.get_result()
        names = CaptureNames("lw_other", "lw_other", "lw_other", "lw_other")
        with database.at.connect() as session, pytest.raises(TargetError, match="is taken: process"):
            postgres_log_slot.look_ahead(session, names, most=10, who="changes")
        other.pgconn.finish()
    deadline = time.monotonic() + 10
    while database.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'lw_other' AND active"):
        assert time.monotonic() < deadline
