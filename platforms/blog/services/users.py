"""The blog's users table in PostgreSQL: one row per user, as the user is now, with the time of the last change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

__all__ = ["apply_changes", "fresh_table", "rows"]

TABLE = """
DROP TABLE IF EXISTS users;
CREATE TABLE users (
    user_id text PRIMARY KEY,
    login text NOT NULL,
    country text NOT NULL,
    device_id text NOT NULL,
    registered_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX ON users (updated_at);
"""
COLUMNS = "user_id, login, country, device_id, registered_at, updated_at"
CHANGE = f"""
INSERT INTO users ({COLUMNS})
SELECT {COLUMNS} FROM jsonb_populate_recordset(NULL::users, %s::jsonb)
ON CONFLICT (user_id) DO UPDATE SET country = excluded.country, updated_at = excluded.updated_at
"""


def fresh_table(url: str) -> None:
    """Make an empty table in the place of the one that is there."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)


def apply_changes(url: str, file: Path) -> int:
    """Apply the changes of a users file in one transaction: new users come, those who moved change.

    Of a user the table knows the last version alone; who reads it by ``updated_at`` after each day sees all of them.
    """
    lines: Any = ",".join(file.read_text(encoding="utf-8").splitlines())
    with psycopg.connect(url) as connection:
        return connection.execute(CHANGE, (f"[{lines}]",)).rowcount


def rows(url: str) -> list[tuple[str, ...]]:
    """The users as they are now, in the order of their ids."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT user_id, login, country FROM users ORDER BY user_id").fetchall()
