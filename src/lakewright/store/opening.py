"""Bring a store to the schema that this release speaks: create it, upgrade it, or refuse a newer one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, insert, inspect, select

from lakewright.errors import StoreError
from lakewright.store.dialect import reading, shown_url, writing
from lakewright.store.tables import metadata

__all__ = ["HEAD", "MIGRATIONS", "bring_up_to_date"]

HEAD = "0006"
"""The newest revision under ``migrations/``. Revisions are numbered, so that text order is their order."""
MIGRATIONS = Path(__file__).parent / "migrations"

_version_table = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def bring_up_to_date(engine: Engine) -> None:
    """Create, upgrade or accept the store; whatever happens is one transaction."""
    with reading(engine) as conn:
        if _stored_version(conn) == HEAD:
            return
    with writing(engine) as conn:
        version = _stored_version(conn)  # again: another process may have been faster
        if version is None:
            _create(conn)
        elif version > HEAD:
            raise StoreError(
                f"The store {shown_url(engine.url)} has schema version {version}; this release knows up to {HEAD}.",
                hint="Upgrade Lakewright (`pip install --upgrade lakewright`). Nothing was changed.",
            )
        elif version < HEAD:
            _upgrade(conn, version)


def _stored_version(conn: Connection) -> str | None:
    """The revision of the store, "" before the first one; None where there is nothing yet."""
    tables = inspect(conn).get_table_names()
    if not tables:
        return None
    if _version_table.name not in tables:
        raise StoreError(
            f"The place {shown_url(conn.engine.url)} is a database of something else: it holds the tables "
            f"{', '.join(tables[:5])}, but no Lakewright store.",
            hint="Choose another place for the store.",
        )
    return conn.execute(select(_version_table.c.version_num)).scalar() or ""


def _create(conn: Connection) -> None:
    # Straight from the tables: running the migrations would cost an import of Alembic at every first run.
    metadata.create_all(conn, checkfirst=False)
    _version_table.create(conn, checkfirst=False)
    conn.execute(insert(_version_table).values(version_num=HEAD))


def _upgrade(conn: Connection, version: str) -> None:
    from alembic import command  # slow to import, and needed once per release at most
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = conn
    try:
        command.upgrade(config, HEAD)
    except CommandError as error:
        raise StoreError(
            f"The store {shown_url(conn.engine.url)} has schema version {version}, from which there is no way "
            f"to {HEAD} ({error}). Nothing was changed.",
            hint="Move it away and run `lakewright store rebuild`.",
        ) from error
