"""A PostgreSQL whose disk is full: told by name with the cure, by the store and by whoever writes a table."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from lakewright.connectors.postgres_errors import explain_database_error
from lakewright.errors import StoreError, TargetError
from lakewright.model.runs import Run
from lakewright.runtime.services import guard, up
from lakewright.runtime.services.processes import this_process
from lakewright.store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOM = 17_000_000  # more than a file of the write-ahead log has


@pytest.fixture
def url() -> Iterator[str]:
    """A server that can write no file beyond a size, as a full disk would have it."""
    home = Path(tempfile.mkdtemp(prefix="lakewright-full-"))
    home.chmod(0o755)
    services = home / "services"
    services.mkdir()
    guard.ensure(services, this_process())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        [server] = up(services, ["postgres"], only_while=this_process())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert server.address is not None
    yield server.address.url
    guard.throw_away(services)
    shutil.rmtree(home, ignore_errors=True)


def test_a_full_disk_is_told_with_the_cure_and_what_was_there_stays(url: str) -> None:
    much = os.urandom(ROOM).hex()
    with open_store(url) as store:
        run = Run("r1", "p", NOW)
        store.runs.start(run, owner_id="me", options={}, now=NOW)
        with pytest.raises(StoreError, match="The disk under the store") as full:
            store.runs.finish("r1", "ok", now=NOW, summary={"much": much})
        assert "Free some space" in str(full.value.hint)
        assert much[:50] not in str(full.value)
        assert [found.state for found in store.runs.latest()] == ["running"]
        store.runs.finish("r1", "ok", now=NOW)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("CREATE TABLE t (x text)")
        with pytest.raises(psycopg.Error) as refused:
            session.execute("INSERT INTO t VALUES (%s)", [much])
    told = explain_database_error(refused.value, what="daily, 2026-01-05 (db: t)", effect="Nothing was written.")
    assert isinstance(told, TargetError)
    assert "the disk of the database is full" in told.message
    assert "Free some space on the disk of the database" in str(told.hint)
