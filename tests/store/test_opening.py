from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from lakewright.errors import StoreError
from lakewright.store import open_store
from lakewright.store.opening import HEAD, MIGRATIONS


def run(path: Path, sql: str) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(sql).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


def schema(path: Path) -> dict[str, str]:
    found = run(path, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    # Tabs and line breaks are the writer's own habit, not part of the schema.
    return {name: re.sub(r"\s+", " ", sql).replace(" ,", ",") for name, sql in found if "alembic" not in name}


def before_the_first_revision(path: Path) -> None:
    run(path, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")


def test_the_head_that_we_name_is_the_head_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_migrations_and_tables_give_the_same_schema(tmp_path: Path) -> None:
    created, migrated = tmp_path / "created.db", tmp_path / "migrated.db"
    open_store(f"sqlite:///{created}").close()
    before_the_first_revision(migrated)
    open_store(f"sqlite:///{migrated}").close()
    assert schema(created) == schema(migrated)
    assert len(schema(created)) > 20


def test_an_older_store_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    before_the_first_revision(path)
    with open_store(f"sqlite:///{path}") as store:
        assert store.runs.latest() == []
    assert run(path, "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    before_the_first_revision(path)
    run(path, "CREATE TABLE touched (already TEXT)")
    before = schema(path)
    with pytest.raises(StoreError):
        open_store(f"sqlite:///{path}")
    assert schema(path) == before


def test_a_store_from_a_newer_release_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(f"sqlite:///{path}").close()
    run(path, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="Upgrade Lakewright") as caught:
        open_store(f"sqlite:///{path}")
    assert "9999" in caught.value.message
    assert HEAD in caught.value.message


def test_a_store_from_which_no_way_leads_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(f"sqlite:///{path}").close()
    run(path, "UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(StoreError, match="rebuild"):
        open_store(f"sqlite:///{path}")
