"""Projects that several tests begin with: made once per test process, and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakewright.failpoints import arm
from lakewright.pipelines.project import Project
from lakewright.testing.plugin import write_files

Build = Callable[[Project], None]


@pytest.fixture(scope="session")
def made_before() -> dict[str, Path]:
    """Name -> the folder of a project that was made before."""
    return {}


@pytest.fixture
def prepared(project, spark, made_before, tmp_path, tmp_path_factory):
    """``prepared("two days", files, build)``: a copy of the project that ``build`` made, opened.

    Copying keeps the files' times, so that what was taken counts as taken.
    """

    def make(name: str, files: dict[str, str], build: Build) -> Project:
        if name not in made_before:
            folder = tmp_path_factory.mktemp("prepared") / "project"
            write_files(folder, {"lakewright.toml": 'name = "test"\n', **files})
            with Project(folder, spark=spark) as opened:
                build(opened)
            made_before[name] = folder
        shutil.copytree(made_before[name], tmp_path / "project")
        opened = project()
        opened.graph  # noqa: B018  (declares the names, as any command does)
        return opened

    return make


@pytest.fixture
def failing():
    """``failing("batch_done")``: the next time this place is reached, the work fails there."""

    def at(name: str) -> None:
        arm({"LAKEWRIGHT_FAILPOINT": name, "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})

    yield at
    arm({})
