"""A PostgreSQL table as a source: what is new, read in parts, and what goes wrong in words."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.pipelines.shop import made, ok, rows_of

from lakewright.connectors.jdbc import Jdbc
from lakewright.connectors.postgres_connection import connection_arguments, jdbc_options
from lakewright.connectors.postgres_errors import explain_text
from lakewright.connectors.read_errors import explain_read_error
from lakewright.errors import (
    ConfigurationError,
    InputError,
    LakewrightError,
    MissingColumnsError,
    SchemaChangeError,
    TargetError,
)
from lakewright.lake.delta_errors import is_transient
from lakewright.model.arrivals import Arrival
from lakewright.model.connections import Connection, Connections
from lakewright.model.loads import CursorCut
from lakewright.model.protocols import SourceContext
from lakewright.model.secrets import Secret
from lakewright.pipelines import take

TIME = datetime(2026, 1, 5, tzinfo=UTC)
USERS = """
    CREATE TABLE users (id bigint PRIMARY KEY, name text, changed timestamptz NOT NULL);
    INSERT INTO users SELECT i, 'u' || i, '2026-01-01'::timestamptz + i * interval '1 hour' FROM generate_series(1, 9) i
"""


class Reader:
    """Takes arrivals one after another, as a run does."""

    def __init__(self, spark: SparkSession, database: Any, monkeypatch: Any) -> None:
        self.spark, self.database = spark, database
        monkeypatch.setenv("JDBC_TEST_PASSWORD", database.password)
        self.last: Arrival | None = None
        self.options: dict[str, str] = {}

    def connections(self, *, user: str | None = None, port: int | None = None) -> Connections:
        at = self.database
        url = f"postgresql://{user or at.user}@{at.host}:{port or at.port}/{at.name}"
        return Connections({"db": Connection("db", url, Secret("secret://env/JDBC_TEST_PASSWORD"), self.options)})

    def ctx(self, **other: Any) -> SourceContext:
        last = None if self.last is None else self.last.window
        return SourceContext("users", Path("."), last_window=last, connections=self.connections(**other))

    def sql(self, statement: str) -> None:
        with self.database.connect() as session:
            session.execute(statement)

    def take(self, source: Jdbc) -> Arrival | None:
        found = source.look(self.ctx())
        if found is None:
            return None
        number = 1 if self.last is None else self.last.number + 1
        self.last = Arrival("users", number, json.loads(json.dumps(found.window)), TIME)
        return self.last

    def frame(self, source: Jdbc, one: Arrival | None, schema: str | None = None) -> Any:
        assert one is not None
        declared = None if schema is None else StructType.fromDDL(schema)
        return source.read(one, spark=self.spark, schema=declared, ctx=self.ctx())

    def ids(self, source: Jdbc, one: Arrival | None) -> list[int]:
        return sorted(row["id"] for row in self.frame(source, one).collect())


@pytest.fixture
def reader(spark, postgres, monkeypatch) -> Reader:
    return Reader(spark, postgres.database(), monkeypatch)


def plan_of(frame) -> str:
    """Every plan of a frame, as both engines print it."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        frame.explain("extended")
    return told.getvalue()


