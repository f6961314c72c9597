"""One suite for both databases: ``store`` and ``empty_url`` come once on SQLite and once on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakewright.store import Store, leases, open_store, tables
from lakewright.testing.postgres import Postgres


@contextmanager
def database(server: Postgres) -> Iterator[Postgres]:
    """A database that goes again, whoever is still connected to it."""
    made = server.database()
    try:
        yield made
    finally:
        with server.connect() as connection:
            connection.execute(f'DROP DATABASE "{made.name}" WITH (FORCE)'.encode())


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[Postgres]:
    with database(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def used_database(postgres: Postgres) -> Iterator[Postgres]:
    with database(postgres) as made:
        open_store(made.url).close()
        yield made


@pytest.fixture
def store_database(used_database: Postgres) -> Postgres:
    """A database with an empty store: one for all tests, emptied, which is far quicker than making one for each."""
    with used_database.connect() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(f'DELETE FROM "{table.name}"'.encode())
        for name in ("steps_step_id", "receipts_receipt_id", "findings_finding_id"):
            connection.execute(f"ALTER SEQUENCE {name}_seq RESTART".encode())
    return used_database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store can be made."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    empty: Postgres = request.getfixturevalue("empty_database")
    return empty.url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of ``store``."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    made: Postgres = request.getfixturevalue("store_database")
    return made.url


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on either database, whose leases go by the time that a test tells.

    That PostgreSQL goes by its own clock is shown in ``test_postgres``, without this.
    """
    monkeypatch.setattr(leases, "lease_time", lambda conn, now: now)
    with open_store(store_url) as opened:
        yield opened
