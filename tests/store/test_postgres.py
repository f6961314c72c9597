"""What only a server does: its own clock, lost connections, refusals, passwords. The rest is in the other files."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from lakewright.errors import ConfigurationError, LakewrightError, LeaseHeldError, StoreError, TargetError
from lakewright.runtime.doctor import Check, checks
from lakewright.runtime.settings import load_settings
from lakewright.store import Owner, Store, dialect, open_store
from lakewright.store.opening import HEAD
from lakewright.store.postgres import explain, make_engine
from lakewright.testing.postgres import Postgres

SECRET = "open-sesame-4711"
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2101, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def everything_said(error: BaseException | None) -> str:
    """The messages and reprs of an error and of all that led to it, and what a traceback would print."""
    said = "".join(traceback.format_exception(error))
    while error is not None:
        said += f"{error} {error!r} {error.args} "
        error = error.__cause__ or error.__context__
    return said


def refused(url: str, kind: type[LakewrightError]) -> LakewrightError:
    with pytest.raises(kind) as caught:
        open_store(url)
    assert SECRET not in everything_said(caught.value)
    return caught.value


def end_connections(database: Postgres) -> None:
    """As a restart of the server does."""
    with replace(database, name="postgres").connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [database.name]
        )


def owner(name: str) -> Owner:
    return Owner(name, f"host-of-{name}", 1, "1@1")


def test_leases_go_by_the_clock_of_the_server_whatever_the_machines_say(store_database: Postgres) -> None:
    with open_store(store_database.url) as store, store_database.connect() as raw:
        store.leases.register(owner("slow"), MINUTE, LONG_AGO)
        store.leases.register(owner("fast"), MINUTE, FAR_AHEAD)
        old = store.leases.acquire("visits", "a", owner_id="slow", run_id="r1", now=LONG_AGO)
        with pytest.raises(LeaseHeldError, match="host-of-slow"):
            store.leases.acquire("visits", "a", owner_id="fast", run_id="r2", now=FAR_AHEAD)
        assert store.leases.check("visits", "a", old.number, FAR_AHEAD)
        assert store.leases.owner_lives("slow", FAR_AHEAD)
        assert store.leases.beat("slow", MINUTE, LONG_AGO)
        (held,) = store.leases.held(FAR_AHEAD)
        assert (held.alive, held.granted_at) == (True, LONG_AGO)
        raw.execute("UPDATE owners SET expires_at = expires_at - 61000000 WHERE owner_id = 'slow'")  # a minute passes
        assert not store.leases.check("visits", "a", old.number, LONG_AGO)
        assert not store.leases.owner_lives("slow", LONG_AGO)
        new = store.leases.acquire("visits", "a", owner_id="fast", run_id="r2", now=FAR_AHEAD)
        assert new.taken_from == (("a", old.number, "r1"),)
        assert not store.leases.beat("slow", MINUTE, LONG_AGO)


def test_what_cannot_be_opened_says_why_and_keeps_the_password(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "_PAUSES", ())
    nobody = refused(replace(postgres, user="nobody_at_all", password=SECRET).url, ConfigurationError)
    assert "password" in str(nobody.hint)
    wrong = refused(replace(postgres, password=SECRET).url, ConfigurationError)
    assert "PGPASSWORD" in str(wrong.hint)
    unknown = refused(replace(postgres, name="no_such_database").url, ConfigurationError)
    assert "createdb no_such_database" in str(unknown.hint)
    assert postgres.password not in everything_said(unknown)
    away = refused(replace(postgres, port=1, password=SECRET).url, TargetError)
    assert "cannot be reached" in away.message
    assert "127.0.0.1:1/" in away.message


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@{SECRET}@host/db",
        f"postgresql://me@host/db?password={SECRET}",
        f"postgresql://me:{SECRET}@host:port/db",
        f"postgresql+asyncpg://me:{SECRET}@host/db",
    ],
)
def test_an_address_that_cannot_work_is_refused_without_its_password(url: str) -> None:
    refused(url, ConfigurationError)


def test_without_the_driver_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = refused(f"postgresql://me:{SECRET}@host/db", ConfigurationError)
    assert error.hint == 'pip install "lakewright[postgres]"'


def test_a_server_that_was_restarted_between_two_calls_is_not_noticed(store_database: Postgres) -> None:
    with open_store(store_database.url) as store:
        store.leases.raise_numbers("visits", 7)
        end_connections(store_database)
        assert store.runs.latest() == []
        end_connections(store_database)
        assert store.leases.draw("visits") == 8


def test_a_connection_lost_in_a_transaction_leaves_nothing_and_says_so(store_database: Postgres) -> None:
    def lose(store: Store) -> None:
        with store.transaction() as conn:
            store.leases.raise_numbers("visits", 7, conn=conn)
            end_connections(store_database)
            store.leases.raise_numbers("users", 7, conn=conn)

    with open_store(store_database.url) as store:
        with pytest.raises(TargetError, match="Nothing of this transaction was written") as caught:
            lose(store)
        assert store_database.password not in everything_said(caught.value)
        assert store.leases.draw("visits") == 1


def cut_off(monkeypatch: pytest.MonkeyPatch, then: Callable[[psycopg.Connection], None]) -> None:
    """From now on the connection is lost at the next commit, after what ``then`` does."""
    commit = psycopg.Connection.commit

    def lost(connection: psycopg.Connection) -> None:
        monkeypatch.setattr(psycopg.Connection, "commit", commit)
        then(connection)
        connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(psycopg.Connection, "commit", lost)


def test_a_commit_whose_answer_was_lost_is_found_out_and_not_sent_again(
    store_database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(store_database.url) as store:
        commit = psycopg.Connection.commit
        assert store.leases.draw("visits") == 1
        cut_off(monkeypatch, commit)
        assert store.leases.draw("visits") == 2  # it was committed: no error, no second number
        cut_off(monkeypatch, lambda connection: None)
        with pytest.raises(TargetError, match="Nothing of this transaction was written"):
            store.leases.draw("visits")
        assert store.leases.draw("visits") == 3


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("08006", 1), ("40001", 1), ("40P01", 1), ("53100", 1), ("53300", 1), ("55P03", 1), ("57014", 1), ("57P01", 1),
     ("28P01", 2), ("42P01", 2)],
)  # fmt: skip
def test_what_may_pass_by_itself_ends_with_1_and_what_is_wrong_with_2(code: str, exit_code: int) -> None:
    cause = type("Refused", (Exception,), {"sqlstate": code})("no")
    error = DBAPIError("SELECT 1", {}, cause)
    assert explain(error, make_url("postgresql://me@host/db"), "host/db").exit_code == exit_code


def schema(database: Postgres) -> set[tuple[object, ...]]:
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, collation_name, column_default "
        "FROM information_schema.columns WHERE table_schema = 'public'"
    )
    with database.connect() as connection:
        found: set[tuple[object, ...]] = {*connection.execute(columns.encode())}
        return found | {*connection.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")}


def test_migrations_and_tables_give_the_same_schema(empty_database: Postgres, store_database: Postgres) -> None:
    with empty_database.connect() as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("ALTER TABLE alembic_version ADD CONSTRAINT alembic_version_pkey PRIMARY KEY (version_num)")
    open_store(empty_database.url).close()
    assert schema(empty_database) == schema(store_database)
    with empty_database.connect() as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="Upgrade Lakewright") as caught:
        open_store(empty_database.url)
    assert "9999" in caught.value.message
    assert empty_database.password not in everything_said(caught.value)


def test_a_database_of_something_else_is_refused_and_left_alone(empty_database: Postgres) -> None:
    with empty_database.connect() as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(StoreError, match="recipes"):
        open_store(empty_database.url)
    assert {row[0] for row in schema(empty_database)} == {"recipes"}


def test_text_is_ordered_by_its_characters_and_may_hold_anything(store_database: Postgres) -> None:
    names = ["Z", "a", "B", "_", "-", "2026-01-04", "2026-01-04T05", "é"]
    with open_store(store_database.url) as store:
        for name in names:
            store.markers.set("visits", name, run_id="nul \0 in it", now=LONG_AGO)
        assert [marker.slice_id for marker in store.markers.list()] == sorted(names)


def test_doctor_names_the_kind_of_the_store_and_keeps_its_password(
    store_database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(url: str) -> Check:
        monkeypatch.setenv("LAKEWRIGHT_STORE", url)
        return next(check for check in checks(load_settings(tmp_path)) if check.name == "Store")

    (tmp_path / "lakewright.toml").touch()
    well = found(store_database.url)
    assert (well.state, well.detail.partition(",")[0]) == ("ok", "PostgreSQL")
    assert found(f"sqlite:///{tmp_path}/store.db").detail.startswith("SQLite, ")
    bad = [f"postgresql://me:{SECRET}/x@127.0.0.1/db", f"postgresql://127.0.0.1:1/db?password={SECRET}"]
    assert not any(SECRET in str(found(url)) for url in bad)
    assert store_database.password not in str(well)


def test_a_store_whose_machine_vanished_is_noticed_within_a_minute() -> None:
    def told(options: str) -> list[object]:
        engine = make_engine(make_url(f"postgresql://me@host/db{options}"), busy_timeout=timedelta(seconds=1))
        seen: dict[str, object] = {}

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: object, _record: object, _args: object, params: dict[str, object]) -> None:
            seen.update(params)
            raise psycopg.OperationalError("nobody is there")

        with pytest.raises(OperationalError):
            engine.connect()
        return [seen.get(f"keepalives_{name}") for name in ("idle", "interval", "count")]

    assert told("") == [30, 10, 3]
    assert told("?keepalives_count=9") == [30, 10, "9"]
