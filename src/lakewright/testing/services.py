"""Fixtures ``postgres``, ``kafka`` and ``debezium``: real services, started when the first test asks for one.

Guarantee:
    They are started once per test run: with pytest-xdist all workers share them. They end with the run and leave
    nothing behind, neither processes nor data; a guard of their own sees to that where the run is killed.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakewright.errors import LakewrightError

if TYPE_CHECKING:
    from lakewright.runtime.services import ServiceStatus
    from lakewright.testing.debezium import Debezium
    from lakewright.testing.kafka import Kafka
    from lakewright.testing.postgres import Postgres

__all__ = ["debezium", "kafka", "postgres", "started"]

_INPUT = "lakewright_services"
_RUN = pytest.StashKey[dict[str, Any]]()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Postgres:
    """A PostgreSQL for this test run; ``postgres.database()`` makes a fresh database for one test."""
    from lakewright.testing.postgres import Postgres

    address = started(request.config, "postgres").address
    assert address is not None
    assert address.password_file is not None
    return Postgres.at(address.shown, address.password_file.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Kafka:
    """A Kafka for this test run; ``kafka.topic(partitions=2)`` makes a fresh topic for one test."""
    from lakewright.testing.kafka import Kafka

    address = started(request.config, "kafka").address
    assert address is not None
    return Kafka(address.url)


@pytest.fixture(scope="session")
def debezium(request: pytest.FixtureRequest) -> Debezium:
    """A Kafka Connect worker with Debezium for this test run, beside its Kafka, which is started with it."""
    from lakewright.testing.debezium import Debezium

    found = started(request.config, "debezium")
    assert found.address is not None
    return Debezium(found.address.url, found.data / "passwords")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With pytest-xdist: every worker is told the folder of the run, and the process that outlives them all."""
    node.workerinput[_INPUT] = _run_of(node.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The end of the run; not that of a worker, whose colleagues may still be at work."""
    run = config.stash.get(_RUN, None)
    if run is None or not Path(run["folder"]).exists():
        return
    from lakewright.runtime.services.guard import throw_away

    throw_away(Path(run["folder"]))


def started(config: pytest.Config, name: str) -> ServiceStatus:
    """The service of this run, started unless it runs."""
    from lakewright.runtime.services import up
    from lakewright.runtime.services.processes import Process

    run: Mapping[str, Any] = getattr(config, "workerinput", {}).get(_INPUT) or _run_of(config)
    try:
        found = up(Path(run["folder"]), [name], only_while=Process(run["pid"], run["started"]))
        return next(one for one in found if one.name == name)  # what it needs is there too
    except LakewrightError as error:
        pytest.fail(str(error), pytrace=False)


def _run_of(config: pytest.Config) -> dict[str, Any]:
    """The folder for the services of this run, which the first of them makes, and the process that they live for."""
    if _RUN not in config.stash:
        from lakewright.runtime.services.processes import this_process

        holder = this_process()
        folder = Path(tempfile.gettempdir(), f"lakewright-tests-{uuid.uuid4().hex}")
        config.stash[_RUN] = {"folder": str(folder), "pid": holder.pid, "started": holder.started}
    return config.stash[_RUN]
