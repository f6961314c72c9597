"""VACUUM in PostgreSQL: outside a transaction, with figures, and refusals in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lakewright.connectors.postgres_table import PostgresTable
from lakewright.connectors.postgres_vacuum import vacuum_postgres
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection, Connections
from lakewright.model.maintenance import MaintainsItself
from lakewright.model.secrets import Secret


def test_dead_rows_go_and_the_file_keeps_its_size(postgres, monkeypatch):
    monkeypatch.setenv("PG_TEST_PASSWORD", postgres.password)
    at = postgres.database()
    url = f"postgresql://{at.user}@{at.host}:{at.port}/{at.name}"
    connection = Connection("db", url, Secret("secret://env/PG_TEST_PASSWORD"))
    with at.connect() as session:
        session.execute("CREATE TABLE daily (n int) WITH (autovacuum_enabled = false)")
        session.execute("CREATE TABLE _lw_ledger (n int)")
        session.execute("CREATE TABLE _lw_ledger_log (n int)")
        session.execute("INSERT INTO daily SELECT generate_series(1, 1000)")
        session.execute("UPDATE daily SET n = n + 1")
        session.execute("SELECT pg_stat_force_next_flush()")
    looked = vacuum_postgres(connection, "daily", dry_run=True)
    assert looked.dead_rows_before == looked.dead_rows_after == 1000
    done = vacuum_postgres(connection, "public.daily")
    assert (done.dead_rows_before, done.dead_rows_after) == (1000, 0)
    assert done.bytes_after >= looked.bytes_before, "the file does not shrink: its room is used again"
    with at.connect() as session:
        session.execute("INSERT INTO daily SELECT generate_series(1, 1000)")
        told = session.execute("SELECT vacuum_count, analyze_count FROM pg_stat_user_tables WHERE relname = 'daily'")
        assert told.fetchone() == (1, 1)
    assert vacuum_postgres(connection, "daily").bytes_after <= done.bytes_after

    with pytest.raises(ConfigurationError, match="no table dayly") as refused:
        vacuum_postgres(connection, "dayly")
    assert "daily" in str(refused.value.hint)
    into = PostgresTable("db", "daily")
    assert isinstance(into, MaintainsItself)
    done, said = into.maintain(
        "daily", connections=Connections({"db": connection}), dry_run=False, now=datetime.now(UTC)
    )
    assert done
    assert "0 dead rows vacuumed" in said
