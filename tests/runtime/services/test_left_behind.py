"""A test run leaves nothing behind: no process and no file, whether it ends or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lakewright.runtime.services import guard, processes, state
from lakewright.runtime.services.ports import is_free
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place

WAITING = """
import os

def test_that_never_ends({fixtures}):
    with open(os.environ["BEGUN"], "w") as told:
        told.write("begun")
    open(os.environ["NEVER"]).read()  # a pipe that nobody writes to
"""
ASKING = """
import os

def test_of_one_file(postgres):
    with postgres.database().connect() as connection:
        began = connection.execute("SELECT pg_postmaster_start_time()").fetchone()[0]
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{postgres.port} {began} {os.getpid()}\\n")
"""


def pytest_in(folder: Path, *words: str, **environ: str) -> subprocess.Popen[bytes]:
    """A test run of its own, in a session of its own, whose temporary files go below the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, str(folder)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.Popen(
        command, cwd=folder, env={**clean, "TMPDIR": str(folder), **environ},
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("lakewright-*"))


@pytest.mark.parametrize(
    ("words", "fixtures"), [(["-p", "no:xdist"], "postgres, kafka"), (["-n", "1"], "postgres")], ids=["plain", "xdist"]
)
def test_a_killed_run_leaves_nothing_behind(open_folder: Path, words: list[str], fixtures: str) -> None:
    (open_folder / "test_it.py").write_text(WAITING.format(fixtures=fixtures))
    pipes = {name: open_folder / name for name in ("BEGUN", "NEVER")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    run = pytest_in(open_folder, *words, **{name: str(pipe) for name, pipe in pipes.items()})
    assert pipes["BEGUN"].read_text() == "begun"
    states = [Place(file.parent).load() for file in open_folder.glob("lakewright-tests-*/*/state.json")]
    known = [state.process for state in states if state is not None and state.process is not None]
    assert len(known) == 1 + len(fixtures.split(","))  # the guard too
    assert all(processes.is_running(process) for process in known)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(30)
    assert processes.wait_until_gone(known, 30)
    assert left_in(open_folder) == []


def test_what_is_still_being_made_when_its_run_is_killed_is_not_left_behind(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that makes the data has outlived its command, whose hold on the data it has inherited."""
    monkeypatch.setattr(state, "_HELD_SECONDS", 0)
    place, begun = Place(open_folder / "services" / "postgres"), threading.Event()
    place.make()

    def make_data() -> None:
        with place.hold():
            begun.set()
            time.sleep(0.5)
            (place.folder / "data.new").mkdir(parents=True)

    maker = threading.Thread(target=make_data)
    maker.start()
    begun.wait()
    guard.throw_away(open_folder / "services")
    maker.join()
    assert list(open_folder.iterdir()) == []


def test_the_workers_of_a_run_share_one_server_which_ends_with_it(open_folder: Path) -> None:
    for number in (1, 2):
        (open_folder / f"test_{number}.py").write_text(ASKING)
    run = pytest_in(open_folder, "-n", "2", "--dist", "each", SEEN=str(open_folder / "seen"))
    assert run.wait(120) == 0
    seen = [line.split() for line in (open_folder / "seen").read_text().splitlines()]
    assert len({line[-1] for line in seen}) == 2  # workers
    assert len({tuple(line[:-1]) for line in seen}) == 1  # servers
    assert is_free(int(seen[0][0]))
    assert left_in(open_folder) == []


def test_a_process_is_its_number_and_its_beginning() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mine = processes.this_process()
        assert processes.is_running(mine)
        assert not processes.is_running(Process(mine.pid, "another time"))
        other = Process(child.pid, "another time")
        processes.send(other, signal.SIGKILL)
        assert child.poll() is None
        child.communicate(b"\n", timeout=30)
    assert child.returncode == 0
