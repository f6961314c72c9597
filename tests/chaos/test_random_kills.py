"""`make chaos KILLS=50`: kill the blog platform at random moments, again and again; the end is always the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from platforms.blog.generate import deliver_all, deliver_late, generate

from lakewright.demo import platform_folder
from lakewright.pipelines.project import Project

pytestmark = pytest.mark.chaos
TABLES = (
    "raw_visits",
    "users",
    "pages",
    "users_history",
    "clean_visits",
    "daily_pages",
    "daily_countries",
)


def prepare(folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(platform_folder() / "lakewright.toml", folder)
    for part in ("pipelines", "contracts"):
        shutil.copytree(platform_folder() / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    generate(folder, visits=3_000, days=3, replace=True)
    deliver_all(folder)
    return folder


def content(project: Project) -> dict[str, list[str]]:
    return {name: sorted(map(str, project.lake.read(name).collect())) for name in TABLES}


RUN = ("run", "--at", "2026-01-05")
AGAIN = ("backfill", "--from", "2026-01-01", "--to", "2026-01-04")


def start(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lakewright", *words, "--quiet"],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(child: subprocess.Popen[bytes], whom: str) -> None:
    """Python alone, its JVM alone, or the whole group."""
    if whom == "group":
        os.killpg(child.pid, signal.SIGKILL)
    elif whom == "python":
        child.kill()
    else:
        subprocess.run(["pkill", "-KILL", "-P", str(child.pid), "java"], check=False)
    child.wait(timeout=120)
    # A JVM that outlived its Python ends when its pipe closes: wait, so that no two runs overlap by our own doing.
    subprocess.run(["pkill", "-KILL", "-s", str(child.pid)], check=False)


def test_random_kills_leave_the_tables_of_an_undisturbed_run(spark, tmp_path):
    kills = int(os.environ.get("LAKEWRIGHT_KILLS", "50"))
    chance = random.Random(int(os.environ.get("LAKEWRIGHT_SEED", "1")))
    calm, wild = prepare(tmp_path / "calm"), prepare(tmp_path / "wild")
    deliver_late(calm)
    with Project(calm, spark=spark) as project:
        for error in project.run(at="2026-01-05").errors:
            raise error
        expected = content(project)
    done, late, words = 0, False, RUN
    while done < kills:
        child = start(wild, words)
        try:
            # Up to 6 s it only starts.
            assert child.wait(timeout=chance.uniform(6, 25)) == 0
        except subprocess.TimeoutExpired:
            kill(child, chance.choice(["group", "python", "jvm"]))
            done += 1
        else:
            # It got through: from now on it repeats, so that there is always something to kill.
            words = AGAIN
        if done >= kills // 2 and not late:
            deliver_late(wild)
            late, words = True, RUN
    with Project(wild, spark=spark) as project:
        for error in project.run(at="2026-01-05").errors:
            raise error
        assert content(project) == expected
        assert project.store.leases.held(project._now()) == []
        assert project.store.steps.open_steps() == []
