"""The pytest plug-in that comes with the package.

Fixtures: ``spark`` (one small session per test process), ``lake_folder`` (an empty place for tables), ``project``
(a function that writes files into a temporary project and opens it); ``postgres``, ``kafka`` and ``debezium`` of
`lakewright.testing.services` (real ones, started once per test run); ``connect_url`` and ``cluster`` (a Spark Connect
server, a standalone cluster). ``--engine connect`` lets ``spark`` and ``project`` work over Spark Connect.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewright.pipelines.project import Project

__all__ = ["lake_folder", "project", "spark"]

pytest_plugins = ["lakewright.testing.services", "lakewright.testing.connect", "lakewright.testing.cluster"]

ProjectMaker = Callable[..., "Project"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "shows(pattern, *lines): the acceptance lines of the catalogue that a test proves"
    )
    config.addinivalue_line("markers", "chaos: a long proof that only `make chaos` runs")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small session with Delta, in UTC, for all tests of this process; of a Connect server with that engine."""
    from lakewright.runtime.session import local_session, stop_session
    from lakewright.runtime.settings import Target
    from lakewright.testing.connect import connected_session, engine_of

    if engine_of(request.config) == "connect":
        session = connected_session(request.getfixturevalue("connect_url"))
        yield session
        stop_session(session)
        return
    folder = tmp_path_factory.mktemp("spark")
    # Room for many short tests: the defaults collect garbage every second.
    roomy = {"spark.driver.extraJavaOptions": "-Xmn512m -XX:MetaspaceSize=256m"}
    target = Target.at(folder, master="local[2]", driver_memory="2g", fast_start=True, spark=roomy)
    session = local_session(target, "tests")
    yield session
    stop_session(session)


@pytest.fixture
def lake_folder(tmp_path: Path) -> Path:
    """An empty place for tables."""
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture
def project(spark: SparkSession, tmp_path: Path) -> Iterator[ProjectMaker]:
    """Make a project of files and open it: ``project({"pipelines/visits.py": "..."}).run(at="2026-01-02")``."""
    from lakewright.pipelines.project import Project

    opened: list[Project] = []

    def make(files: Mapping[str, str] | None = None, *, folder: str = "project", **options: object) -> Project:
        home = tmp_path / folder
        write_files(
            home,
            {"lakewright.toml": 'name = "test"\n', **(files or {})}
            if not (home / "lakewright.toml").exists()
            else files or {},
        )
        found = Project(home, spark=spark, **options)  # type: ignore[arg-type]
        opened.append(found)
        return found

    yield make
    for one in opened:
        one.close()


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files below a folder; the text may be indented with the test around it."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
