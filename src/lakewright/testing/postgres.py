"""Postgres: what the fixture ``postgres`` gives to a test."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import psycopg

__all__ = ["Postgres"]


@dataclass(frozen=True, slots=True)
class Postgres:
    """A database of the test run's PostgreSQL, with the rights to make others."""

    host: str
    port: int
    user: str
    password: str
    name: str

    @classmethod
    def at(cls, url: str, password: str) -> Postgres:
        """The database that a URL names."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        assert parts.username is not None
        return cls(parts.hostname, parts.port, parts.username, password, parts.path.lstrip("/"))

    @property
    def url(self) -> str:
        """For clients in Python, the password in it: it is worth nothing after the run."""
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{self.name}"

    @property
    def jdbc_url(self) -> str:
        """For Spark; user and password are options of their own there."""
        return f"jdbc:postgresql://{self.host}:{self.port}/{self.name}"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that commits every statement by itself."""
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def database(self) -> Postgres:
        """A fresh, empty database with a name of its own."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return replace(self, name=name)
