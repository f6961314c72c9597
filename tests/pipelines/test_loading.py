"""Project files are read as they stand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lakewright.pipelines.loading import load_pipelines


def test_a_file_that_changed_within_a_second_is_not_taken_from_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "orders.py"
    found = []
    for name in ("first", "other"):
        file.write_text(f'from lakewright import Pipeline\np = Pipeline("{name}", start="2026-01-01")\n')
        os.utime(file, (1_000_000_000, 1_000_000_000))
        found += [pipeline.name for pipeline in load_pipelines(tmp_path, ["*.py"])]

    assert found == ["first", "other"]
    assert not (tmp_path / "__pycache__").exists()
