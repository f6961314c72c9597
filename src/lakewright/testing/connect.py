"""The engine of a test run: Spark in the test process (``classic``), or behind a local Connect server (``connect``).

Guarantee:
    With ``pytest --engine connect`` (or ``LAKEWRIGHT_TEST_ENGINE=connect``) one server serves the whole run, all
    workers of pytest-xdist included. It ends with the run, however that ends. Commands that a test starts in a process
    of their own use it too, by ``LAKEWRIGHT_MASTER``. Tests marked ``classic_only(reason)`` are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connect_url", "engine_of"]

ENGINES = ("classic", "connect")
VARIABLE = "LAKEWRIGHT_TEST_ENGINE"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lakewright").addoption(
        "--engine",
        choices=ENGINES,
        default=None,
        help=f"Spark in the test process (classic, the default), or a local Connect server; {VARIABLE} says it too.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "classic_only(reason): cannot run over Spark Connect, and why")
    config.addinivalue_line("markers", "connect_only: about Spark Connect itself")
    if engine_of(config) not in ENGINES:
        raise pytest.UsageError(f"{VARIABLE} is '{engine_of(config)}'; it can be {' or '.join(ENGINES)}.")


def engine_of(config: pytest.Config) -> str:
    """Which engine the run was asked for."""
    return str(config.getoption("--engine") or os.environ.get(VARIABLE) or ENGINES[0])


@pytest.hookimpl(tryfirst=True)  # before any fixture: a test that is skipped starts no server
def pytest_runtest_setup(item: pytest.Item) -> None:
    engine = engine_of(item.config)
    marker = item.get_closest_marker("classic_only")
    if marker is not None and engine == "connect":
        reason = marker.args[0] if marker.args else marker.kwargs["reason"]
        pytest.skip(f"classic only: {reason}")
    if item.get_closest_marker("connect_only") is not None and engine != "connect":
        pytest.skip("needs --engine connect")


@pytest.fixture(scope="session")
def connect_url(request: pytest.FixtureRequest) -> str:
    """The address of a Spark Connect server with Delta, started for this test run: ``sc://127.0.0.1:PORT``."""
    from lakewright.testing.services import started

    address = started(request.config, "connect").address
    assert address is not None
    return address.url


@pytest.fixture(scope="session", autouse=True)
def _commands_follow_the_engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test starts in a process of its own, or opens without a session, goes to the same server."""
    if engine_of(request.config) != "connect":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEWRIGHT_MASTER", request.getfixturevalue("connect_url"))
        yield


def connected_session(url: str) -> SparkSession:
    """A session of the test run's server."""
    from pathlib import Path

    from lakewright.runtime.session import spark_session
    from lakewright.runtime.settings import Target

    return spark_session(Target.at(Path.cwd(), name="tests", master=url), "tests")