def test_a_cursor_takes_each_range_once_as_it_was_recorded_and_in_parts(reader):
    reader.sql(USERS)
    source = Jdbc("db", table="users", cursor="changed", key="id", partitions=3, columns=["id", "name"])
    first = reader.take(source)
    assert first.window["key"] == {"column": "id", "low": "1", "high": "9"}
    assert reader.take(source) is None
    reader.sql("INSERT INTO users VALUES (10, 'new', '2026-02-01'); UPDATE users SET name='x', changed='2026-02-02' "
               "WHERE id = 1")  # fmt: skip
    frame = reader.frame(source, first)
    # The row that changed after the recording comes with the next arrival, not with this one.
    assert sorted(row["id"] for row in frame.collect()) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert "changed" not in frame.columns
    row = frame.where("id = 2").first()
    assert (row["_lw_raw"], row["_lw_file"], row["_lw_file_version"]) == (None, "users", "2026-01-01 09:00:00+00")
    plan = plan_of(frame)
    assert reader.database.password not in plan
    assert "numPartitions=3" in plan
    # Each part is a range of the key between its real bounds, and the database is asked for nothing else.
    parts: dict[int, list[int]] = {}
    for one in frame.select("id", F.spark_partition_id().alias("part")).orderBy("id").collect():
        parts.setdefault(one["part"], []).append(one["id"])
    assert sorted(parts.values()) == [[2, 3], [4, 5], [6, 7, 8, 9]]
    assert "EqualTo(id,2)" in plan_of(frame.where("id = 2")).partition("PushedFilters")[2]
    assert "changed" in plan.partition("JDBCRelation(")[2].partition("numPartitions")[0]
    assert reader.ids(source, reader.take(source)) == [1, 10]
    second = reader.last
    for endless in ("infinity", "-infinity"):
        reader.sql(f"INSERT INTO users VALUES (11, 'far', '{endless}')")
        for take_it in (
            lambda: reader.take(source),
            lambda: Jdbc("db", table="users").look_by(
                CursorCut("changed", every=timedelta(hours=1)), replace(reader.ctx(), run_time=TIME, last_window=None)
            ),
        ):
            with pytest.raises(InputError, match=rf"no finite changed \({endless}\)"):
                take_it()
        reader.sql("DELETE FROM users WHERE id = 11")
    assert reader.last == second
    assert reader.take(source) is None
    reader.sql("ALTER TABLE users ALTER changed DROP NOT NULL; INSERT INTO users VALUES (11, 'never', NULL)")
    with pytest.raises(InputError, match="NULL"):
        reader.take(source)
    reader.sql("DELETE FROM users WHERE id = 11; CREATE DOMAIN odd AS float4")
    for kind in ("float4", "float8", "numeric", "odd"):
        numbers = Jdbc("db", query=f"SELECT id, id::{kind} AS n FROM users", cursor="n")
        reader.last = None
        reader.take(numbers)
        with pytest.raises(InputError, match=r"no finite n \(NaN\)"):
            reader.take(replace(numbers, query=f"{numbers.query} UNION ALL SELECT 12, 'NaN'::{kind}"))
    # An earlier release took it: nothing would ever come again, without a word.
    reader.last = replace(first, window={**first.window, "upto": "infinity"})
    with pytest.raises(InputError, match="was taken up to infinity") as stuck:
        reader.take(source)
    assert "under a new name" in stuck.value.hint


def test_a_query_with_percent_signs_is_read_by_its_cursor_again_and_again(reader):
    reader.sql(USERS)
    query = "SELECT id, changed, id % 7 AS \"%\" FROM users WHERE name LIKE 'u%'"
    for source in (Jdbc("db", query=query, cursor="changed"), Jdbc("db", query=query, cursor="%")):
        first = reader.take(source)
        assert first is not None
        assert reader.take(source) is None
        reader.last = None
    cut = CursorCut("changed", every=timedelta(hours=1))
    ctx = replace(reader.ctx(), run_time=TIME)
    assert len(Jdbc("db", query=query).look_by(cut, ctx)) == 9


