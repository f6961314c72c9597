"""`lakewright maintain`: what it shows, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lakewright.errors import TargetError
from lakewright.pipelines.maintain import MaintenanceSummary, TableOutcome
from lakewright.pipelines.project import Project

from .conftest import Lakewright


def test_maintain_shows_files_and_bytes_before_and_after(lakewright: Lakewright, shop: Path, monkeypatch):
    asked: list[Any] = []
    found = [
        TableOutcome(
            "orders", "done", "2,000 files, of which 2,000 can be joined into 1", 2000, 1, 3 << 20, 2 << 20, 7, 12
        ),
        TableOutcome("users", "nothing", "12 files, below 20", 12, 12, 400, 400),
    ]

    def maintain(self: Project, select: Any, **options: Any) -> MaintenanceSummary:
        asked.append((list(select), options))
        return MaintenanceSummary(options["dry_run"], list(found), 1.25)

    monkeypatch.setattr(Project, "maintain", maintain)
    result = lakewright("maintain", "orders", "users", "--no-vacuum")
    assert result.exit_code == 0
    assert asked == [(["orders", "users"], {"everything": False, "dry_run": False, "vacuum": False})]
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[2] == "orders done 2,000 1 3 MB 2 MB 12 2,000 files, of which 2,000 can be joined into 1"
    assert lines[3] == "users nothing 12 12 400 B 400 B - 12 files, below 20"
    assert "Done in 1.2 s. 1 maintained, 1 as they were, 0 left for the next time, 0 failed." in result.stderr

    told = json.loads(lakewright("maintain", "--all", "--dry-run", "--json").stdout)
    assert asked[-1] == ([], {"everything": True, "dry_run": True, "vacuum": True})
    assert told["tables"][0]["files_after"] == 1
    assert (told["dry_run"], told["exit_code"], told["error"]) == (True, 0, None)

    found.append(
        TableOutcome("daily_orders", "failed", "x", error=TargetError("A file is gone.", hint="Bring it back."))
    )
    failed = lakewright("maintain")
    assert failed.exit_code == 1
    assert "error: A file is gone." in failed.stderr
    assert json.loads(lakewright("maintain", "--json").stdout)["tables"][2]["error"]["message"] == "A file is gone."


def test_a_project_without_a_policy_is_told_what_to_do(lakewright: Lakewright, shop: Path):
    result = lakewright("maintain")
    assert result.exit_code == 2
    assert "error: No dataset of this project declares how it is maintained. Nothing was started." in result.stderr
    assert "hint: Give it maintenance=Compactor()" in result.stderr
