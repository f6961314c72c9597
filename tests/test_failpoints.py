from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.failpoints import EXIT_CODE, FailpointReached, arm, failpoint


@pytest.fixture(autouse=True)
def _disarmed_afterwards() -> Iterator[None]:
    yield
    arm({})


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": "src", **environment},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_failpoint_that_nobody_armed_does_nothing() -> None:
    arm({})
    failpoint("before_commit")


def test_a_failpoint_with_another_name_does_nothing() -> None:
    arm({"LAKEWRIGHT_FAILPOINT": "after_commit", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    failpoint("before_commit")


def test_the_count_says_which_hit_acts_and_only_that_one_does() -> None:
    arm({"LAKEWRIGHT_FAILPOINT": "before_commit:3", "LAKEWRIGHT_FAILPOINT_ACTION": "raise"})
    failpoint("before_commit")
    failpoint("before_commit")
    with pytest.raises(FailpointReached) as reached:
        failpoint("before_commit")
    assert reached.value.name == "before_commit"
    failpoint("before_commit")


def test_kill_ends_the_children_and_then_the_process_itself() -> None:
    # The child holds our standard output open: that `run` returns at all shows that it has ended too.
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "from lakewright.failpoints import failpoint\n"
        "print('before', flush=True)\n"
        "failpoint('here')\n"
        "print('after')\n"
    )
    ended = run_python(code, LAKEWRIGHT_FAILPOINT="here")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "before\n"


def test_exit_ends_the_process_without_any_clean_up() -> None:
    code = "from lakewright.failpoints import failpoint\ntry: failpoint('x')\nfinally: print('cleaned up')"
    ended = run_python(code, LAKEWRIGHT_FAILPOINT="x", LAKEWRIGHT_FAILPOINT_ACTION="exit")
    assert (ended.returncode, ended.stdout) == (EXIT_CODE, "")


def test_pause_says_where_it_waits_and_goes_on_when_told(tmp_path: Path) -> None:
    arm(
        {
            "LAKEWRIGHT_FAILPOINT": "x",
            "LAKEWRIGHT_FAILPOINT_ACTION": "pause",
            "LAKEWRIGHT_FAILPOINT_DIR": str(tmp_path),
        }
    )
    waiting = threading.Thread(target=failpoint, args=("x",))
    waiting.start()
    waiting.join(timeout=0.2)
    assert waiting.is_alive()
    assert (tmp_path / "x.paused").read_text() == str(os.getpid())
    (tmp_path / "x.go").touch()
    waiting.join(timeout=10)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"LAKEWRIGHT_FAILPOINT": "x:soon"}, "number"),
        ({"LAKEWRIGHT_FAILPOINT": "x:0"}, "number"),
        ({"LAKEWRIGHT_FAILPOINT": "x", "LAKEWRIGHT_FAILPOINT_ACTION": "explode"}, "pause"),
        ({"LAKEWRIGHT_FAILPOINT": "x", "LAKEWRIGHT_FAILPOINT_ACTION": "pause"}, "LAKEWRIGHT_FAILPOINT_DIR"),
    ],
)
def test_a_wrong_request_is_refused_with_what_would_be_right(environment: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        arm(environment)
