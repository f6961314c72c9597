"""A folder without write permission, a full disk: a message with the cure, and the tables as they were."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from base64 import b64encode

import pytest

from tests.pipelines.shop import land, ok, order, orders_project, rows_of

_DROP_CAPABILITY = 24
_OVERRIDE_PERMISSIONS = (1, 2)
TOML = 'name = "shop"\n[targets.dev]\nfast_start = true\nmaster = "local[1]"\n'
STOCK = """
    from lakewright import JsonFiles, Pipeline

    stock = Pipeline("stock", start="2026-01-01")
    stock.source("stock", JsonFiles("landing/stock"), schema="order_id string, at timestamp, customer int, amount int",
                 event_time="at")
"""


def as_an_ordinary_user() -> None:
    """Root may write anywhere: give that up, so that permissions count as they do for anyone else."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for capability in _OVERRIDE_PERMISSIONS:
        prctl(_DROP_CAPABILITY, capability, 0, 0, 0)


def with_a_full_disk() -> None:
    """No file may grow beyond three megabytes: the first larger data file fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))


def in_trouble() -> None:
    """A start of Spark costs seconds, so one process has both."""
    as_an_ordinary_user()
    with_a_full_disk()


@pytest.mark.classic_only("the limits are those of a process of its own, and the server would write")
def test_no_permission_and_a_full_disk_are_told_nothing_changes_and_the_next_run_goes_on(project):
    with project({**orders_project(), "pipelines/stock.py": STOCK, "lakewright.toml": TOML}) as shop:
        land(shop.folder, "d1.json", [order("a", "2026-01-01T10:00:00Z")])
        ok(shop.run(["+clean"], at="2026-01-02"))
    land(shop.folder, "d2.json", [order("b", "2026-01-02T10:00:00Z")])
    ids = (b64encode(os.urandom(150)).decode() for _ in range(25_000))  # five megabytes, however they are compressed
    large = [order(one, f"2026-01-01T10:00:{n % 60:02d}Z", n, n) for n, one in enumerate(ids)]
    land(shop.folder, "d1.json", large, folder="stock")
    table = shop.folder / ".lakewright" / "lake" / "silver" / "clean"
    for folder in (table, table / "_delta_log"):
        folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-m", "lakewright", "run", "--at", "2026-01-03", "--select", "+clean", "--select", "stock"],
        cwd=shop.folder, preexec_fn=in_trouble, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    for folder in (table, table / "_delta_log"):
        folder.chmod(0o755)
    assert done.returncode == 1
    assert "no permission to write" in done.stderr
    assert "no room to write" in done.stderr
    assert "Traceback" not in done.stderr
    shop = project()
    shop.graph  # noqa: B018  (declares the names)
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a"]
    assert shop.store.receipts.history("stock") == []
    ok(shop.run(["+clean", "stock"], at="2026-01-03"))
    assert [row["order_id"] for row in rows_of(shop, "clean")] == ["a", "b"]
    assert shop.lake.read("stock").count() == 25_000
