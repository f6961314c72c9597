"""`make chaos KILLS=50`: kill the blog platform at random moments, again and again; the end is always the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from platforms.blog.generate import deliver_all, deliver_late, generate

from lakewright.demo import platform_folder
from lakewright.pipelines.project import Project

pytestmark = pytest.mark.chaos
TABLES = ("raw_visits", "users", "pages", "users_history", "clean_visits", "daily_pages", "daily_countries")


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


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lakewright", "run", "--at", "2026-01-05", "--quiet"],
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
    done = 0
    while done < kills:
        child = start(wild)
        try:
            child.wait(timeout=chance.uniform(3, 25))
        except subprocess.TimeoutExpired:
            kill(child, chance.choice(["group", "python", "jvm"]))
            done += 1
            continue
        # It got through: take something away from it, so that there is work to kill again.
        with Project(wild, spark=spark) as project:
            name = chance.choice(["clean_visits", "daily_pages", "daily_countries"])
            project.backfill("2026-01-01", "2026-01-02", select=[name], at="2026-01-05")
        if done >= kills // 2:
            deliver_late(wild)
    deliver_late(wild)
    with Project(wild, spark=spark) as project:
        for error in project.run(at="2026-01-05").errors:
            raise error
        assert content(project) == expected
        assert project.store.leases.held(project._now()) == []
        assert project.store.steps.open_steps() == []
