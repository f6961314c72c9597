"""A real Airflow for tests: installed once into an environment of its own, and run with SQLite in a temporary folder.

Guarantee:
    `ensure_airflow` returns an interpreter with the Airflow that ``airflow-constraints.txt`` names, installed by pip as
    this machine has configured it, into ``${LAKEWRIGHT_HOME:-~/.cache/lakewright}/airflow/<hash of that file>``. Only
    one process at a time installs; one killed half-way leaves nothing that another would take for complete.
    What an `Airflow` has started ends with it, and with the process that started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakewright.errors import TargetError
from lakewright.runtime.jars import Progress, cache_folder
from lakewright.runtime.services.ports import HOST, free_port

__all__ = ["Airflow", "ensure_airflow", "running_airflow"]

_CONSTRAINTS = Path(__file__).with_name("airflow-constraints.txt")
_MARKER = ".complete"
_STATES_AT_THE_END = ("success", "failed")
_BUSY = 503


def ensure_airflow(progress: Progress | None = None) -> Path:
    """The interpreter of the environment, which is made first if it is not there (one to two minutes)."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(_CONSTRAINTS.read_bytes() + version.encode()).hexdigest()[:16]
    folder = cache_folder() / "airflow" / digest
    python = folder / "bin" / "python"
    if (folder / _MARKER).exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _MARKER).exists():  # nobody else has made it while we waited
            (progress or (lambda line: None))("Installing Airflow into an environment of its own (once) ...")
            _install(folder, python)
    return python


def _install(folder: Path, python: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pins = [line for line in _CONSTRAINTS.read_text(encoding="utf-8").split("\n") if line.startswith("apache-airflow")]
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(_CONSTRAINTS), *pins]
    done = subprocess.run([str(python), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(
            f"Airflow could not be installed into {folder}: {done.stderr.strip()[-500:]}",
            hint="Repeat it with access to a package registry.",
        )
    (folder / _MARKER).touch()


@dataclass
class Airflow:
    """An Airflow in a folder: its database, its DAGs, and the processes that were started for it."""

    python: Path
    home: Path
    more: Mapping[str, str] = field(default_factory=dict)
    """What its processes, and so the tasks, see of the environment beyond that of the tests."""
    port: int = field(default_factory=free_port)
    _token: str | None = None

    @property
    def dags(self) -> Path:
        return self.home / "dags"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its commands."""
        settings = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "2",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{self.port}/execution/",
            "API__HOST": HOST,
            "API__PORT": str(self.port),
            "API__WORKERS": "1",
            "API_AUTH__JWT_SECRET": self._secret,
            "API__SECRET_KEY": self._secret,
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        ours = {f"AIRFLOW__{key}": value for key, value in settings.items()}
        # A proxy would be asked for the task's own server.
        direct = {"NO_PROXY": HOST, "no_proxy": HOST}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTHONPATH"))}
        return {**kept, **direct, "AIRFLOW_HOME": str(self.home), **ours, **self.more}

    @property
    def _secret(self) -> str:
        file = self.home / "secret"
        if not file.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            file.write_text(secrets.token_hex(32), encoding="utf-8")
        return file.read_text(encoding="utf-8")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What ``airflow WORDS`` says; each call costs seconds."""
        return subprocess.run(
            [str(self.python), "-m", "airflow", *words], env=self.environ, capture_output=True, text=True, check=False
        )

    def script(self, text: str, *words: str) -> Any:
        """What a Python program prints as JSON, run where Airflow can be imported."""
        done = subprocess.run(
            [str(self.python), "-c", text, *words], env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    def prepare(self, *, read_dags: bool = True) -> None:
        """Make its database, and read its DAGs into it; ``dags test`` reads them as well."""
        self.dags.mkdir(parents=True, exist_ok=True)
        for words in (("db", "migrate"), *([("dags", "reserialize")] if read_dags else [])):
            done = self.command(*words)
            assert done.returncode == 0, done.stdout + done.stderr

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Ask its API."""
        if self._token is None:
            self._token = _ask(f"http://{HOST}:{self.port}/auth/token", "GET", None, None)["access_token"]
        return _ask(f"http://{HOST}:{self.port}/api/v2/{path}", method, body or None, self._token)

    def is_up(self) -> bool:
        """Whether its API answers, and its scheduler works."""
        try:
            health = _ask(f"http://{HOST}:{self.port}/api/v2/monitor/health", "GET", None, None)
        except OSError:
            return False
        return bool(health["scheduler"]["status"] == "healthy")

    def trigger(self, dag_id: str, logical_date: str) -> str:
        """Start a run by hand; its id."""
        made = self.call("POST", f"dags/{dag_id}/dagRuns", logical_date=logical_date)
        return str(made["dag_run_id"])

    def clear(self, dag_id: str, run_id: str) -> None:
        """Let a run's tasks be made again."""
        self.call("POST", f"dags/{dag_id}/clearTaskInstances", dag_run_id=run_id, dry_run=False, only_failed=False)

    def backfill(self, dag_id: str, first: str, last: str) -> None:
        """Let it run for each time from the first to the last, also where it has."""
        span = {"from_date": first, "to_date": last, "reprocess_behavior": "completed"}
        self.call("POST", "backfills", dag_id=dag_id, **span, max_active_runs=1, run_backwards=False)

    def runs(self, dag_id: str) -> dict[str, dict[str, Any]]:
        """The runs of a DAG by their ids."""
        return {one["dag_run_id"]: one for one in self.call("GET", f"dags/{dag_id}/dagRuns")["dag_runs"]}

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The tasks of a run by their ids."""
        found = self.call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {one["task_id"]: one for one in found}

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """What a try of a task has logged."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}?full_content=true"
        return json.dumps(self.call("GET", path)["content"])

    def ended(self, dag_id: str, run_id: str, *, seconds: float = 120) -> str:
        """Wait until a run has ended; how it did."""
        self.wait(lambda: self.runs(dag_id)[run_id]["state"] in _STATES_AT_THE_END, f"{dag_id} {run_id}", seconds)
        return str(self.runs(dag_id)[run_id]["state"])

    def wait(self, holds: Callable[[], object], what: str, seconds: float = 120) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come within {seconds:.0f} s; its logs are in {self.home}")
            time.sleep(0.3)


@contextmanager
def running_airflow(airflow: Airflow, *, seconds: float = 120) -> Iterator[Airflow]:
    """Its API and its scheduler, until the block ends."""
    started = [_start(airflow, name) for name in ("api-server", "scheduler")]
    try:
        airflow.wait(airflow.is_up, "Airflow", seconds)
        yield airflow
    finally:
        for process in reversed(started):
            _end(process)


def _start(airflow: Airflow, name: str) -> subprocess.Popen[bytes]:
    with (airflow.home / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [str(airflow.python), "-m", "airflow", name],
            env=airflow.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_us,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all that is left of the session that it leads: children are left running by some."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)  # it has nothing to lose
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_us() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _ask(url: str, method: str, body: Mapping[str, Any] | None, token: str | None, patience: int = 60) -> Any:
    """Ask a server; where SQLite is locked just then by the scheduler, ask again."""
    heads = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data, heads, method=method), timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code == _BUSY and patience:
            time.sleep(0.5)
            return _ask(url, method, body, token, patience - 1)
        raise AssertionError(f"{method} {url}: {error.code} {error.read().decode()[:500]}") from None


if __name__ == "__main__":
    try:
        ensure_airflow(lambda line: print(line, file=sys.stderr))  # noqa: T201
    except TargetError as error:
        sys.exit(f"error: {error.message}\n{error.hint}")
