from __future__ import annotations

import json
from pathlib import Path

from .conftest import Lakewright


def test_init_writes_a_project_and_says_what_to_type_next(lakewright: Lakewright, folder: Path):
    result = lakewright("init", "shop")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "cd shop && lakewright run" in result.stderr
    written = {str(file.relative_to(folder / "shop")) for file in (folder / "shop").rglob("*") if file.is_file()}
    assert written >= {
        *("lakewright.toml", "README.md", ".gitignore", "pipelines/orders.py", "contracts/orders.yaml"),
        *("landing/orders/2026-01-05.json", "landing/orders/2026-01-06.json", "tests/test_orders.py"),
    }
    assert 'name = "shop"' in (folder / "shop" / "lakewright.toml").read_text()
    assert not [file for file in (folder / "shop").rglob("*") if file.is_file() and "__PROJECT" in file.read_text()]


def test_the_new_project_has_a_plan(lakewright: Lakewright, folder: Path):
    lakewright("init", "shop")
    result = lakewright("plan", "--project", "shop")
    assert result.exit_code == 0
    assert [line.split()[-1] for line in result.stdout.splitlines() if "nothing yet" in line] == ["yet", "yet"]


def test_init_twice_refuses_and_changes_nothing(lakewright: Lakewright, folder: Path):
    lakewright("init", "shop")
    (folder / "shop" / "README.md").write_text("mine")
    result = lakewright("init", "shop")
    assert result.exit_code == 2
    assert "error: The folder shop is there and not empty. Nothing was written." in result.stderr
    assert "--force" in result.stderr
    assert (folder / "shop" / "README.md").read_text() == "mine"


def test_init_by_force_leaves_other_files_alone(lakewright: Lakewright, folder: Path):
    (folder / "shop").mkdir()
    (folder / "shop" / "notes.txt").write_text("mine")
    assert lakewright("init", "shop", "--force").exit_code == 0
    assert (folder / "shop" / "notes.txt").read_text() == "mine"


def test_init_refuses_a_name_that_is_none(lakewright: Lakewright):
    result = lakewright("init", "2 shops", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"] == "'2 shops' is no name for a project."


def test_init_tells_where_it_cannot_write(lakewright: Lakewright, folder: Path):
    (folder / "shop").mkdir()
    (folder / "shop" / "pipelines").write_text("a file where a folder must be")
    result = lakewright("init", "shop", "--force")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr
