from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.runtime.services import guard
from lakewright.runtime.services.processes import this_process


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own is closed to all but one."""
    folder = Path(tempfile.mkdtemp(prefix="lakewright-open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(open_folder: Path) -> Iterator[Path]:
    """A place for services, which end with the test whatever happens to it."""
    place = open_folder / "services"
    place.mkdir()
    guard.ensure(place, this_process())
    yield place
    guard.throw_away(place)
