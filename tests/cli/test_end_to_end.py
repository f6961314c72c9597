"""The first five minutes of a new user, typed as they would be, with real Spark.

What README shows runs in a process of its own (`make demo`: tests/platforms/test_demo_services.py); the demo on files,
and what a user types after the first run, runs in the session of the tests: each start of Spark costs seconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from .conftest import Lakewright

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, object]]


def rows_of(table: Path) -> Rows:
    """The rows of a Delta table, read from its log without Spark; partition values are left out."""
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                live.pop(action["remove"]["path"], None)
    found = [row for path in live for row in pq.ParquetFile(table / path).read().to_pylist()]
    return sorted(found, key=str)


def commands_of_the_readme() -> list[str]:
    """The shell blocks that README marks as runnable."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block.strip() for block in re.findall(r"<!-- run: shell -->\n```sh\n(.*?)```", text, re.DOTALL)]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command as README shows it, in the environment of this test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600
    )


def test_the_readme_shows_the_commands_that_are_tried_here():
    assert commands_of_the_readme() == [
        "make demo",
        "make test",  # what runs this very test
        "lakewright init shop && cd shop && lakewright run",
    ]


@pytest.mark.usefixtures("warm")
def test_the_demo_on_files_accounts_for_every_row(lakewright: Lakewright, tmp_path: Path):
    done = lakewright("demo", "--visits", "500", "--folder", str(tmp_path / "demo"))
    told = done.stdout + done.stderr
    assert done.exit_code == 0, told
    assert "All figures agree." in told
    # Sessions wait for late visits, and are made with them.
    assert re.search(r"reading_sessions to 2026-01-01, \d+ go on +(\S+) = \1 .* (\S+) = \2 ", told), told


@pytest.mark.usefixtures("warm")
def test_init_run_run_and_run_again(lakewright: Lakewright, tmp_path: Path):
    first = shell(commands_of_the_readme()[2], tmp_path)
    shop = tmp_path / "shop"
    tables = [shop / ".lakewright" / "lake" / name for name in ("silver/clean_orders", "gold/daily_revenue")]
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[-1].endswith("5 ok, 0 warnings, 0 failed, 0 skipped.")
    account = {tuple(line.split()[:2]): line.split() for line in first.stdout.splitlines()[2:]}
    # read 6 = kept 4 + rejected 1 + duplicates 1; none was late.
    monday = account["clean_orders", "2026-01-05"][-8:-1]
    assert monday == ["6", "4", "1", "(positive_amount", "1)", "1", "0"]
    data = [rows_of(table) for table in tables]
    assert [len(rows) for rows in data] == [8, 5]
    files = sorted((shop / ".lakewright" / "lake").rglob("*"))

    def typed(*words: str) -> Result:
        return lakewright(*words, "--project", str(shop))

    second = typed("run")
    assert second.exit_code == 0
    assert second.stderr.splitlines()[-1] == "Everything is fresh: 3 datasets, nothing to do."
    assert second.stdout == ""
    assert sorted((shop / ".lakewright" / "lake").rglob("*")) == files

    again = typed("run", "--again", "--json")
    assert again.exit_code == 0, again.stderr
    assert {(one["dataset"], one["slice"]) for one in json.loads(again.stdout)["slices"]} == {
        (dataset, day) for dataset in ("clean_orders", "daily_revenue") for day in ("2026-01-05", "2026-01-06")
    }
    assert [rows_of(table) for table in tables] == data

    query = "SELECT day, sum(orders) AS orders, sum(revenue) AS revenue FROM daily_revenue GROUP BY day ORDER BY day"
    asked = typed("sql", query)
    assert asked.stdout == "day,orders,revenue\n2026-01-05,4,169.40\n2026-01-06,4,173.50\n"
