"""Project files are read as they stand."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from lakewright.model.secrets import Secret
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


def test_the_path_of_a_secret_that_a_file_names_begins_at_the_project_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (home / "pipelines").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (home / "weather_key").write_text("Wk51-key\n")
    (home / "pipelines" / "shop.py").write_text(
        "from lakewright import LookupApi, Pipeline, Secret\n"
        'p = Pipeline("shop", start="2026-01-01")\n'
        'p.key = Secret("secret://file/weather_key")\n'
        'p.api = LookupApi("https://w.example", headers={"X-Key": "secret://file/weather_key"})\n'
    )
    (shop,) = load_pipelines(home, ["pipelines/*.py"])
    assert shop.key.reveal() == shop.api.caller().headers["X-Key"] == "Wk51-key"  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(shop.key)).file == home / "weather_key"  # type: ignore[attr-defined]
    assert Secret("secret://file/weather_key").file == elsewhere / "weather_key"