def test_a_snapshot_is_taken_only_where_a_row_changed(reader):
    reader.sql(USERS)
    source = Jdbc("db", table="users", key="changed", partitions=2)
    first = reader.take(source)
    assert reader.ids(source, first) == list(range(1, 10))
    assert not source.repeatable
    assert reader.take(source) is None
    reader.sql("UPDATE users SET name = name")
    assert reader.take(source) is None
    reader.sql("UPDATE users SET name = 'other' WHERE id = 4")
    second = reader.take(source)
    assert reader.ids(source, second) == list(range(1, 10))
    # The rows of a snapshot have a version, by which a correction finds them, and which no other snapshot has.
    versions = {reader.frame(source, one).first()["_lw_file_version"] for one in (first, second)}
    assert (len(versions), None in versions) == (2, False)
    # An option for Spark's driver alone, which PostgreSQL's own client would refuse.
    reader.options = {"spark.options": "-c statement_timeout=54321"}
    query = Jdbc("db", query="SELECT id, current_setting('statement_timeout') AS waits FROM users WHERE id < 3;")
    rows = reader.frame(query, reader.take(query)).select("id", "waits").collect()
    assert sorted(map(tuple, rows)) == [(1, "54321ms"), (2, "54321ms")]


def test_a_date_as_cursor_is_warned_of_because_it_is_equal_for_a_whole_day(reader):
    reader.sql(USERS)
    source = Jdbc("db", query="SELECT id, changed::date AS day FROM users", cursor="day")
    dataset, shop = MagicMock(source=source, load=None), MagicMock()
    shop.store.arrivals.last.return_value = reader.take(source)
    assert "a row of 2026-01-01 that is written after this was read" in take.load_warning(shop, dataset)
    dataset.load = MagicMock(overlap=timedelta(days=1), warning=lambda event_time: None)
    assert take.load_warning(shop, dataset) is None
    reader.last = None
    shop.store.arrivals.last.return_value = reader.take(replace(source, query="SELECT * FROM users", cursor="changed"))
    assert take.load_warning(shop, MagicMock(source=source, load=None)) is None


def test_what_arrives_as_what(reader):
    reader.sql("CREATE TYPE mood AS ENUM ('good')")
    reader.sql(
        """CREATE TABLE users (id int, n numeric(10,2), at timestamptz, local timestamp, j jsonb, tags text[],
           u uuid, raw bytea, m mood, day date, spent interval)"""
    )
    reader.sql(
        """INSERT INTO users VALUES (1, 1.5, '2026-01-05 23:59:59.999+01', '2026-01-05 01:00', '{"a": 1}',
           '{x,NULL}', '00000000-0000-0000-0000-000000000001', '\\x00ff', 'good', '2026-01-05', '1 day')"""
    )
    everything = Jdbc("db", table="users")
    with pytest.raises(InputError, match=r"'spent' is interval"):
        reader.take(everything)
    source = Jdbc("db", query="SELECT id, n, at, local, j, tags, u, raw, m, day FROM users")
    one = reader.take(source)
    frame = reader.frame(source, one).drop("_lw_raw", "_lw_file", "_lw_file_version", "_lw_hash")
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "int", "decimal(10,2)", "timestamp", "timestamp_ntz", "string", "array<string>", "string", "binary", "string",
        "date",
    ]  # fmt: skip
    row = frame.selectExpr("n", "cast(at AS string)", "cast(local AS string)", "j", "tags", "raw", "m").first()
    assert tuple(row) == (
        Decimal("1.50"), "2026-01-05 22:59:59.999", "2026-01-05 01:00:00", '{"a": 1}', ["x", None],
        bytearray(b"\x00\xff"), "good",
    )  # fmt: skip
    assert reader.frame(source, one, "id BIGINT").first()["id"] == 1
    with pytest.raises(SchemaChangeError, match="no column 'idd'") as lost:
        reader.frame(source, one, "idd INT")
    assert lost.value.hint == "Did you mean 'id'? Correct the data or the schema."


