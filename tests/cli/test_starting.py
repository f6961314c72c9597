"""What `--help`, `patterns` and `status` must not load, and what colour depends on."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import sys
sys.argv = ["lakewright", *sys.argv[1:]]
try:
    from lakewright.cli.main import main
    main()
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    print("LOADED", *sorted(loaded & {"pyspark", "sqlalchemy", "alembic", "pandas", "delta"}), file=sys.stderr)
"""


def loaded_by(*words: str, folder: Path) -> set[str]:
    """The heavy packages that a command has imported in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", COUNT, *words], cwd=folder, capture_output=True, text=True, check=True)
    return set(ran.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["patterns"], ["spark", "packages"], ["--version"]])
def test_help_and_patterns_load_neither_spark_nor_the_store(folder: Path, words: list[str]):
    assert loaded_by(*words, folder=folder) == set()


def test_status_loads_neither_spark_nor_alembic_nor_the_project(shop: Path):
    (shop / "pipelines" / "shop.py").write_text("raise SystemExit('the project was loaded')")
    loaded_by("store", "upgrade", folder=shop)
    assert loaded_by("status", folder=shop) == {"sqlalchemy"}


def on_a_terminal(*words: str, folder: Path, **environment: str) -> str:
    """What a command writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from lakewright.cli.main import main; main()", *words],
        cwd=folder,
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env={**clean, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    told = b""
    try:
        while part := os.read(ours, 65536):
            told += part
    except OSError:  # the terminal's other end was closed: the process has ended
        pass
    os.close(ours)
    process.wait()
    return told.decode()


@pytest.mark.parametrize(
    ("words", "environment", "coloured"),
    [
        (["patterns"], {}, True),
        (["patterns", "--no-color"], {}, False),
        (["--no-color", "patterns"], {}, False),
        (["patterns"], {"NO_COLOR": "1"}, False),
        (["plan"], {}, True),
        (["plan", "--no-color"], {}, False),
    ],
)
def test_colour_is_for_terminals_and_can_be_refused(
    folder: Path, words: list[str], environment: dict[str, str], coloured: bool
):
    assert ("\x1b[" in on_a_terminal(*words, folder=folder, **environment)) == coloured


def test_a_reader_that_closes_the_pipe_is_told_nothing() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "lakewright", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()  # as `| head` does when it has seen enough
    assert command.stderr.read() == b""
    assert command.wait(60) == 1
    command.stderr.close()
