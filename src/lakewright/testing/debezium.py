"""Debezium: what the fixture ``debezium`` gives to a test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakewright.model.connections import Connection

__all__ = ["Debezium"]


@dataclass(frozen=True, slots=True)
class Debezium:
    """The Kafka Connect worker of the test run, with Debezium's connector for PostgreSQL."""

    url: str
    """Its REST interface."""
    password_folder: Path
    """Where its connectors find the passwords of their databases."""

    def connection(self, name: str = "cdc") -> Connection:
        """The worker as a project's connection: what ``service = "debezium"`` in the settings becomes."""
        from lakewright.model.connections import Connection

        address = self.url.partition("://")[2]
        return Connection(name, f"debezium://{address}", options={"password_folder": str(self.password_folder)})