@pytest.mark.shows("02.transformation-replicator", 5)
def test_what_goes_wrong_is_told_without_the_password(reader, monkeypatch):
    reader.sql(USERS)
    reader.sql("CREATE ROLE guest_jdbc LOGIN" if not _has_role(reader, "guest_jdbc") else "SELECT 1")
    reader.sql(f"ALTER ROLE guest_jdbc PASSWORD '{reader.database.password}'; GRANT SELECT (id) ON users TO guest_jdbc")

    def told(source: Jdbc, **other: Any) -> LakewrightError:
        with pytest.raises(LakewrightError) as caught:
            source.look(reader.ctx(**other))
        assert reader.database.password not in str(caught.value) + str(caught.value.__cause__)
        return caught.value

    users = Jdbc("db", table="users")
    assert "Did you mean 'users'" in str(told(Jdbc("db", table="user")))
    assert isinstance(told(Jdbc("db", table="users", cursor="chnged")), MissingColumnsError)
    assert "permission denied: the connection's user may not read name, changed" in str(told(users, user="guest_jdbc"))
    assert Jdbc("db", table="users", columns=["id"]).look(reader.ctx(user="guest_jdbc")) is not None
    down = told(users, port=1)
    assert "does not answer" in str(down)
    assert is_transient(down)
    one = reader.take(users)
    monkeypatch.setenv("JDBC_TEST_PASSWORD", "wrong-secret")
    wrong = told(users)
    assert "refuses the user or the password" in str(wrong)
    assert not is_transient(wrong)
    with pytest.raises(LakewrightError) as caught:
        reader.frame(users, one)
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        Jdbc("db")


def test_an_address_of_ipv6_is_written_as_java_reads_it():
    connection = Connection("db", "postgresql://blog@[::1]:5433/blog")
    assert jdbc_options(connection)["url"].startswith("jdbc:postgresql://[::1]:5433/blog?")
    assert connection_arguments(connection).values["host"] == "::1"


def test_what_begins_with_spark_goes_to_its_driver_alone_which_looks_whether_the_server_is_there(monkeypatch):
    monkeypatch.setenv("JDBC_TEST_PASSWORD", "hush")
    hidden = Secret("secret://env/JDBC_TEST_PASSWORD")
    options = {"spark.socketTimeout": "600", "spark.sslpassword": hidden, "sslmode": "require", "sslkey": hidden}
    connection = Connection(
        "db", "postgresql://blog@db/blog?target_session_attrs=any&spark.loginTimeout=9", None, options
    )
    driver = jdbc_options(connection)
    assert (driver["tcpKeepAlive"], driver["socketTimeout"], driver["loginTimeout"]) == ("true", "600", "9")
    assert (driver["sslpassword"], driver["sslmode"]) == ("hush", "require")
    assert driver["url"] == "jdbc:postgresql://db:5432/blog?target_session_attrs=any&ApplicationName=lakewright"
    assert not [name for name in driver if name.startswith("spark.")]
    ours = connection_arguments(connection)
    assert not [name for name in ours.values if name.startswith("spark.") or name in ("socketTimeout", "tcpKeepAlive")]
    assert (ours.values["sslmode"], ours.values["keepalives_idle"], ours.hidden) == ("require", "30", ("sslkey",))
    ours.mask()
    off = Connection("db", connection.url, None, {"spark.tcpKeepAlive": "false"})
    assert jdbc_options(off)["tcpKeepAlive"] == "false"


def test_a_database_that_vanished_is_noticed_within_a_minute_unless_the_connection_says_otherwise():
    def told(url: str, **options: str) -> list[str | None]:
        values = connection_arguments(Connection("db", url, None, options)).values
        names = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
        return [values.get(name) for name in names]

    url = "postgresql://blog@db/blog"
    assert told(url) == [None, "30", "10", "3", None]
    assert told(f"{url}?keepalives_count=9", tcp_user_timeout="300000") == [None, "30", "10", "9", "300000"]
    assert told(url, keepalives="0", keepalives_interval="5") == ["0", "30", "5", "3", None]


def _has_role(reader: Reader, name: str) -> bool:
    with reader.database.connect() as session:
        return session.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is not None


