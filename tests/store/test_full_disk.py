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
from pyspark.sql import SparkSession

from lakewright.connectors.postgres_table import PostgresTable
from lakewright.errors import StoreError, TargetError
from lakewright.model.connections import Connection, Connections
from lakewright.model.identity import Identity
from lakewright.model.runs import Run
from lakewright.model.secrets import Secret
from lakewright.runtime.services import guard, up
from lakewright.runtime.services.contract import Address
from lakewright.runtime.services.processes import this_process
from lakewright.store import open_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOM = 17_000_000  # more than a file of the write-ahead log has


@pytest.fixture
def address() -> Iterator[Address]:
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
    yield server.address
    guard.throw_away(services)
    shutil.rmtree(home, ignore_errors=True)


def test_a_full_disk_is_told_with_the_cure_and_what_was_there_stays(address: Address, spark: SparkSession) -> None:
    much = os.urandom(ROOM).hex()
    with open_store(address.url) as store:
        run = Run("r1", "p", NOW)
        store.runs.start(run, owner_id="me", options={}, now=NOW)
        with pytest.raises(StoreError, match="The disk under the store") as full:
            store.runs.finish("r1", "ok", now=NOW, summary={"much": much})
        assert "Free some space" in str(full.value.hint)
        assert much[:50] not in str(full.value)
        assert [found.state for found in store.runs.latest()] == ["running"]
        store.runs.finish("r1", "ok", now=NOW)
    password = Secret(f"secret://file/{address.password_file}")
    connections = Connections({"db": Connection("db", address.shown.replace(":***", ""), password)})
    # Rows that are too short to be compressed.
    words = "concat_ws('', transform(sequence(1, 40), n -> md5(concat(id, '-', n))))"
    rows = spark.range(20_000).selectExpr(f"{words} AS words", "'2026-01-05' AS _lw_event")
    identity = Identity("daily", "2026-01-05", 1, "r1")
    table = PostgresTable("db", "daily").open(
        "daily", identity, connections=connections, spark=spark, still_mine=lambda: True
    )
    with pytest.raises(TargetError, match="the disk of the database is full") as told:
        table.replace(rows, where="_lw_event = '2026-01-05'", within=True)
    assert "Nothing was written" in told.value.message
    assert "Free some space on the disk of the database" in str(told.value.hint)
    with psycopg.connect(address.url, autocommit=True) as session:
        assert session.execute("SELECT count(*) FROM daily").fetchone() == (0,)
    table.replace(rows.limit(1), where="_lw_event = '2026-01-05'", within=True)
