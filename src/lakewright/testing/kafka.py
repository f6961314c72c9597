"""Kafka: what the fixture ``kafka`` gives to a test."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Kafka"]

_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Kafka:
    """The broker of the test run."""

    bootstrap: str
    """The value of ``bootstrap.servers`` (``kafka.bootstrap.servers`` in Spark)."""

    def topic(self, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """A fresh, empty topic with a name of its own; ``settings`` such as ``{"cleanup.policy": "compact"}``."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        name = f"test-{uuid.uuid4().hex[:12]}"
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
        client.create_topics([wanted])[name].result(_TIMEOUT_SECONDS)
        return name