def test_a_server_that_stops_while_rows_are_read_is_worth_another_try(reader):
    reader.sql(USERS)
    # The first row that is read ends every session of Spark's reader, as a server does when it is stopped.
    ending = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    source = Jdbc("db", query=f"SELECT id, ({ending} AND id > 0) AS ended FROM users")
    window = {"of": "query", "rows": 9, "fingerprint": "0", "key": None}
    with pytest.raises(Exception, match="terminating connection") as caught:
        reader.frame(source, Arrival("users", 1, window, TIME)).collect()
    assert is_transient(caught.value)
    explained = explain_read_error(caught.value)
    assert explained is not None
    assert "the database stopped the work" in str(explained)


@pytest.mark.parametrize(
    "said",
    [
        "connection failed: FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "blog"',
        "failed to resolve host 'db.example': [Errno -3] Temporary failure in name resolution",
        "connection to server at 10.0.0.1 failed: Network is unreachable",
        "SSL connection has been closed unexpectedly",
        "This connection has been closed.",
        "ERROR: canceling statement due to conflict with recovery",
        "ERROR: deadlock detected",
        "The connection attempt failed.",
    ],
)
def test_a_failure_of_the_database_that_may_pass_is_worth_another_try(monkeypatch, said):
    explained = explain_text(None, said, what="users", effect="Nothing was read.", reading=True)
    assert isinstance(explained, TargetError)
    assert is_transient(explained)

    def failing(*_, **__):
        raise RuntimeError(f"Job aborted: org.postgresql.util.PSQLException: {said}")

    def failing_explained(*_, **__):
        raise TargetError("users: the write failed") from RuntimeError(f"org.postgresql.util.PSQLException: {said}")

    monkeypatch.setattr(take, "properties_of", lambda *_: {})
    for write in (failing, failing_explained):
        monkeypatch.setattr(take, "fit_to_table", write)
        with pytest.raises(TargetError) as caught:
            take._write(MagicMock(), Arrival("users", 1, {}, TIME), MagicMock())
        assert is_transient(caught.value)


def test_a_reset_connection_is_found_below_the_general_words_of_the_driver():
    told = (
        "org.postgresql.util.PSQLException: SSL error: no data\nCaused by: java.net.SocketException: Connection reset"
    )
    assert is_transient(explain_read_error(RuntimeError(told)))
    assert not is_transient(
        explain_read_error(RuntimeError("org.postgresql.util.PSQLException: ERROR: division by zero"))
    )


def test_a_window_that_is_in_bronze_is_never_read_again(project, postgres, monkeypatch):
    database = postgres.database()
    monkeypatch.setenv("JDBC_TEST_PASSWORD", database.password)
    with database.connect() as session:
        session.execute(USERS)
    shop = project(
        {
            "lakewright.toml": f"""
                name = "test"
                [connections.db]
                url = "postgresql://{database.user}@{database.host}:{database.port}/{database.name}"
                password = "secret://env/JDBC_TEST_PASSWORD"
            """,
            "pipelines/users.py": """
                from lakewright import Jdbc, Pipeline
                users = Pipeline("users", start="2026-01-01")
                users.source("people", Jdbc("db", table="users", columns=["id", "name"]))

                @users.dataset()
                def names(people):
                    return people.select("name")
            """,
        }
    )
    assert made(ok(shop.run(at="2026-01-03"))) == {("people", "arrival-1"), ("names", "arrival-1")}
    with database.connect() as session:
        session.execute("UPDATE users SET name = 'changed since'")
    again = ok(shop.backfill("2026-01-01", sources=True, at="2026-01-03"))
    assert made(again) == {("names", "arrival-1")}
    assert any("repeats begin at bronze" in note.message for note in again.notes)
    names, wish = shop.backfill_wish("2026-01-01", sources=True, at="2026-01-03")
    assert "repeats begin at bronze" in shop.plan_backfill(names, wish).warnings[0]
    assert {row["name"] for row in rows_of(shop, "people")} == {f"u{i}" for i in range(1, 10)}
    assert ("people", "arrival-2") in made(ok(shop.run(at="2026-01-03")))
