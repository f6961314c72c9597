"""A folder without write permission, a full disk: a message with the cure, and the tables as they were."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

import pytest

from tests.pipelines.shop import land, ok, order, orders_project, rows_of

_DROP_CAPABILITY = 24
_OVERRIDE_PERMISSIONS = (1, 2)
TOML = 'name = "shop"\n[targets.dev]\nfast_start = true\nmaster = "local[1]"\n'


def as_an_ordinary_user() -> None:
    """Root may write anywhere: give that up, so that permissions count as they do for anyone else."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for capability in _OVERRIDE_PERMISSIONS:
        prctl(_DROP_CAPABILITY, capability, 0, 0, 0)


def with_a_full_disk() -> None:
    """No file may grow beyond a megabyte: the first larger data file fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def run(folder, at: str, before) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lakewright", "run", "--at", at, "--select", "+clean"],
        cwd=folder, preexec_fn=before, env=dict(os.environ), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.classic_only("the limits are those of a process of its own, and the server would write")
def test_a_folder_without_write_permission_is_told_and_nothing_changes(project):
    shop = project({**orders_project(), "lakewright.toml": TOML})
    land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
    ok(shop.run(["+clean"], at="2026-01-02"))
    land(shop.folder, "d2.json", [order("b", "2026-01-02T10:00:00Z")])
    table = shop.folder / ".lakewright" / "lake" / "silver" / "clean"
    for folder in (table, table / "_delta_log"):
        folder.chmod(0o555)
    done = run(shop.folder, "2026-01-03", as_an_ordinary_user)
    for folder in (table, table / "_delta_log"):
        folder.chmod(0o755)
    assert done.returncode == 1
    assert "no permission to write" in done.stderr
    assert "Traceback" not in done.stderr
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    ok(shop.run(["+clean"], at="2026-01-03"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]


@pytest.mark.classic_only("the limits are those of a process of its own, and the server would write")
def test_a_full_disk_is_told_and_the_next_run_goes_on(project):
    shop = project({**orders_project(), "lakewright.toml": TOML})
    lines = [order(os.urandom(40).hex(), f"2026-01-01T10:00:{n % 60:02d}Z", n, n) for n in range(30_000)]
    land(shop.folder, "d1.json", lines)
    done = run(shop.folder, "2026-01-02", with_a_full_disk)
    assert done.returncode == 1
    assert "no room to write" in done.stderr
    assert "Traceback" not in done.stderr
    ok(shop.run(["+clean"], at="2026-01-02"))
    assert len(rows_of(shop, "clean")) == 30_000
