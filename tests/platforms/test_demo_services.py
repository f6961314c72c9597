"""`make demo` with services: the real command, with real services, against the truth of whoever sends to it.

Two days instead of three show all of it: a day that late visits change, and one after it. The demo on files, of three
days, is run by tests/cli/test_end_to_end.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from platforms.blog.generate import Truth, read_truth
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.runtime.services import status, up
from lakewright.runtime.services.guard import throw_away
from lakewright.runtime.services.processes import this_process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The demo's folder, with a PostgreSQL that runs already; whatever runs there ends with the tests."""
    folder = tmp_path / "demo"
    services = folder / ".lakewright" / "services"
    (folder / ".lakewright").mkdir(parents=True)
    (folder / ".lakewright" / "demo").touch()
    up(services, ["postgres"], only_while=this_process())
    yield folder
    throw_away(services)


def figures(text: str, boundary: str) -> dict[str, list[str]]:
    """The rows of the last table that has such: by the first word of the slice, the cells after it."""
    found = {}
    for line in text.splitlines():
        if line.strip().startswith(boundary):
            cells = [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
            found[cells[1].partition(",")[0]] = cells[2:]
    return found


def ways(text: str) -> dict[tuple[str, str], str]:
    """The rows of the table of other ways: by pattern and dataset, what is compared and the figures."""
    _, _, table = text.partition("what is compared")
    lines = [line.strip() for line in table.partition("All figures agree")[0].splitlines()[1:] if line.strip()]
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {(one[0], one[1]): " ".join(one[2:]) for one in cells}


def wanted_of_silver(truth: Truth, day: str) -> list[str]:
    told = truth.events[day]
    extra = told.kept_after_late - told.kept if day == truth.recipe.dates[0] else 0
    numbers = (told.missing_id, told.bad_page, told.duplicates, told.kept + extra, told.late + extra)
    return [f"{number} = {number}" for number in (told.lines + extra, *numbers)]


def test_visits_from_kafka_and_users_from_postgresql_give_the_same_accounted_tables(home: Path):
    command = ["make", "demo", f"ARGS=--services --rate 0 --visits 300 --days 2 --folder {home}"]
    environ = {key: value for key, value in os.environ.items() if key != "LAKEWRIGHT_MASTER"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "All figures agree." in done.stdout
    assert "!=" not in done.stdout
    truth = read_truth(home)
    source = figures(done.stdout, "source to bronze")
    silver = figures(done.stdout, "bronze to silver")
    assert [row[0] for row in source.values()] == [f"{one.lines} = {one.lines}" for one in truth.deliveries.values()]
    assert list(source) == list(silver) == truth.recipe.dates
    for day, cells in silver.items():
        assert [cell for cell in cells if cell != "-"] == wanted_of_silver(truth, day)
    # Which slices the late visits touch, why, and that nothing else is made again.
    late = truth.late_delivery[truth.recipe.dates[0]].lines
    assert f"clean_visits 2026-01-01 is late: raw_visits has {late} more row" in done.stdout
    # Every other way in and out: both sides of each figure are the same, or the end would say otherwise.
    told = ways(done.stdout)
    assert [pattern for pattern, _ in told] == [
        "Incremental Loader", "Full Loader", "External Trigger", "Change Data Capture", "Change Data Capture",
        "Passthrough Replicator", "Transformation Replicator", "Readiness Marker", "Compactor", "Late Data Detector",
        "Stateful Merger", "Transactional Writer", "Keyed Idempotency", "Fast Metadata Cleaner", "Proxy",
        "Stateful Sessionizer", "FIFO Orderer", "Metadata Decorator", "Bin Pack Orderer", "Wrapper",
        "Distributed Aggregator", "Local Aggregator", "Dynamic Joiner",
    ]  # fmt: skip
    users = sum(day.lines for day in truth.users.values())
    assert told["Incremental Loader", "users"].startswith(f"{users} = {users} ")
    assert "22 delete, 82 insert, 100 snapshot, 81 update" in told["Change Data Capture", "visit_changes"]
    assert "equal in all columns" in told["Change Data Capture", "legacy_visits"]
    kept = truth.totals["kept"] + late
    assert told["Transformation Replicator", "visits_for_partners"].startswith(f"{kept} = {kept} ")
    for feed in (("FIFO Orderer", "visit_feed"), ("Metadata Decorator", "visit_feed")):
        assert told[feed].startswith(f"{kept} = {kept} ")
    assert told["Bin Pack Orderer", "user_changes"].startswith(f"{users} = {users} ")
    assert told["Distributed Aggregator", "weekly_cube"].startswith(f"{kept} = {kept} ")
    assert "2 slices proven" in told["Transformation Replicator", "visits_for_partners"]
    first = home / "exports" / "partners" / "visits" / "_delta_log" / f"{0:020d}.json"
    assert "visit_id" in first.read_text()
    assert "user_id" not in first.read_text(), "the contract calls it personal"
    assert (home / ".lakewright" / "lake" / "_ready" / "daily_pages" / "2026-01-02" / "_COMPLETED").exists()
    assert "PostgreSQL 18" in done.stdout
    assert "runs already" in done.stdout
    assert "lakewright services down" in done.stdout
    assert [one.state for one in status(home / ".lakewright" / "services")] == ["running"] * 3


def test_what_is_missing_or_makes_no_sense_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "demo"
    refused = CliRunner().invoke(app, ["demo", "--rate", "10", "--folder", str(folder)])
    assert refused.exit_code == 2
    assert "--services" in refused.stderr

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "confluent_kafka" else found(name, *more)
    )
    refused = CliRunner().invoke(app, ["demo", "--services", "--folder", str(folder)])
    assert refused.exit_code == 2
    assert "confluent_kafka" in refused.stderr
    assert 'pip install "lakewright[kafka,postgres]"' in refused.stderr
    assert not folder.exists()
